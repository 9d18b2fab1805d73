"""The section [federation] of federation.toml, as the engine takes it. What is wrong in the file is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from resolvent.config import Config, nearest
from resolvent.data.sites import Terms
from resolvent.engines.flower.masking import FEWEST
from resolvent.engines.flower.rule import Limits, Rule
from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration.penalties import Penalty
from resolvent.iteration.registry import within
from resolvent.problems.penalty_words import parse_penalty

KNOWN_AT_ONCE = ("residual", "stationarity", "consensus")
"""Columns that the server computes by itself, so that a run can stop by them."""


def check(config: Config) -> None:
    """Refuse now what would be refused, or would never work, once the run has begun."""
    with within("federation"):
        for read in (rule_of, limits_of, weights_of, penalty_of):
            read(config.problem)
    terms_of(config)
    if getattr(config.problem, "secure", False):
        _check_secure(config)
    if config.run.metrics is not None:
        refuse("run.metrics", config.run.metrics, "a federation's metrics are those of metrics(...) in user.py")
    stop = config.stop
    if stop.gap is not None:
        refuse("stop.gap", stop.gap, "nobody in a federation knows f*: stop by stop.certificates instead")
    if stop.metric not in (None, *KNOWN_AT_ONCE):
        later = "users report metrics of a model with their next answers, too late to stop by them"
        refuse("stop.metric", quoted(stop.metric), f"{later}: stop by stop.certificates, residual or seconds instead")


def with_data(section: dict[str, Any], given: Any) -> dict[str, Any]:
    """[federation] with the keys of [data], which say what the sites' tables become."""
    known = [field.name for field in fields(Terms) if field.name != "seed"]
    if not isinstance(given, dict):
        refuse("data", quoted(given), "a section [data] with keys is needed")
    for key in given:
        if key not in known:
            raise InputError(f"there is no key data.{key}{nearest(key, known)}")
    if not given.get("target"):
        raise InputError("data.target is missing; name the column to predict")
    return section | {"table": "auto"} | {"table" if key == "problem" else key: given[key] for key in given}


def terms_of(config: Config) -> Terms | None:
    """What the sites' tables become; None where user.py makes their problems."""
    section: Any = config.problem
    if section.table is None:
        return None
    own = {f.name: getattr(section, f.name) for f in fields(Terms) if f.name not in ("problem", "seed")}
    own = {name: value for name, value in own.items() if value is not None}
    terms = Terms(**own, problem=section.table, seed=config.run.seed)
    terms.check()
    return terms


def _check_secure(config: Config) -> None:
    """Refuse what needs more of users than sums."""
    section: Any = config.problem
    if section.curvature:
        refuse("federation.curvature", True, "gradients and Hessians would show a user's data: leave it out")
    if section.table is not None:
        refuse("federation.secure", True, "sites tell the means and spreads of their tables before the first round, "
               "which are no sums over sites: take user.py instead of [data], or leave out `secure`")  # fmt: skip
    for name, part in config.parts:
        if name in ("send", "down") and part.compresses:
            refuse(name, quoted(part), "a secure sum adds up whole vectors: leave it out")
    if section.users < FEWEST:
        refuse("federation.users", section.users, f"a secure sum needs {FEWEST}: of two, each could subtract its own")


def rule_of(section: Any) -> Rule:
    """When rounds close."""
    return Rule(section.close, section.timeout, section.min_users, section.patience)


def limits_of(section: Any) -> Limits:
    """What answers must keep to."""
    return Limits(section.max_norm, section.max_move, section.max_weight)


def weights_of(section: Any) -> str | dict[str, float]:
    """ "rows", "users", or numbers by name: "site-0=1, site-1=2"."""
    text: str = section.weights
    if "=" not in text:
        return text
    try:
        pairs = [part.partition("=") for part in text.split(",")]
        return {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        refuse("federation.weights", quoted(text), '"rows", "users" or "site-0=1, site-1=2" is needed')


def penalty_of(section: Any) -> Penalty | None:
    """g, which is applied where users meet."""
    return None if section.penalty is None else parse_penalty(section.penalty)
