"""Configurations: what is written is read back, what is wrong is named, equal computing has one fingerprint."""

import dataclasses
import math
import tomllib
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resolvent as rs
from resolvent import config as configs
from resolvent import experiment
from resolvent.config import Config, problem_sections, sections
from resolvent.errors import InputError

PROBLEMS = (
    problem_sections.LeastSquaresSection,
    problem_sections.LogisticSection,
    problem_sections.TableSection,
    problem_sections.OwnSection,
)
WORDS = st.text(st.characters(codec="utf-8"))


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a key of this type may have."""
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    if hint == tuple[str, ...]:
        return st.lists(WORDS).map(tuple)
    if options := typing.get_args(hint):
        return st.one_of(*map(values, options))
    return {
        int: st.integers(-(2**63), 2**63),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: WORDS,
        type(None): st.none(),
    }[hint]


def section(kind: type) -> st.SearchStrategy[Any]:
    keys = {name: values(hint) for name, hint in typing.get_type_hints(kind).items()}
    if kind is problem_sections.OwnSection:
        keys["name"] = WORDS.map(lambda path: f"{path}.py:function")
    if "threads" in keys:
        keys["threads"] = st.none() | st.integers(1, sections.MOST_THREADS)
    return st.builds(kind, **keys)


CONFIGS = st.builds(
    Config,
    problem=st.one_of(*map(section, PROBLEMS)),
    **{f.name: section(type(getattr(Config(), f.name))) for f in fields(Config) if f.name != "problem"},
)


@given(CONFIGS)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(config: Config) -> None:
    assert configs.read(tomllib.loads(configs.dumps(config))) == config
    assert configs.read(configs.plain(config)) == config


def test_what_is_written_to_a_file_is_read_back(tmp_path: Path) -> None:
    config = Config(
        problem=problem_sections.TableSection(
            "logistic", data='übung "1"\x7f\t\\ 数据.csv', target="ä", positive=1e-300
        )
    )
    (tmp_path / "config.toml").write_text(configs.dumps(config), encoding="utf-8")
    assert configs.read(configs.load(tmp_path / "config.toml")) == config


def test_nothing_given_is_every_default() -> None:
    assert configs.read({}) == Config()
    assert configs.read({"problem": {"name": "logistic"}}).problem == problem_sections.LogisticSection()


# --- types and names -------------------------------------------------------------------------------------------------


def refused(tree: Any, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        configs.read(tree)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("scheme.etta", "eta"), ("scheme.algoritm", "algorithm"), ("run.round", "rounds"), ("anderson.memmory", "memory"),
     ("problem.user", "users"), ("participation.probabilty", "probability"), ("local.step", "steps"),
     ("stop.residuals", "residual"), ("store.tensorbord", "tensorboard")],
)  # fmt: skip
def test_an_unknown_key_has_a_nearest(wrong: str, near: str) -> None:
    name, key = wrong.split(".")
    refused({name: {key: 1}}, f"there is no key {wrong}; did you mean {near}?")


def test_what_is_near_nothing_gets_the_list() -> None:
    refused({"run": {"qqq": 1}}, "there are rounds, seed, every, average, engine, threads")
    refused({"zzz": {}}, "there are problem, scheme, local, anderson")
    refused({"schema": {}}, "did you mean scheme?")
    refused({"problem": {"name": "logistics"}}, "did you mean logistic?")


WRONG: dict[type, tuple[Any, ...]] = {
    int: (1.5, "1", True, [1], math.nan, {}),
    float: ("1", True, math.inf, math.nan, 10**400, [1.0]),
    bool: (1, 0, "true", 1.0),
    str: (1, 1.0, True, ["a"]),
    tuple[str, ...]: (True, [1]),
}


@pytest.mark.parametrize(
    ("name", "key", "hint"),
    [
        (f.name, key, hint)
        for f in fields(Config)
        for key, hint in typing.get_type_hints(type(getattr(Config(), f.name))).items()
        if (f.name, key) != ("problem", "name")
    ],
)
def test_every_key_has_a_type(name: str, key: str, hint: Any) -> None:
    options = [option for option in (typing.get_args(hint) or (hint,)) if option is not type(None)]
    literal = [option for option in (hint, *options) if typing.get_origin(option) is Literal]
    wrong = ("nothing like it", 7.5, True) if literal and float not in options else ()
    for option in options:
        wrong += WRONG.get(option, ())
    assert wrong
    for value in wrong:
        refused(
            {name: {key: value}}, f"{name}.{key} is {str(value)[:3] if not isinstance(value, str) else repr(value)}"
        )


def test_whole_numbers_do_for_floats_and_names_are_written_either_way() -> None:
    assert repr(configs.read({"scheme": {"eta": 1}}).scheme.eta) == "1.0"
    assert configs.read({"scheme": {"schedule": "inverse_sqrt"}}).scheme.schedule == "inverse-sqrt"
    assert configs.read({"problem": {"name": "least_squares"}}) == Config()


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1e-3", 1e-3), ("-2.5", -2.5), ("true", True), ("auto", "auto"), ('"1"', "1"), ("", ""),
     ("a = b", "a = b"), ("9" * 5000, "9" * 5000), ("dirichlet:0.3", "dirichlet:0.3"), ("../a9a.gz", "../a9a.gz"),
     ("x\ny = 1", "x\ny = 1")],
)  # fmt: skip
def test_values_on_the_command_line(text: str, value: Any) -> None:
    made = configs.literal(text)
    assert made == value
    assert type(made) is type(value)


def test_settings_go_into_their_sections_and_leave_the_tree_alone() -> None:
    tree = {"scheme": {"eta": 1.0}}
    made = configs.with_values(tree, [configs.parse("scheme.eta = 2"), configs.parse("run.rounds=3")])
    assert made == {"scheme": {"eta": 2}, "run": {"rounds": 3}}
    assert tree == {"scheme": {"eta": 1.0}}


# --- fingerprints ----------------------------------------------------------------------------------------------------

BASE = {
    problem_sections.LeastSquaresSection: Config(),
    problem_sections.LogisticSection: Config(problem=problem_sections.LogisticSection()),
    problem_sections.TableSection: Config(problem=problem_sections.TableSection("logistic", "a.csv")),
    problem_sections.OwnSection: Config(problem=problem_sections.OwnSection("a.py:f")),
}
CHANGED = {int: (7,), float: (0.123,), bool: (True, False), str: ("b.py:g",)}


def other(hint: Any, value: Any) -> Any:
    """Another value of a key."""
    options = [option for option in (typing.get_args(hint) or (hint,)) if option is not type(None)]
    for option in options:
        choices = typing.get_args(option) or (() if option in CHANGED else (option,))
        for choice in choices or CHANGED[option]:
            if choice != value:
                return choice
    raise AssertionError(f"{hint} has one value")


def keys() -> list[tuple[type, str, str]]:
    every: list[tuple[type, str]] = [
        (problem_sections.LeastSquaresSection, f.name) for f in fields(Config) if f.name != "problem"
    ]
    every += [(kind, "problem") for kind in PROBLEMS]
    found = []
    for kind, name in every:
        hints = typing.get_type_hints(type(getattr(BASE[kind], name)))
        single = [
            key for key, hint in hints.items() if typing.get_origin(hint) is Literal and len(typing.get_args(hint)) == 1
        ]
        found += [(kind, name, key) for key in hints if key not in single]
    return found


@pytest.mark.parametrize(("kind", "name", "key"), keys())
def test_every_key_that_matters_changes_the_fingerprint(kind: type, name: str, key: str) -> None:
    base = BASE[kind]
    part = getattr(base, name)
    changed = replace(
        base, **{name: replace(part, **{key: other(typing.get_type_hints(type(part))[key], getattr(part, key))})}
    )
    assert changed != base
    assert (configs.fingerprint(changed) == configs.fingerprint(base)) == (name == "store")


def test_a_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    tree = dataclasses.asdict(Config(scheme=sections.SchemeSection(eta=0.5)))
    tree["problem"] = dict(reversed(tree["problem"].items()))
    plain = {name: {k: v for k, v in part.items() if v is not None} for name, part in reversed(tree.items())}
    assert configs.fingerprint(configs.read(plain)) == configs.fingerprint(
        Config(scheme=sections.SchemeSection(eta=0.5))
    )


FIRST: dict[str, tuple[dict[str, Any], str]] = {
    "defaults": ({}, "b57cd2f8a18808a8"),
    "logistic": ({"problem": {"name": "logistic"}}, "2b5a3f2f786ec1bd"),
    "images": ({"problem": {"name": "mnist"}}, "ba59751a92a54dc3"),
    "a table": ({"problem": {"name": "logistic", "data": "a.csv", "sha256": "0"}}, "e2eb95ef4e6e0ba3"),
    "own": ({"problem": {"name": "a.py:f"}}, "ef749763a295abf2"),
    "every key": (
        {
            "problem": {"users": 3, "dim": 4, "rows": 5, "noise": 0.1, "shift": 1.0, "seed": 1},
            "scheme": {"algorithm": "custom", "eta": 0.1, "schedule": "halving", "period": 7, "alpha": 1.0,
                       "beta": 1.5, "gamma": 0.5},
            "local": {"kind": "gradient", "steps": 3, "lr": 0.1, "batch": 2, "momentum": 0.5},
            "anderson": {"memory": 2, "on": "mean", "safeguard": False},
            "participation": {"size": 2, "absent": "paper"},
            "run": {"rounds": 9, "seed": 4, "every": 2, "average": "suffix", "engine": "debug", "threads": 1},
            "stop": {"gap": 1e-9, "residual": 1e-8, "certificates": 1e-7, "seconds": 60.0},
            "store": {"checkpoint": 1.0},
        },
        "e6304758293b2bb9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_runs_of_the_first_version_are_found_again(name: str) -> None:
    tree, known = FIRST[name]
    assert configs.fingerprint(configs.read(tree)) == known


def test_an_engine_is_spelled_either_way() -> None:
    spelled = [configs.read({"run": {"engine": name}}) for name in ("in_process", "inprocess")]
    assert spelled[0] == spelled[1] == Config()
    assert configs.fingerprint(spelled[0]) == FIRST["defaults"][1]


def test_defaults_are_those_of_the_library() -> None:
    small = {"name": "least-squares", "users": 2, "dim": 2, "rows": 4}
    for scheme, local, made in (
        ("fedavg", {"kind": "gradient"}, rs.GradientSteps()),
        ("fedprox", {"kind": "gradient"}, rs.GradientProx()),
        ("fedprox", {"kind": "newton"}, rs.NewtonProx()),
    ):
        tree = {"problem": small, "scheme": {"algorithm": scheme}, "local": local}
        assert experiment.build(configs.read(tree)).scheme.local == made
    built = experiment.build(configs.read({"problem": small, "anderson": {"memory": 3}, "stop": {"gap": 0.1}}))
    assert (built.anderson, built.participation, built.stop) == (rs.Anderson(3), rs.Everyone(), rs.Stop(0.1))


SMALL = {"name": "least-squares", "users": 2, "dim": 2, "rows": 4}


def fingerprint(**tree: Any) -> str:
    return experiment.build(configs.read({"problem": SMALL} | tree)).fingerprint


def test_what_is_computed_alike_has_one_fingerprint() -> None:
    assert fingerprint() == fingerprint(scheme={"eta": "auto"}) == fingerprint(scheme={"algorithm": "FedPi"})
    assert fingerprint() == fingerprint(run={"threads": 1}) == fingerprint(store={"tensorboard": True})
    assert fingerprint() != fingerprint(scheme={"eta": 0.1})
    assert fingerprint() != fingerprint(run={"seed": 1})
    assert fingerprint(scheme={"algorithm": "reflect-prox"}) == fingerprint(
        scheme={"algorithm": "reflect_prox", "eta": 1e-5}
    )
    built = experiment.build(configs.read({"problem": SMALL, "scheme": {"algorithm": "fedprox"}}))
    assert experiment.build(built.config).fingerprint == built.fingerprint
    assert experiment.build(built.config).config == built.config
