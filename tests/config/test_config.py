"""Configurations: what is written is read back, what is wrong is named, equal computing has one fingerprint."""

import math
import os
import tomllib
import typing
from dataclasses import replace
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
from resolvent.iteration import registry

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
    if hint == tuple[int, ...]:
        return st.lists(values(int)).map(tuple)
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
        keys["threads"] = st.none() | st.integers(1, sections.MAX_THREADS)
    if "schedule" in keys:
        keys["schedule"] = st.sampled_from(list(registry.parts("schedule")))
    return st.builds(kind, **keys)


SHARES, COUNTS = st.floats(0.01, 0.99), st.integers(1, 9)
ABSENT, ON = st.sampled_from(["hold", "paper"]), st.sampled_from(["u", "mean"])
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "local": st.one_of(section(sections.Best), section(sections.Gradient), st.just(rs.ExactProx()),
                       st.builds(rs.NewtonProx, tol=SHARES), st.builds(rs.GradientProx, COUNTS, st.none() | SHARES),
                       st.builds(rs.GradientSteps, COUNTS, momentum=SHARES)),
    "anderson": st.builds(rs.Anderson, COUNTS, ON, safeguard=st.booleans(), largest=SHARES)
                | st.builds(rs.Anderson, COUNTS, ON, ridge=SHARES, damping=SHARES),
    "participation": st.one_of(st.just(rs.Everyone()), st.builds(rs.Bernoulli, SHARES, absent=ABSENT),
                               st.builds(rs.FixedSize, COUNTS, absent=ABSENT),
                               st.builds(rs.Stragglers, st.floats(1, 99), SHARES, SHARES)),
    "stop": st.builds(rs.Stop, gap=st.none() | SHARES, seconds=st.none() | SHARES)
            | st.builds(rs.Stop, metric=st.just("test_auc"), patience=COUNTS, min_delta=SHARES),
}  # fmt: skip
CONFIGS = st.builds(
    Config,
    problem=st.one_of(*map(section, PROBLEMS)),
    **{name: section(type(getattr(Config(), name))) for name in ("scheme", "run", "store")},
    **PARTS,
)


@given(st.builds(rs.Momentum, SHARES, ON), CONFIGS)
@settings(max_examples=50, deadline=None)
def test_an_acceleration_is_read_back(momentum: rs.Momentum, config: Config) -> None:
    config = replace(config, anderson=rs.Anderson(0), parts=(("accelerate", momentum),))
    assert configs.read(tomllib.loads(configs.dumps(config))) == config


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
    int: (1.5, "1", True, ["1"], math.nan, {}),
    float: ("1", True, math.inf, math.nan, 10**400, [1.0]),
    bool: (1, 0, "true", 1.0),
    str: (1, 1.0, True, ["a"]),
    tuple[str, ...]: (True, [1]),
    tuple[int, ...]: ([1.5], ["a"], [True], "1,", "1,x"),
}


@pytest.mark.parametrize(
    ("name", "key", "hint"),
    [
        (name, key, field.hint)
        for name in configs.names()
        for key, field in (
            {f.key: f for f in registry.fields(problem_sections.LeastSquaresSection)} if name == "problem"
            else configs.keys(name)
        ).items()
        if (name, key) != ("problem", "name")
    ],
)  # fmt: skip
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
NAMES = {"schedule": "harmonic", "metric": "test_auc", "mode": None}


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
        (problem_sections.LeastSquaresSection, name) for name in ("scheme", "local", "anderson", "run", "stop", "store")
    ]
    every += [(kind, "problem") for kind in PROBLEMS]
    found = []
    for kind, name in every:
        hints = typing.get_type_hints(type(getattr(BASE[kind], name)))
        single = [
            key for key, hint in hints.items() if typing.get_origin(hint) is Literal and len(typing.get_args(hint)) == 1
        ]
        found += [(kind, name, key) for key in hints if key not in single and (name, key) != ("stop", "mode")]
    return found


@pytest.mark.parametrize(("kind", "name", "key"), keys())
def test_every_key_that_matters_changes_the_fingerprint(kind: type, name: str, key: str) -> None:
    base = BASE[kind]
    part = getattr(base, name)
    value = NAMES.get(key) or other(typing.get_type_hints(type(part))[key], getattr(part, key))
    changed = replace(base, **{name: replace(part, **{key: value})})
    assert changed != base
    assert (configs.fingerprint(changed) == configs.fingerprint(base)) == (name == "store")


@pytest.mark.parametrize(
    ("kind", "one", "two"),
    [("participation", rs.Bernoulli(0.5), rs.Bernoulli(0.25)), ("participation", rs.FixedSize(1), rs.Everyone()),
     ("local", rs.ExactProx(), rs.NewtonProx()), ("parts", (("accelerate", rs.Momentum(0.5)),), ())],
)  # fmt: skip
def test_every_part_changes_the_fingerprint(kind: str, one: Any, two: Any) -> None:
    assert len({configs.fingerprint(replace(Config(), **{kind: part})) for part in (one, two)}) == 2


def test_a_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    tree = configs.plain(Config(scheme=sections.SchemeSection(eta=0.5)))
    tree["problem"] = dict(reversed(tree["problem"].items()))
    plain = dict(reversed(tree.items()))
    assert configs.fingerprint(configs.read(plain)) == configs.fingerprint(
        Config(scheme=sections.SchemeSection(eta=0.5))
    )


def test_a_fingerprint_is_that_of_what_was_written() -> None:
    assert configs.fingerprint(Config()) == configs.fingerprint_of(configs.plain(Config())) == "c21e4953bc168a08"


def test_an_engine_is_spelled_either_way() -> None:
    assert [configs.read({"run": {"engine": name}}) for name in ("in_process", "in-process")] == [Config()] * 2


@pytest.mark.parametrize(
    ("tree", "words", "part"),
    [({"participation": "0.5"}, {"probability": 0.5}, rs.Bernoulli(0.5)),
     ({"participation": "fixed_size:3:paper"}, {"size": 3, "absent": "paper"}, rs.FixedSize(3, absent="paper")),
     ({"participation": "everyone"}, {"kind": "everyone"}, rs.Everyone()),
     ({"participation": {"kind": "bernoulli", "p": 0.5}}, {"probability": 0.5}, rs.Bernoulli(0.5)),
     ({"participation": "stragglers:9"}, {"kind": "stragglers", "times": 9}, rs.Stragglers(9.0))],
)  # fmt: skip
def test_a_part_is_named_by_words_by_its_kind_or_by_its_key(tree: Any, words: Any, part: Any) -> None:
    assert configs.read(tree).participation == part
    assert configs.read({"participation": words}).participation == part
    assert "kind" not in configs.plain(configs.read(tree))["participation"]


def test_words_take_the_place_of_what_named_a_part_and_leave_the_rest() -> None:
    tree = {"participation": {"probability": 0.3, "absent": "paper"}}
    made = configs.read(configs.with_values(tree, [("participation", "fixed-size:2")]))
    assert made.participation == rs.FixedSize(2, absent="paper")


def test_anderson_has_a_section_of_its_own() -> None:
    for tree in ({"accelerate": "anderson:3"}, {"accelerate": "3"}, {"anderson": {"memory": 3}}):
        made = configs.read(tree)
        assert (made.anderson, made.parts) == (rs.Anderson(3), ())
    refused({"anderson": {"memory": 2}, "accelerate": "momentum:0.5"}, "anderson.memory and accelerate are both given")


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [({"participation": {"close": 0.5}}, "participation.close is given, but everyone has none; it belongs to"),
     ({"participation": {"kind": "trace"}}, "one of everyone, bernoulli, fixed-size, stragglers is needed"),
     ({"participation": {"kind": 0, "probability": 0.5}}, "participation.kind is 0, but one of everyone, bernoulli"),
     ({"meet": {"kind": ""}}, "meet.kind is '', but one of mean, "),
     ({"participation": {"kind": "bernoulli"}}, "participation.probability is missing, but a finite number is needed"),
     ({"participation": {"size": 1, "probability": 0.5}}, "participation.probability and participation.size are both"),
     ({"participation": "bernouli:0.5"}, "everyone, bernoulli:P, fixed-size:N or stragglers:TIMES is needed"),
     ({"participation": "bernoulli"}, "with no values, but bernoulli takes 1 to 2 values (probability, absent)"),
     ({"accelerate": {"kind": "momentum", "theta": 2}}, "accelerate: theta is 2.0, but a number in [0, 1) is needed"),
     ({"local": {"kind": "exact", "steps": 3}}, "local.steps is given, but exact has none"),
     ({"local": {"kind": "gradient-prox", "optimiser": "adam"}}, "local.optimiser"),
     ({"stop": {"patience": 3}}, "stop.patience is 3, but it belongs to stop.metric"),
     ({"scheme": {"schedule": "harmonc"}}, "there is no schedule 'harmonc'; did you mean harmonic?")],
)  # fmt: skip
def test_a_part_that_cannot_be_is_refused_in_one_sentence(tree: Any, sentence: str) -> None:
    refused(tree, sentence)


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


@pytest.mark.parametrize(
    ("asked", "threads"), [("3", 3), ("", os.cpu_count()), ("0", os.cpu_count()), ("2,1", os.cpu_count())]
)
def test_networks_take_the_threads_that_are_asked_for(
    asked: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert experiment.tasks.cores() == threads
