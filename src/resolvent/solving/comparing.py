"""Several schemes on one problem, each with several seeds: a table of means and spreads, and one picture."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from resolvent.errors import bounded, quoted, refuse
from resolvent.iteration.scheme import Scheme
from resolvent.solving.prepare import prepare
from resolvent.solving.progress import Bar, wanted
from resolvent.solving.run import Run
from resolvent.solving.seeds import as_seeds, solve_seeds, subfolder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SCHEMES = "a list of schemes such as rs.fedpi(0.1), or a dictionary of them by name, is needed"


class Comparison:
    """What `compare` hands back: `runs`, a list of Runs for each name, with a table and a picture of them."""

    def __init__(self, runs: Mapping[str, list[Run]]) -> None:
        self.runs = dict(runs)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per name: mean and standard deviation over the seeds (with n - 1, NaN for one seed) of what the last
        rows of the histories say: the gap, or the value; metrics on held-out data; all bytes, and seconds."""
        return resolve_name("resolvent.report.plotting:table")(self.runs)  # type: ignore[no-any-return]

    def plot(self, y: Any = None, x: str = "round", ax: Any = None) -> Figure:
        """The runs' curves as `rs.plot` draws them: the median of the seeds in a band from the least to the most."""
        return resolve_name("resolvent.report.plotting:plot")(self.runs, y, x, ax)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return self.table.to_string(float_format="{:.3g}".format)

    def _repr_html_(self) -> str:
        return resolve_name("resolvent.report.plotting:compared_html")(self)  # type: ignore[no-any-return]


def compare(problem: Any, schemes: Any, seeds: int | Sequence[int] = 3, **options: Any) -> Comparison:
    """Run several schemes on one problem, each with all seeds; `options` are those of `solve`, for all of them.

        rs.compare(problem, {"FedAvg": rs.fedavg(0.1, steps=5), "FedPi": rs.fedpi(0.1)}, rounds=50, start="random")

    schemes: a list, or a dictionary by name. In place of a scheme may stand its own options of `solve`:
    {"scheme": rs.fedpi(0.1), "send": rs.TopK(0.1)}. problem: one for all seeds, or a list with one per seed.
    The seed draws minibatches, who takes part, and what else is random in a round; with start="random" also the initial
    weights of a network. Where nothing is random, one seed is enough.
    """
    entries, seeds = _entries(schemes), as_seeds(seeds)
    given = [options | entry for _, entry in entries]
    for each in given:  # what cannot be run is said before the first one runs
        first = problem[0] if isinstance(bounded(problem, "problem"), list | tuple) and problem else problem
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepare(first, **each)
    runs: list[list[Run]] = []
    for label, each in zip((label for label, _ in entries), given, strict=True):
        each["log"] = subfolder(each.get("log"), label or f"{len(runs) + 1}")
        total = each.get("rounds", 100) * len(seeds)
        with _shown(each, label or str(each["scheme"]), total) as shown, _once():
            runs.append(solve_seeds(problem, seeds=seeds, **shown))
    apart = resolve_name("resolvent.report.plotting:names")([those[0].config for those in runs])
    return Comparison({label or apart[k]: runs[k] for k, (label, _) in enumerate(entries)})


def _entries(schemes: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names, where there are any, and options of `solve`."""
    if isinstance(schemes, Scheme | str) or (isinstance(schemes, Mapping) and "scheme" in schemes):
        schemes = [schemes]
    if not isinstance(bounded(schemes, "schemes"), Mapping | list | tuple) or not schemes:
        refuse("schemes", quoted(schemes), SCHEMES)
    pairs = list(schemes.items()) if isinstance(schemes, Mapping) else [("", each) for each in schemes]
    entries = []
    for name, each in pairs:
        entry = dict(bounded(each, "schemes")) if isinstance(each, Mapping) else {"scheme": each}
        if not isinstance(entry.get("scheme"), Scheme | str):
            argument, given = (
                (f"schemes[{name!r}]", quoted(each)) if name else ("schemes", f"{quoted(each)} among them")
            )
            options = '{"scheme": rs.fedpi(0.1), "send": rs.TopK(0.1)}'
            refuse(argument, given, f"a scheme such as rs.fedpi(0.1), or {options}, is needed")
        entries.append((str(name), entry))
    return entries


@contextmanager
def _shown(options: dict[str, Any], title: str, rounds: int) -> Iterator[dict[str, Any]]:
    """The options with one bar for all seeds, where somebody looks: every round of every seed moves it."""
    if not wanted(options.get("progress")):
        yield options
        return
    bar, own = Bar(title, rounds, True), options.get("callback")

    def counted(happened: Any) -> Any:
        bar.advance(time.perf_counter(), lambda: "")
        return None if own is None else own(happened)

    try:
        yield options | {"progress": False, "callback": counted}
    finally:
        bar.close()


@contextmanager
def _once() -> Iterator[None]:
    """What is said of every seed alike is said once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for category, text in dict.fromkeys((each.category, str(each.message)) for each in caught):
        warnings.warn(text, category, stacklevel=4)
