"""What a configuration describes, built: the arguments of `solve`, and what a run says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch

import resolvent
from resolvent import config as configs
from resolvent.config import Config
from resolvent.config.sections import FLOWER, Gradient, SchemeSection
from resolvent.errors import InputError, quoted, refuse, whole
from resolvent.experiment.tasks import Task, task
from resolvent.iteration import registry, schedules
from resolvent.iteration.acceleration import Acceleration
from resolvent.iteration.engine import Engine
from resolvent.iteration.facts import Facts, facts_of
from resolvent.iteration.meeting import as_meet
from resolvent.iteration.participation import Participation
from resolvent.iteration.privacy import Privacy, UserPrivacy, as_privacy
from resolvent.iteration.registry import within
from resolvent.iteration.scheme import Number, Scheme
from resolvent.iteration.sending import as_send
from resolvent.iteration.table import TABLE, Row, named
from resolvent.local.choice import settled
from resolvent.local.operators import as_operator
from resolvent.solving.checking import check
from resolvent.solving.evaluating import evaluations
from resolvent.solving.metrics import NAMED
from resolvent.solving.private import chance, check_ending, check_private, private_mean
from resolvent.solving.stopping import Stop
from resolvent.theory.explain import Explanation, explain

CUSTOM = "custom"


@dataclass(frozen=True)
class Experiment:
    """A configuration with nothing left open, and what it describes."""

    config: Config
    fingerprint: str
    task: Task
    scheme: Scheme
    anderson: Acceleration
    """The acceleration, Anderson's or another."""
    participation: Participation
    stop: Stop | None
    parts: dict[str, Any] = field(default_factory=dict)
    """Other parts of the round, by the keywords of `solve`."""
    engine: Engine | None = None
    """One that is there already, instead of the one that the configuration names."""

    @cached_property
    def explanation(self) -> Explanation:
        """What it solves: made once, told before the run, stored with it and passed to `solve`."""
        return explain(self.scheme, self.task.problem, self.participation, self.anderson, **self.parts)

    @property
    def private(self) -> bool:
        """Whether nothing may be told of users' rows but what is accounted for."""
        return "privacy" in self.parts

    @property
    def name(self) -> str:
        """What its runs are called."""
        problem = self.config.problem.name.rpartition("/")[2].partition(".py:")[0]
        return f"{self.config.scheme.algorithm.replace('_', '-')}-{problem}"


def build(config: Config, ready: Task | None = None) -> Experiment:
    """Build everything, checked; `ready` is the problem, where it is made already.

    From here on torch has the run's threads: what is computed before the first round has the same bits when the run is
    resumed.
    """
    made = task(config.problem, config.run.seed, config.run.threads) if ready is None else ready
    resolved = _resolved(config, made)
    torch.set_num_threads(resolved.run.threads or 1)
    run, parts = resolved.run, dict(resolved.parts)
    built = Experiment(
        config=resolved,
        fingerprint=fingerprint(resolved),
        task=made,
        scheme=settled(_scheme(resolved), _known(made, resolved)),
        anderson=parts.pop("accelerate", resolved.anderson),
        participation=resolved.participation,
        stop=None if resolved.stop == Stop() else resolved.stop,
        parts=parts,
    )
    privacy, others = as_privacy(parts.get("privacy")), {k: v for k, v in parts.items() if k != "privacy"}
    check(
        _known(made, config), built.scheme, built.participation, run.rounds, run.every, run.average, run.seed, **others
    )
    if privacy.asked:
        _check_private(privacy, built)
    if run.metrics is not None:
        _check_metrics(run.metrics, run.engine, made)
    return built


def _known(made: Task, config: Config) -> Facts:
    """What a scheme may be settled by: in a private run nothing that is computed from users' rows, nor their number."""
    facts = facts_of(made.problem)
    return facts.withholding() if as_privacy(dict(config.parts).get("privacy")).asked else facts


def _check_private(privacy: Privacy, built: Experiment) -> None:
    """Refuse what is not private, before a folder is made."""
    facts, parts = facts_of(built.task.problem).withholding(), built.parts
    others = {name: as_send(parts.get(name), name) for name in ("send", "down")} | {"accelerate": built.anderson}
    check_private(privacy, facts, built.scheme, built.participation, as_meet(parts.get("meet")), others)
    check_ending(privacy, built.stop, {"test": built.task.test})
    if isinstance(privacy, UserPrivacy):
        private_mean(privacy, facts, chance(built.participation, built.scheme), built.config.run.rounds, None)


def _check_metrics(names: tuple[str, ...], engine: str, made: Task) -> None:
    """Refuse metrics that cannot be computed, before a folder is made."""
    asked = ",".join(names)
    for name in names or ("",):
        if name not in NAMED:
            raise InputError(f"there is no metric {name!r}{configs.nearest(name, NAMED)}")
    if engine == FLOWER:
        refuse("run.metrics", quoted(asked), "users of a federation measure their own held-out data: leave it out")
    if made.test is None and "inspect" not in made.problem.offers:
        refuse("run.metrics", quoted(asked), "held-out rows are needed: give --test or --test-users")
    with within("run"):
        evaluations(facts_of(made.problem), test=made.test, metrics=names)


def _resolved(config: Config, made: Task) -> Config:
    """The configuration with nothing left open: reading it back computes the same."""
    scheme = replace(config.scheme, algorithm=algorithm(config.scheme.algorithm))
    row = TABLE.get(scheme.algorithm)
    tilted = row is not None and row.local is not None and not row.forward
    own = _local(replace(config, scheme=scheme), row) if tilted else None
    eta = None if own is None else own.own_eta(_known(made, config))  # SCAFFOLD's is k lr
    if scheme.eta is None and eta is not None:
        scheme = replace(scheme, eta=eta)
    lr = config.local.lr if isinstance(config.local, Gradient) else None
    scheme = replace(scheme, eta=_eta(scheme, lr, made, "privacy" in dict(config.parts)))
    threads = made.threads if config.run.threads is None else whole(config.run.threads, "run.threads")
    return replace(config, problem=made.section, scheme=scheme, run=replace(config.run, threads=threads))


def fingerprint(config: Config) -> str:
    """The same for configurations that this version computes alike."""
    return f"{resolvent.__version__}-{configs.fingerprint(config)}"


def algorithm(name: str) -> str:
    """An algorithm's name in the table, however it was written."""
    plain = name.lower().replace("-", "_")
    if plain != CUSTOM and plain not in TABLE:
        raise InputError(f"there is no algorithm {name!r}{configs.nearest(plain, (*TABLE, CUSTOM))}")
    return plain


def _eta(scheme: SchemeSection, lr: float | None, made: Task, private: bool) -> float | Literal["auto"]:
    """What was asked for; else found while running where that solves the same problem, else what is customary."""
    if scheme.eta is not None:
        return scheme.eta
    row = TABLE.get(scheme.algorithm)
    if row is not None and row.forward and lr is not None:
        return lr  # gradient steps on f itself: their size is eta
    if private:
        raise InputError("scheme.eta is missing; in a private run it is not found from users' data: give --eta")
    exact = row is not None and row.exact
    if exact and made.small is not None:
        return made.small
    if exact and scheme.schedule == "constant" and made.problem.convex:
        return "auto"
    if made.eta is None:
        raise InputError(f"scheme.eta is missing, and {scheme.algorithm} cannot find one by itself; give --eta")
    return made.eta


def _scheme(config: Config) -> Scheme:
    s, eta = config.scheme, config.scheme.eta
    if eta == "auto" and s.schedule != "constant":
        refuse("scheme.schedule", repr(s.schedule), 'eta = "auto" finds its own: give a number for eta, or no schedule')
    step: Number | str = "auto" if eta == "auto" else schedules.by_name(s.schedule, eta, s.period)
    mixing = {"alpha": s.alpha, "beta": s.beta, "gamma": s.gamma}
    if s.algorithm == CUSTOM:
        missing = [f"scheme.{name}" for name, value in mixing.items() if value is None]
        if missing:
            raise InputError(f'the algorithm "custom" needs {", ".join(missing)}; give them with --set')
        return Scheme(**mixing, eta=step, local=_local(config, None), name="custom")  # type: ignore[arg-type]
    row = TABLE[s.algorithm]
    given = [f"scheme.{name}" for name, value in mixing.items() if value is not None and name not in row.free]
    if given:
        raise InputError(f'{", ".join(given)} can be set for the algorithm "custom" only, but it is {s.algorithm!r}')
    free = {name: mixing[name] for name in row.free if mixing[name] is not None}
    return named(s.algorithm, step, _local(config, row), **free)  # type: ignore[arg-type]


def _local(config: Config, row: Row | None) -> Any:
    """The local operator; None where the problem chooses the best one."""
    local, algorithm, forward = config.local, config.scheme.algorithm, row is not None and row.forward
    if isinstance(local, Gradient):
        if forward and local.lr not in (None, config.scheme.eta):
            refuse("local.lr", local.lr, f"the steps of {algorithm} are eta: give --eta instead")
        with within("local"):
            return local.operator(forward) if row is None or row.local is None else row.operator(**local.given(forward))
    operator = as_operator(local)
    if operator.forward != forward and algorithm != CUSTOM:
        kind, takes = registry.described("local", local)["kind"], "gradient steps" if forward else "a prox"
        refuse("local.kind", quoted(kind), f"{algorithm} takes {takes}: leave it out")
    return operator
