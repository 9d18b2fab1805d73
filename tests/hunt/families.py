"""Every family, and an attempt at one of its cases. Each module of hunt.cases lists its families in FAMILIES."""

from __future__ import annotations

import pkgutil
import traceback
import warnings
from functools import cache
from importlib import import_module

import hunt.cases
from hunt.family import Family

WRONG = "WRONG"


@cache
def families() -> tuple[Family, ...]:
    """All families, module by module."""
    names = sorted(module.name for module in pkgutil.iter_modules(hunt.cases.__path__))
    return tuple(family for name in names for family in import_module(f"hunt.cases.{name}").FAMILIES)


def attempt(family: Family, seed: int) -> tuple[str, str]:
    """How the case ended, and what was wrong with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return family.check(seed), ""
    except AssertionError as error:
        return WRONG, str(error) or traceback.format_exc(limit=-1)
    except Exception:
        return WRONG, "unexpected " + traceback.format_exc(limit=-2)


def attempts(name: str, seeds: range) -> list[tuple[int, str, str]]:
    """The same for many seeds of the family of that name, in a process that holds one core."""
    import torch

    torch.set_num_threads(1)
    family = next(f for f in families() if f.name == name)
    return [(seed, *attempt(family, seed)) for seed in seeds]
