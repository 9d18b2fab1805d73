"""What the sliders say, as Python to run elsewhere and as a command."""

from __future__ import annotations

import shlex

from resolvent.ui.examples import EXAMPLES
from resolvent.ui.explorer import PERIOD, Setup

FILE = "explorer.py"


def python(setup: Setup) -> str:
    """A file that computes the same numbers."""
    body = "\n".join(f"    {line}" for line in EXAMPLES[setup.problem].lines(setup.sizes))
    numpy = "import numpy as np\n" if "np." in body else ""
    arguments = [f"rounds={setup.rounds}"]
    arguments += [f"anderson={setup.anderson}"] if setup.anderson else []
    if setup.delays > 1:
        arguments.append(f"participation=rs.Stragglers({setup.delays!r})")
    elif setup.participation < 1:
        arguments.append(f"participation=rs.Bernoulli({setup.participation!r}, absent={setup.absent!r})")
    arguments += [f"seed={setup.sizes.seed}"] if setup.sizes.seed else []
    return (
        f'{numpy}import resolvent as rs\n\n\ndef problem():\n{body}\n\n\nif __name__ == "__main__":\n'
        f"    scheme = {_scheme(setup)}\n"
        f"    run = rs.solve(problem(), scheme, {', '.join(arguments)})\n"
        "    print(run.explanation)\n    print(run.history)\n"
    )


def _scheme(setup: Setup) -> str:
    eta = repr(setup.eta)
    if setup.schedule != "constant":
        period = f", {PERIOD}" if setup.schedule == "halving" else ""
        eta = f"rs.schedules.{setup.schedule.replace('-', '_')}({eta}{period})"
    steps = f", steps={setup.steps}" if setup.forward and setup.steps > 1 else ""
    if setup.operator:
        return f"rs.TABLE[{setup.row!r}].scheme({eta}, steps={setup.steps})"
    if setup.row is not None:
        return f"rs.{setup.row}(eta={eta}{steps}{''.join(f', {name}={x!r}' for name, x in setup.free.items())})"
    forward = ", forward=True" if setup.forward else ""
    forward += ", beyond=True" if setup.gamma > 1 else ""
    return f"rs.Scheme({setup.alpha!r}, {setup.beta!r}, {setup.gamma!r}, eta={eta}{forward}{steps})"


def command(setup: Setup) -> tuple[str | None, str]:
    """The command that runs it, and what is to be known of it; None where no command does."""
    if setup.row is None and setup.gamma > 1:
        return None, "γ > 1 leaves the theory, and no row of the table has these α and β. Copy them as Python."
    if setup.forward and setup.row is None:
        return None, "Gradient steps with these α, β and γ are no row of the table. Copy them as Python."
    example = EXAMPLES[setup.problem]
    own = example.command is None
    command = ["resolvent", "run", *([f"{FILE}:problem"] if example.command is None else example.command(setup.sizes))]
    command += ["--seed", str(setup.sizes.seed)] if own and setup.sizes.seed else []
    if setup.row is not None:
        command += ["--algorithm", setup.row]
        command += [part for name, x in setup.free.items() for part in ("--set", f"scheme.{name}={x!r}")]
    else:
        mixing = {"alpha": setup.alpha, "beta": setup.beta, "gamma": setup.gamma}
        command += ["--algorithm", "custom"]
        command += [part for key, value in mixing.items() for part in ("--set", f"scheme.{key}={value!r}")]
    command += ["--eta", repr(setup.eta)]
    command += ["--schedule", setup.schedule] if setup.schedule != "constant" else []
    command += ["--set", f"scheme.period={PERIOD}"] if setup.schedule == "halving" else []
    command += ["--local-steps", str(setup.steps)] if setup.forward or setup.operator else []
    command += ["--anderson", str(setup.anderson)] if setup.anderson else []
    if setup.delays > 1:
        command += ["--stragglers", repr(setup.delays)]
    elif setup.participation < 1:
        command += ["--participation", repr(setup.participation), "--absent", setup.absent]
    command += ["--rounds", str(setup.rounds)]
    note = f"The problem is a function: save the copied Python as {FILE} first." if own else ""
    return shlex.join(command), note
