"""Resolvent: federated learning by operator splitting. One scheme, every algorithm.

>>> import resolvent as rs
>>> run = rs.solve(rs.make_least_squares(users=5, dim=10, rows=50), rs.fedpi(eta=0.02), rounds=100)
>>> float(run.history.gap.iloc[-1]) < 1e-20
True

The names are in `resolvent.face`, which is imported, with torch, when the first of them is asked for.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # those below by name as well, for the pages of the API
    from resolvent.experiment.opening import open_run
    from resolvent.face import *  # noqa: F403 (its __all__ says which)
    from resolvent.report.plotting import plot as plot
    from resolvent.solving.comparing import compare as compare
    from resolvent.solving.seeds import solve_seeds as solve_seeds

    open = open_run

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}") is not None:  # `from resolvent import runs` asks here first
        return import_module(f"{__name__}.{name}")
    return getattr(import_module("resolvent.face"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("resolvent.face").__all__})
