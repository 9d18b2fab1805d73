"""One configuration with several seeds: the runs of networks share their gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from resolvent.engines.joint import Joint
from resolvent.errors import bounded, listed, quoted, refuse, whole
from resolvent.iteration.engine import Engine
from resolvent.iteration.facts import Facts, facts_of, is_problem
from resolvent.iteration.privacy import as_privacy
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.table import as_scheme
from resolvent.local import choice
from resolvent.solving.run import Run
from resolvent.solving.solve import solve

Result = TypeVar("Result")
MAX_SEEDS = 1 << 16


def solve_seeds(problems: Any, scheme: Scheme | str, seeds: Sequence[int], **options: Any) -> list[Run]:
    """`solve` with each of several seeds, one Run per seed; `options` are those of `solve`. In a folder `log` every run
    has its own.

    problems: one that all seeds share, or a list with one per seed, where data or start depend on the seed.

    Networks of one architecture take their local steps together, as if the users of all runs were users of one: where a
    GPU has room, four seeds cost little more than one. On a CPU every run has the bits of `solve` alone; on CUDA sums
    may be taken in another order. Other problems, networks that are not alike, and those whose users take other numbers
    of steps are solved one after the other.
    """
    seeds = as_seeds(seeds)
    each = list(problems) if isinstance(bounded(problems, "problems"), list | tuple) else [problems] * len(seeds)
    if len(each) != len(seeds):
        refuse(
            "problems", f"a list of {len(each)}", f"one for each of the {len(seeds)} seeds is needed, or one for all"
        )
    if "seed" in options:
        refuse("seed", "given", "every run has its own of `seeds`: leave it out")
    if "engine" in options or "recorder" in options:
        refuse("engine", "given", "runs of several seeds have their own: leave engine and recorder out")
    scheme = as_scheme(scheme, options.pop("eta", None))
    options.setdefault("progress", False)

    log = options.pop("log", None)

    def work(problem: Any, seed: int, scheme: Scheme, engine: Engine | str) -> Run:
        own = subfolder(log, f"{scheme.name}-seed-{seed}")
        return solve(problem, scheme, engine=engine, seed=seed, log=own, **options)

    def known(problem: Any) -> Facts:
        facts = facts_of(problem)
        return facts.withholding() if as_privacy(options.get("privacy")).asked else facts

    schemes = [choice.settled(scheme, known(problem)) if is_problem(problem) else scheme for problem in each]
    return side_by_side(each, schemes, [partial(work, *run) for run in zip(each, seeds, schemes, strict=True)])


def as_seeds(seeds: Any) -> list[int]:
    """Several seeds as a list; a number n: 0, 1, ..., n - 1."""
    needed = "a number of seeds, or a list of whole numbers, is needed"
    if isinstance(seeds, int) and not isinstance(seeds, bool) and 0 < seeds <= MAX_SEEDS:
        seeds = range(seeds)
    every = listed(seeds, "seeds", needed)
    if not every:
        refuse("seeds", quoted(seeds), needed)
    if len(every) > MAX_SEEDS:
        refuse("seeds", f"a list of more than {MAX_SEEDS}", "every one of them is a run: give fewer")
    return [whole(seed, "seed", least=0) for seed in every]


def subfolder(log: Any, name: str) -> Any:
    """Of a folder for TensorBoard, the one that a run of this name has; anything else as it is."""
    return Path(log) / re.sub(r"[^\w.,=+ -]+", "-", name) if isinstance(log, str | Path) else log


def side_by_side(
    problems: Sequence[Any], schemes: Sequence[Scheme], work: Sequence[Callable[[Engine | str], Result]]
) -> list[Result]:
    """What each piece of work gives with its engine; the first error that one of them raises is raised at the end."""
    if len(work) > 1 and all(is_problem(problem) and "training" in problem.offers for problem in problems):
        operators = [choice.local_operator(*pair) for pair in zip(schemes, problems, strict=True)]
        networks = [facts_of(problem).problem for problem in problems]
        joint = Joint(networks, operators[0], schemes[0].steady)
        if joint.joins and all(operator == operators[0] for operator in operators):
            pieces = [partial(each, engine) for each, engine in zip(work, joint.engines, strict=True)]
            results = joint.run(pieces)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return results  # type: ignore[return-value]
    return [each("in_process") for each in work]
