"""Private runs: what they compute, what they spend, and that nothing else of users' rows is stored or shown."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from command_line import resolvent
from resolvent import runs
from resolvent.iteration import accountant, checkpoint, private_mean
from resolvent.iteration.meeting import Gathering, Met
from resolvent.iteration.private_mean import PrivateMean, Spent

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

QUIET: dict[str, Any] = {"noise": 1e-15, "delta": 1e-3}
"""With `clip` 1e3: nothing is cut, and noise is of the size of round-off."""


def squares(users: int = 6, d: int = 3, seed: int = 0) -> rs.LeastSquares:
    rng = np.random.default_rng(seed)
    return rs.LeastSquares(rng.standard_normal((users, 8, d)), rng.standard_normal((users, 8)))


def logistic(users: int = 6) -> rs.Logistic:
    rng = np.random.default_rng(1)
    return rs.Logistic(rng.standard_normal((users, 9, 3)), np.sign(rng.standard_normal((users, 9))), reg=0.3)


# --- what they compute -----------------------------------------------------------------------------------------------

ROWS: dict[str, tuple[rs.Scheme, dict[str, Any]]] = {
    "fedavg": (rs.fedavg(0.02, steps=3), {}),
    "batches": (rs.fedavg(0.01, local=rs.GradientSteps(2, batch=3)), {}),
    "fedprox": (rs.fedprox(0.1), {}),
    "fedrp": (rs.fedrp(0.1), {}),
    "fedexprox": (rs.fedexprox(0.1, 1.3), {}),
    "fednova": (rs.fednova(0.01, (1, 2, 3, 4, 5, 6)), {}),
    "reflect_prox": (rs.reflect_prox(0.1), {}),
    "reflect_gradient": (rs.reflect_gradient(0.02), {}),
    "fedpi": (rs.fedpi(0.1), {}),
    "fedsplit": (rs.fedsplit(0.1), {}),
    "feddyn": (rs.feddyn(0.1), {}),
    "fedadmm": (rs.fedadmm(0.1), {}),
    "fedpd": (rs.fedpd(0.1), {}),
    "scaffold": (rs.scaffold(0.02, 4), {}),
    "scaffnew": (rs.scaffnew(0.02, 4), {}),
    "adam": (rs.fedavg(0.02), {"accelerate": rs.ServerAdam(0.05)}),
    "yogi": (rs.fedprox(0.1), {"accelerate": rs.ServerYogi(0.05)}),
    "adagrad": (rs.fedrp(0.1), {"accelerate": rs.ServerAdagrad(0.05)}),
    "momentum": (rs.scaffold(0.02, 4), {"accelerate": rs.Momentum(0.5, on="mean")}),
    "anderson": (rs.fedavg(0.02, steps=3), {"anderson": rs.Anderson(3, on="mean")}),
    "average": (rs.fedpi(0.1), {"average": "suffix"}),
    "penalty": (rs.fedpi(0.1), {"penalty": rs.L1(0.2)}),
    "penalty_avg": (rs.fedavg(0.02), {"penalty": rs.L1(0.2)}),
    "schedule": (rs.fedprox(rs.schedules.harmonic(0.3)), {}),
}


@pytest.mark.parametrize("problem", [squares(), logistic()], ids=["squares", "logistic"])
@pytest.mark.parametrize("name", ROWS)
def test_without_noise_and_with_nothing_cut_it_is_the_run_without_privacy(name: str, problem: Any) -> None:
    scheme, more = ROWS[name]
    plain = rs.solve(problem, scheme, rounds=25, **more)
    private = rs.solve(problem, scheme, rounds=25, privacy=rs.UserPrivacy(1e3, **QUIET), **more)
    scale = float(plain.model.norm()) + 1
    near = 1e-6 if name == "anderson" else 1e-10  # whose weights are those of a nearly singular system
    assert float((private.model - plain.model).norm()) < near * scale
    assert private.status == "finished"


@pytest.mark.parametrize("scheme", [rs.fedavg(0.02, steps=2), rs.fedprox(0.1), rs.fedrp(0.1)], ids=str)
def test_samples_are_averaged_over_the_number_that_is_expected(scheme: rs.Scheme) -> None:
    """A plain loop, also through rounds in which nobody comes: with 6 users at 0.2, one in four."""
    problem, who = squares(), rs.Bernoulli(0.2, absent="paper")
    found = rs.solve(problem, scheme, rounds=30, participation=who, privacy=rs.UserPrivacy(1e3, **QUIET), seed=4)
    A, b = (torch.stack(x) for x in zip(*(problem.rows.one(i) for i in range(6)), strict=True))
    H, g = A.transpose(1, 2) @ A, (A.transpose(1, 2) @ b.unsqueeze(2)).squeeze(2)
    u, eta, empty = torch.zeros(3, dtype=torch.float64), scheme.eta_at(0), 0
    for t in range(30):
        present = who.present(4, t, 6)
        assert present is not None
        empty += not len(present)
        step = torch.zeros_like(u)
        for i in present.tolist():
            if scheme.forward:
                p = u.clone()
                for _ in range(2):
                    p = p - eta * (H[i] @ p - g[i])
            else:
                p = torch.linalg.solve(torch.eye(3, dtype=torch.float64) + eta * H[i], u + eta * g[i])
            step += scheme.alpha(0) * (p - u)
        u = u + step / (0.2 * 6)
    assert empty > 2
    torch.testing.assert_close(found.model, u, rtol=1e-9, atol=1e-9)


def test_an_empty_round_has_noise_as_any_other() -> None:
    seen: list[Tensor] = []
    who = rs.Bernoulli(1e-6, absent="paper")
    privacy = rs.UserPrivacy(1.0, noise=1.0, delta=1e-3)
    rs.solve(squares(), rs.fedavg(0.02), 5, participation=who, privacy=privacy, callback=lambda r: seen.append(r.model))
    assert all(float((b - a).norm()) > 0 for a, b in itertools.pairwise(seen))


def network(users: int = 4, **more: Any) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 5), *more.pop("layers", []), torch.nn.Tanh(), torch.nn.Linear(5, 2)]
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((7, 3)).astype("f4"), rng.integers(0, 2, 7)) for _ in range(users)]
    return rs.Neural(torch.nn.Sequential(*layers), data, torch.nn.functional.cross_entropy, weights=[1] * users, **more)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedpi", "scaffold"])
def test_networks(name: str) -> None:
    """In single precision; noise changes the model by as much as it must."""
    prox = rs.GradientProx(5, 0.05)
    scheme = {"fedavg": rs.fedavg(0.1, steps=3), "fedprox": rs.fedprox(1.0, local=prox),
              "fedpi": rs.fedpi(1.0, local=prox), "scaffold": rs.scaffold(0.05, 4)}[name]  # fmt: skip
    plain = rs.solve(network(), scheme, rounds=8)
    quiet = rs.solve(network(), scheme, rounds=8, privacy=rs.UserPrivacy(1e3, noise=1e-12, delta=1e-3))
    noisy = rs.solve(network(), scheme, rounds=8, privacy=rs.UserPrivacy(0.1, epsilon=4, delta=1e-3))
    torch.testing.assert_close(quiet.model, plain.model, rtol=1e-4, atol=1e-4)
    assert float((noisy.model - plain.model).norm()) > 0.01
    assert isinstance(noisy.module(), torch.nn.Module)


def test_a_network_that_overflows_for_one_user_ends_no_private_run() -> None:
    """Whether somebody's loss is finite tells of its rows."""
    rng = np.random.default_rng(0)
    data = [(np.full((7, 3), np.inf if k == 2 else 0.1, "f4"), rng.integers(0, 2, 7)) for k in range(4)]
    model = torch.nn.Linear(3, 2)
    with contextlib.suppress(rs.InputError):  # where data that are not finite are refused beforehand
        broken = rs.Neural(model, data, torch.nn.functional.cross_entropy, weights=[1] * 4)
        run = rs.solve(broken, rs.fedavg(0.1), 4, privacy=rs.UserPrivacy(1.0, noise=1.0, delta=1e-3))
        assert run.status == "finished"
        assert bool(torch.isfinite(run.model).all())


# --- what they spend -------------------------------------------------------------------------------------------------


def test_the_history_counts_what_is_spent_and_ends_within_the_budget() -> None:
    run = rs.solve(squares(), rs.fedpi(0.1), rounds=20, privacy=rs.UserPrivacy(1.0, epsilon=3.0, delta=1e-4))
    spent = run.history["epsilon"]
    assert spent.is_monotonic_increasing
    assert 2.97 < spent.iloc[-1] <= 3.0
    memory = run.state.parts.meet
    assert isinstance(memory, Spent)
    for row in run.history.itertuples():
        assert row.epsilon == accountant.epsilon(((memory.noise, 1.0, row.round),), 1e-4)
    who = rs.Bernoulli(0.5, absent="paper")
    sampled = rs.solve(
        squares(), rs.fedavg(0.1), 20, participation=who, privacy=rs.UserPrivacy(1.0, epsilon=3.0, delta=1e-4)
    )
    assert (sampled.history["participants"] == 3).all()  # who came is not told
    assert 2.97 < sampled.history["epsilon"].iloc[-1] <= 3.0
    assert sampled.state.parts.meet.noise < 0.75 * memory.noise
    assert "epsilon" not in rs.solve(squares(), rs.fedpi(0.1), rounds=2).history


@pytest.mark.parametrize("budget", [{"noise": 1.5}, {"epsilon": 6.0}], ids=str)
@pytest.mark.parametrize("name", ["fedpi", "scaffold", "adam", "sampled", "quantile", "local"])
def test_a_run_that_was_stopped_goes_on_to_the_bit_and_goes_on_counting(name: str, budget: dict[str, Any]) -> None:
    scheme, more = ROWS.get(name, (rs.fedavg(0.02), {}))
    options: dict[str, dict[str, Any]] = {"quantile": {"quantile": 0.5}, "local": {"local": True}}
    extra = options.get(name, {})
    if name == "sampled":
        more = {"participation": rs.Bernoulli(0.5, absent="paper")}
    if name == "quantile":
        budget = {k: 20 * v for k, v in budget.items()} if "epsilon" in budget else {"noise": 0.5}
    privacy = rs.UserPrivacy(0.5, delta=1e-3, **budget, **extra)
    whole = rs.solve(squares(), scheme, 24, privacy=privacy, **more)
    some = rs.solve(
        squares(), scheme, 24, privacy=privacy, callback=lambda r: rs.STOP if r.number == 10 else None, **more
    )
    state = checkpoint.unpack(*checkpoint.pack(some.state))
    rest = rs.solve(squares(), scheme, 14, privacy=privacy, start=state, **more)
    assert torch.equal(whole.model, rest.model)
    assert torch.equal(whole.state.next, rest.state.next)  # type: ignore[arg-type]
    assert whole.history["epsilon"].iloc[-1] == rest.history["epsilon"].iloc[-1]


def test_a_spent_budget_is_refused_and_nothing_is_lost() -> None:
    privacy = rs.UserPrivacy(1.0, epsilon=3.0, delta=1e-4)
    run = rs.solve(squares(), rs.fedpi(0.1), rounds=20, privacy=privacy)
    with pytest.raises(rs.InputError, match=r"does not allow 10 more rounds: 20 rounds have spent epsilon = 2.99"):
        run.resume(rounds=30)
    with pytest.raises(rs.InputError, match="nothing is left"):
        rs.solve(squares(), rs.fedpi(0.1), 10, start=run.state, privacy=rs.UserPrivacy(1.0, epsilon=2.0, delta=1e-4))
    more = rs.solve(squares(), rs.fedpi(0.1), 10, start=run.state, privacy=rs.UserPrivacy(1.0, epsilon=5.0, delta=1e-4))
    assert 4.9 < more.history["epsilon"].iloc[-1] <= 5.0
    assert more.history["epsilon"].iloc[0] > 3.0
    open_ended = rs.solve(squares(), rs.fedpi(0.1), 20, privacy=rs.UserPrivacy(1.0, noise=3.0, delta=1e-4))
    assert open_ended.resume(rounds=30).history["epsilon"].iloc[-1] == accountant.epsilon(((3.0, 1.0, 30),), 1e-4)


# --- what is stored and shown ----------------------------------------------------------------------------------------

CODE = """
import numpy as np
import resolvent as rs

def problem():
    data = np.load("rows.npz")
    return rs.LeastSquares(data["A"], data["b"])
"""


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is released is given, whatever users send: all else must then be the same."""
    plain = PrivateMean.__call__

    def scripted(self: PrivateMean, at: Gathering, memory: Spent) -> tuple[Met, Spent]:
        w = torch.sin(torch.arange(at.z.shape[1], dtype=at.z.dtype) + at.t).unsqueeze(0)
        return Met(w), plain(self, at, memory)[1].__class__(
            **{**vars(plain(self, at, memory)[1]), "mean": w, "centre": memory.centre, "clip": memory.clip}
        )

    monkeypatch.setattr(PrivateMean, "__call__", scripted)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def everything(folder: Path) -> dict[str, Any]:
    """What a run has stored, but for clocks, names drawn at random, checksums of these, and where it was made."""
    run = runs.find("latest", folder)
    about = dict(run.about)
    for name in ("id", "created", "environment"):
        about.pop(name, None)
    events = [{k: v for k, v in event.items() if k not in CLOCKS} for event in run.events]
    opened = rs.open(run.path)
    tensors, plain = checkpoint.pack(opened.state)
    history = run.history().drop(columns="seconds")
    files = sorted(p.name for p in run.path.iterdir())
    return {
        "config": run.toml, "about": json.dumps(about, sort_keys=True), "events": events, "files": files,
        "history": history.to_csv(), "model": opened.model.tolist(), "repr": str(opened).replace(run.id, ""),
        "tensors": {name: tensor.tolist() for name, tensor in tensors.items()}, "state": json.dumps(plain),
    }  # fmt: skip


CLOCKED = re.compile(r"seconds|20\d\d-\d\d-\d\d")
TIMED = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d+:]*")
CLOCKS = ("time", "at", "sum", "sha256", "metrics", "checkpoint", "pid", "host", "id", "files", "sums")


def two_runs(tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    """The same command on two neighbouring federations: one user's rows are 100 times as long."""
    found = []
    for name in ("one", "other"):
        rng = np.random.default_rng(7)
        A, b = rng.standard_normal((5, 6, 3)), rng.standard_normal((5, 6))
        if name == "other":
            A[2], b[2] = 100 * A[2], -50.0
        with inside(tmp_path / "here"):
            np.savez("rows.npz", A=A, b=b)
            Path("own.py").write_text(CODE)
            said = resolvent("run", "own.py:problem", "--rounds", 6, *options)
            assert said.code == 0, said.err
            run = runs.find("latest", Path("runs")).id
            said = resolvent("report", run, "--out", "report.html")
            page = Path("report.html").read_text() if Path("report.html").exists() else said.err
            told = [said.out + said.err for said in (said, resolvent("show", run), resolvent("ls"))]
            told = [line for text in told for line in text.replace(run, "").splitlines() if not CLOCKED.search(line)]
            run_of = everything(Path("runs"))
            shutil.rmtree("runs")
            found.append(run_of | {"shown": told, "page": TIMED.sub("", page.replace(run, ""))})
    return found


PRIVATE = ("--privacy", "user:1:5:1e-4")


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(
    ("options", "inner"),
    [
        (("--algorithm", "fedavg", "--eta", "0.01"), set()),
        pytest.param(("--algorithm", "fedprox", "--eta", "0.01"), set(), marks=pytest.mark.slow),
        (("--algorithm", "fedavg", "--eta", "0.01", "--participation", "0.5", "--absent", "paper"), set()),
        (("--algorithm", "fedpi", "--eta", "0.01"), {"u", "p", "next"}),
        (("--algorithm", "scaffold", "--lr", "0.01"), {"u", "p", "next"}),
        pytest.param(
            ("--algorithm", "fedpi", "--eta", "0.01", "--average", "suffix"), {"u", "p", "next"}, marks=pytest.mark.slow
        ),
    ],
    ids=["fedavg", "fedprox", "sampled", "fedpi", "scaffold", "average"],
)
def test_all_that_is_stored_and_shown_follows_from_what_was_released(
    tmp_path: Path, options: tuple[str, ...], inner: set[str]
) -> None:
    """Where the released points are the same, everything is, to the byte. What is not are the u_i in checkpoints, which
    are the users' own and without which a run of FedPi cannot go on."""
    one, other = two_runs(tmp_path, *options, *PRIVATE)
    tensors, others = one.pop("tensors"), other.pop("tensors")
    for name in one:
        assert one[name] == other[name], name
    assert {name for name in tensors if tensors[name] != others[name]} == inner
    for name in inner:  # nobody's contribution follows from another's rows
        assert [k for k, row in enumerate(tensors[name]) if row != others[name][k]] == [2]


def test_without_privacy_nearly_all_of_it_tells_of_the_rows(tmp_path: Path) -> None:
    """The test above can fail."""
    one, other = two_runs(tmp_path, "--algorithm", "fedavg", "--eta", "1e-6")
    assert {name for name in one if one[name] != other[name]} >= {"about", "history", "model", "tensors", "shown"}


@pytest.mark.usefixtures("forced")
def test_in_python_too_and_what_it_says_of_itself(tmp_path: Path) -> None:
    found = []
    for scale in (1.0, 100.0):
        rng = np.random.default_rng(3)
        A, b = rng.standard_normal((4, 5, 2)), rng.standard_normal((4, 5))
        A[1] *= scale
        run = rs.solve(rs.LeastSquares(A, b), rs.fedpi(0.05), 8, privacy=rs.UserPrivacy(1.0, epsilon=4, delta=1e-3))
        found.append((str(run.explanation), repr(run), run.reason, run.history.drop(columns="seconds").to_csv()))
        history = run.history
        for name in ("value", "gap", "residual", "consensus", "stationarity"):
            assert history[name].isna().all(), name
        assert run.user_metrics is None
        with pytest.raises(rs.InputError, match="are not handed out"):
            _ = run.personal
        run.save(tmp_path / f"{scale:g}")
        with pytest.raises(rs.InputError, match="are not handed out"):
            _ = rs.open(tmp_path / f"{scale:g}").personal
    assert found[0] == found[1]
    assert "who took part are left out" in found[0][0]
    assert "noise is hashed from the seed" in found[0][0]


def test_metrics_on_public_rows_are_shown_where_they_are_said_to_be_public() -> None:
    rng = np.random.default_rng(0)
    test = rs.HeldOut(rng.standard_normal((30, 3)), np.sign(rng.standard_normal(30)))
    privacy = rs.UserPrivacy(1.0, epsilon=4, delta=1e-3, held_out="public")
    run = rs.solve(logistic(), rs.fedavg(0.05), 5, privacy=privacy, test=test)
    assert run.history["test_accuracy"].notna().all()
    assert run.history["value"].isna().all()


# --- what is refused -------------------------------------------------------------------------------------------------


def private(**more: Any) -> Any:
    settings: dict[str, Any] = {"problem": squares(), "scheme": rs.fedpi(0.1), "rounds": 5} | more
    settings.setdefault("privacy", rs.UserPrivacy(1.0, epsilon=3.0, delta=1e-4))
    return lambda: rs.solve(**settings)


def uneven() -> rs.LeastSquares:
    rng = np.random.default_rng(0)
    return rs.LeastSquares(rng.standard_normal((3, 4, 2)), rng.standard_normal((3, 4)), weights=[1, 2, 1])


def a_state(**more: Any) -> Any:
    return rs.solve(squares(), rs.fedpi(0.1), 3, **more).state


BAD: list[tuple[Any, str]] = [
    (lambda: rs.UserPrivacy(0, epsilon=1, delta=1e-5), "clip is 0, but a finite number > 0"),
    (lambda: rs.UserPrivacy(-1, epsilon=1, delta=1e-5), "clip is -1"),
    (lambda: rs.UserPrivacy(float("inf"), epsilon=1, delta=1e-5), "clip is inf"),
    (lambda: rs.UserPrivacy(1, epsilon=0, delta=1e-5), "epsilon is 0, but"),
    (lambda: rs.UserPrivacy(1, epsilon=-2, delta=1e-5), "epsilon is -2, but"),
    (lambda: rs.UserPrivacy(1, epsilon=float("nan"), delta=1e-5), "epsilon is nan, but"),
    (lambda: rs.UserPrivacy(1, noise=0, delta=1e-5), "noise is 0, but"),
    (lambda: rs.UserPrivacy(1, epsilon=1, noise=1, delta=1e-5), "give one of them, the other follows"),
    (lambda: rs.UserPrivacy(1, delta=1e-5), "neither epsilon nor noise is given"),
    (lambda: rs.UserPrivacy(1, epsilon=1), "delta is missing"),
    (lambda: rs.UserPrivacy(1, epsilon=1, delta=0), r"delta is 0, but a number in \(0, 1\)"),
    (lambda: rs.UserPrivacy(1, epsilon=1, delta=1.5), "delta is 1.5, but"),
    (lambda: rs.UserPrivacy(1, epsilon=1, delta=1e-5, quantile=1.0), "quantile is 1.0, but"),
    (lambda: rs.UserPrivacy(1, epsilon=1, delta=1e-5, quantile=0.5, local=True), "leave it out"),
    (private(privacy="yes"), "rs.UserPrivacy"),
    (private(privacy=rs.UserPrivacy(1, epsilon=1, delta=0.2)), r"delta is 0.2, but a number below 1 / users = 0.167"),
    (private(privacy=rs.UserPrivacy(1, noise=9, delta=1e-4, quantile=0.5)), "too noisy"),
    (private(problem=uneven()), "users of a private run have equal weights"),
    (lambda: private(problem=rs.Logistic(np.ones((3, 4, 2)), np.sign(np.arange(12.0) - 4.5).reshape(3, 4), reg=0.1,
                                         class_weight="balanced"))(), "it counts all users' classes"),
    (private(problem=squares(1)), "among one user nobody is hidden"),
    (private(participation=rs.FixedSize(3)), "the chance of each user must be known"),
    (private(participation=rs.Trace([[1] * 6])), "the chance of each user must be known"),
    (private(participation=rs.Stragglers(3.0)), "the chance of each user must be known"),
    (private(participation=rs.Bernoulli(0.5)), 'absent is "hold", but it keeps contributions of absent users'),
    (private(participation=rs.Bernoulli(0.5, absent="paper")), "users of FedPi have u_i of their own"),
    (private(scheme=rs.scaffold(0.02, 3), participation=rs.Bernoulli(0.5, absent="paper")), "let everybody take part"),
    (private(scheme=rs.fedpi("auto")), 'eta is "auto", but it would be found from users\' data'),
    (private(meet=rs.CoordinateMedian()), "a private run has a meeting of its own"),
    (private(send=rs.TopK(0.5)), "not fresh in every round"),
    (private(down=rs.TopK(0.5)), "not fresh in every round"),
    (private(anderson=2), 'take on="mean"'),
    (private(accelerate=rs.Momentum(0.5)), 'take on="mean"'),
    (private(stop=rs.Stop(gap=1e-3)), "stop.gap is 0.001, but when a run ends"),
    (private(stop=rs.Stop(residual=1e-3)), "stop.residual"),
    (private(stop=rs.Stop(metric="value")), "stop.metric"),
    (private(stop=lambda r: False), "a function of the round"),
    (private(start=np.zeros((6, 3))), "begins at one vector"),
    (private(start=[[0.0] * 3] * 6), "begins at one vector"),
    (lambda: private(start=a_state())(), "the State of a run without privacy"),
    (lambda: private(privacy=None, start=a_state(privacy=rs.UserPrivacy(1.0, noise=1, delta=1e-4)))(),
     "going on without privacy would undo it"),
    (lambda: private(problem=logistic(), test=rs.HeldOut(np.zeros((4, 3)), np.ones(4)))(), 'say held_out="public"'),
    (lambda: private(problem=network(layers=[torch.nn.BatchNorm1d(5)]), scheme=rs.fedavg(0.1))(), "group norm"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), BAD, ids=range(len(BAD)))
def test_what_is_not_private_is_refused_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--algorithm", "fedpi"), "in a private run it is not found from users' data: give --eta"),
        (("--algorithm", "fedpi", "--eta", "0.1", "--privacy", "user:1:-5:1e-4"), "privacy: epsilon is -5.0, but"),
        (("--algorithm", "fedpi", "--eta", "0.1", "--privacy", "user:1"), "neither epsilon nor noise"),
        (("--algorithm", "fedpi", "--eta", "0.1", "--stop-gap", "1e-4"), "stop.gap is 0.0001, but"),
        (("--algorithm", "fedavg", "--eta", "0.1", "--participation", "0.5"), "keeps contributions of absent users"),
        (("--algorithm", "fedpi", "--eta", "0.1", "--anderson", "2"), 'on="mean"'),
        (("--algorithm", "fedavg", "--eta", "0.1", "--set", "privacy.quantile=0.5"), "too noisy for a noise of"),
    ],
)
def test_the_command_line_refuses_it_before_a_folder_is_made(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    with inside(tmp_path / "here"):
        said = resolvent("run", "least-squares", "--users", 5, "--dim", 3, "--rounds", 3, *PRIVATE, *options)
        assert said.code == 2
        assert words in " ".join(said.err.split())
        assert not Path("runs").exists()


def test_a_run_of_a_file_is_resumed_and_refuses_rounds_beyond_its_budget(tmp_path: Path) -> None:
    with inside(tmp_path / "here"):
        Path("x.toml").write_text(
            '[problem]\nname = "least-squares"\nusers = 5\ndim = 3\n[scheme]\nalgorithm = "fedpi"\neta = 0.001\n'
            '[run]\nrounds = 8\n[privacy]\nkind = "user"\nclip = 1.0\nepsilon = 4\ndelta = 1e-4\n'
        )
        assert resolvent("run", "x.toml").code == 0
        run = runs.find("latest", Path("runs"))
        before = run.history()
        assert 3.9 < before["epsilon"].iloc[-1] <= 4
        said = resolvent("resume", run.id, "--rounds", 12)
        assert "the privacy budget does not allow" in " ".join(said.err.split())
        for more, words in ((), "the privacy budget does not allow"), (("--privacy", "none"), "would undo it"):
            said = resolvent("fork", run.id, "--rounds", 12, *more)
            assert (said.code, len(runs.folders(Path("runs")))) == (2, 1)
            assert words in " ".join(said.err.split())
        assert run.status == "finished"
        assert run.history().equals(before)
        assert run.about["problem"]["minimum"] is None


def test_private_mean_is_told_when_a_neighbour_moves_it() -> None:
    """The forced runs above are forced: without the script, two neighbours' models differ."""
    found = []
    for scale in (1.0, 100.0):
        rng = np.random.default_rng(3)
        A, b = rng.standard_normal((4, 5, 2)), rng.standard_normal((4, 5))
        A[1] *= scale
        privacy = rs.UserPrivacy(1.0, epsilon=4, delta=1e-3)
        found.append(rs.solve(rs.LeastSquares(A, b), rs.fedpi(0.05), 8, privacy=privacy).model)
    assert 0 < float((found[0] - found[1]).norm()) < 8 * private_mean.QUANTILE_SHARE


@pytest.mark.usefixtures("forced")
def test_a_run_of_a_table_tells_of_its_file_by_a_checksum_alone(tmp_path: Path) -> None:
    """No picture of who holds what, no note on columns, no label counts: neighbours' labels are turned round."""
    found = []
    for turned in (1, -1):
        rng = np.random.default_rng(5)
        with inside(tmp_path / "here"):
            rows = [
                f"{k},{a:.3f},{b:.3f},{'yes' if (y > 0) == (turned > 0 or k != 2) else 'no'}"
                for k in range(4)
                for a, b, y in rng.standard_normal((9, 3))
            ]
            Path("t.csv").write_text("\n".join(["who,a,b,y", *rows]) + "\n")
            options = (
                "--target",
                "y",
                "--user-column",
                "who",
                "--no-standardise",
                "--algorithm",
                "fedavg",
                "--eta",
                "0.1",
            )
            said = resolvent("run", "logistic", "--data", "t.csv", *options, "--rounds", 4, *PRIVATE)
            assert said.code == 0, said.err
            run = runs.find("latest", Path("runs")).id
            stored = everything(Path("runs")) | {"shown": TIMED.sub("", (said.out + said.err).replace(run, ""))}
            shutil.rmtree("runs")
        for name in ("config", "about"):
            stored[name] = re.sub(r"[0-9a-f]{64}|0\.1\.0-[0-9a-f]+", "", stored[name])
        stored["shown"] = [line for line in stored["shown"].splitlines() if "seconds" not in line]
        found.append(stored)
    one, other = found
    assert "partition.png" not in one["files"]
    for name in one:
        assert one[name] == other[name], name
