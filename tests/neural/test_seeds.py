"""Several seeds at once: every run is what it is alone, to the bit on a CPU, whatever happens to the others."""

from __future__ import annotations

import copy
import threading
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import resolvent as rs
from resolvent.engines.joint import Joint
from resolvent.local import choice
from resolvent.networks.joined_users import joined

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.ResolventWarning")


def network(seed: int, kind: str = "conv") -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "conv":
            layers: list[nn.Module] = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)]
        elif kind == "norm":
            layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(72, 4)]
        else:
            layers = [nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 4)]
        return nn.Sequential(*layers)


def problem(seed: int, kind: str = "conv", users: int = 3, rows: tuple[int, ...] = (9,), scale: float = 1.0) -> Any:
    generator = torch.Generator().manual_seed(100 + seed)
    data = []
    for i in range(users):
        n = rows[i % len(rows)]
        x = scale * torch.randn(n, 1, 8, 8, generator=generator)
        data.append((x, torch.randint(0, 4, (n,), generator=generator)))
    return rs.Neural(network(seed, kind), data, test=data)


def same(run: Any, alone: Any) -> None:
    assert run.status == alone.status
    assert run.reason == alone.reason
    assert torch.equal(run.model, alone.model)
    assert torch.equal(run.personal, alone.personal)
    timeless = [name for name in alone.history.columns if name != "seconds"]
    assert run.history[timeless].equals(alone.history[timeless])


SCHEMES = {
    "fedavg": lambda batch: rs.fedavg(0.05, local=rs.GradientSteps(2, batch=batch)),
    "fedprox": lambda batch: rs.fedprox(1.0, local=rs.GradientProx(2, lr=0.05, batch=batch)),
    "fedpi": lambda batch: rs.fedpi(0.5, local=rs.GradientProx(2, lr=0.05, batch=batch, momentum=0.5)),
}


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(sorted(SCHEMES)),
    st.sampled_from(["conv", "norm", "mlp"]),
    st.sampled_from([None, 4]),
    st.lists(st.integers(0, 2**40), min_size=2, max_size=4),
    st.sampled_from([(9,), (9, 8), (9, 4)]),
    st.sampled_from([None, 2]),
)
def test_every_seed_is_what_it_is_alone(
    name: str, kind: str, batch: int | None, seeds: list[int], rows: tuple[int, ...], anderson: int | None
) -> None:
    scheme = SCHEMES[name](batch)
    problems = [problem(k, kind, rows=rows) for k in range(len(seeds))]
    assert joined(problems) is not None
    runs = rs.solve_seeds(problems, scheme, seeds, rounds=3, anderson=anderson)
    for run, each, seed in zip(runs, problems, seeds, strict=True):
        same(run, rs.solve(each, scheme, rounds=3, anderson=anderson, seed=seed, progress=False))


@pytest.mark.parametrize("batch", [None, 7])
def test_users_of_other_sizes_do_not_pad_a_runs_rows(batch: int | None) -> None:
    """Their rows would be summed in another order."""
    problems = [problem(k, "mlp", rows=rows) for k, rows in enumerate([(20, 9, 33), (24, 9, 31)])]
    scheme = SCHEMES["fedprox"](batch)
    for k, run in enumerate(rs.solve_seeds(problems, scheme, [0, 1], rounds=3)):
        same(run, rs.solve(problems[k], scheme, rounds=3, seed=k, progress=False))


@pytest.mark.parametrize("sizes", [[(9, 9, 33), (9, 33, 33)], [(9, 9, 9), (9, 9, 9)]])
def test_seeds_whose_users_take_other_numbers_of_steps(sizes: list[tuple[int, ...]]) -> None:
    """FedNova's scale follows from the sizes of a seed's own users."""
    problems = [problem(k, "mlp", rows=rows) for k, rows in enumerate(sizes)]
    scheme = rs.fednova(0.05, 2, batch=8)
    for k, run in enumerate(rs.solve_seeds(problems, scheme, [0, 1], rounds=2)):
        same(run, rs.solve(problems[k], scheme, rounds=2, seed=k, progress=False))


def test_one_problem_for_all_seeds_and_a_name_with_eta() -> None:
    one = problem(0)
    runs = rs.solve_seeds(one, "fedprox", [3, 4], eta=0.5, rounds=2)
    same(runs[1], rs.solve(one, "fedprox", eta=0.5, seed=4, rounds=2, progress=False))


def test_steps_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole rounds of all runs, in one call each: otherwise nothing is gained."""
    asked: list[int] = []
    plain = rs.Neural.grad

    def grad(self: Any, W: Any, seeds: Any = None, out: Any = None) -> Any:
        asked.append(self.users)
        return plain(self, W, seeds, out)

    monkeypatch.setattr(rs.Neural, "grad", grad)
    rs.solve_seeds([problem(k) for k in range(4)], rs.fedavg(0.05, steps=5), range(4), rounds=2)
    assert asked == [12] * 10


def test_a_run_that_diverges_leaves_the_others_alone() -> None:
    """Its data are so large that its loss becomes infinite in the first rounds."""
    problems = [problem(0), problem(1, scale=1e18), problem(2)]
    scheme = rs.fedavg(0.1, steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = rs.solve_seeds(problems, scheme, [0, 1, 2], rounds=6)
        assert [run.status for run in runs] == ["finished", "diverged", "finished"]
        for k, run in enumerate(runs):
            same(run, rs.solve(problems[k], scheme, rounds=6, seed=k, progress=False))


def test_users_who_stay_away_and_runs_of_other_lengths() -> None:
    scheme = rs.fedpi(0.5, local=rs.GradientProx(2, lr=0.05))
    problems = [problem(k) for k in range(3)]
    runs = rs.solve_seeds(problems, scheme, [5, 6, 7], rounds=4, participation=0.5)
    for run, each, seed in zip(runs, problems, [5, 6, 7], strict=True):
        same(run, rs.solve(each, scheme, rounds=4, participation=0.5, seed=seed, progress=False))
    losses = [float(rs.solve(each, scheme, rounds=3, progress=False).history["value"].iloc[-1]) for each in problems]
    level = sorted(losses)[1]

    def stop(happened: Any) -> bool:
        return bool(happened.engine.facts.problem.inspect(happened.model, happened.state.p, {})["value"] <= level)

    runs = rs.solve_seeds(problems, scheme, [0, 0, 0], rounds=4, stop=stop)
    assert len({run.state.round for run in runs}) > 1
    for run, each in zip(runs, problems, strict=True):
        same(run, rs.solve(each, scheme, rounds=4, stop=stop, progress=False))


class Scaled(nn.Module):
    """A module whose factor neither parameters nor buffers nor its repr show."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(64, 4), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.linear(x.flatten(1))


def test_networks_that_are_not_alike_are_solved_one_after_the_other() -> None:
    data = [(torch.randn(6, 1, 8, 8), torch.randint(0, 4, (6,))) for _ in range(2)]
    pairs: list[list[nn.Module]] = [
        [network(0, "conv"), network(0, "mlp")],
        [Scaled(1.0), Scaled(2.0)],
    ]
    frozen = [network(k, "mlp") for k in range(2)]
    for module in frozen:
        module[1].weight.requires_grad_(False)  # type: ignore[index]
    pairs.append(list(frozen))
    for modules in pairs:
        problems = [rs.Neural(module, data) for module in modules]
        assert joined(problems) is None
        runs = rs.solve_seeds(problems, rs.fedavg(0.05, steps=2), [0, 1], rounds=2)
        for k, run in enumerate(runs):
            same(run, rs.solve(problems[k], rs.fedavg(0.05, steps=2), rounds=2, seed=k, progress=False))
    alike = [rs.Neural(module, data) for module in (frozen[0], copy.deepcopy(frozen[0]))]
    assert joined(alike) is not None


def test_seeds_by_vmap_on_a_cpu_are_solved_one_after_the_other() -> None:
    """Among other users the products of one may be added in another order."""
    torch.manual_seed(0)
    data = [(torch.randn(6, 8), torch.randint(0, 4, (6,))) for _ in range(4)]
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    assert [joined([rs.Neural(module, data, method=method)] * 2) is None for method in (None, "loop")] == [True, False]


def test_convex_problems_have_seeds_too() -> None:
    convex = rs.make_least_squares(users=3, dim=4, rows=10)
    runs = rs.solve_seeds(convex, rs.fedpi(0.1), [0, 1], rounds=5, participation=0.5)
    assert torch.equal(runs[1].model, rs.solve(convex, rs.fedpi(0.1), rounds=5, participation=0.5, seed=1).model)


def test_what_a_callback_raises_comes_through_and_no_thread_is_left() -> None:
    before = threading.active_count()

    def callback(happened: Any) -> None:
        if happened.number == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rs.solve_seeds([problem(0), problem(1)], rs.fedavg(0.05), [0, 1], rounds=4, callback=callback)
    assert threading.active_count() == before


def test_interrupted_runs_all_stop() -> None:
    problems = [problem(0), problem(1)]
    joint = Joint(problems, rs.GradientSteps(1))
    joint.interrupted = True

    def work(k: int) -> Any:
        return rs.solve(problems[k], rs.fedavg(0.05), engine=joint.engines[k], rounds=3, progress=False)

    assert [run.status for run in joint.run([partial(work, k) for k in range(2)])] == ["interrupted"] * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rs.solve_seeds(problem(0), rs.fedavg(0.05), []), r"seeds is \[\]"),
        (lambda: rs.solve_seeds(problem(0), rs.fedavg(0.05), 0), "seeds is 0"),  # type: ignore[arg-type]
        (lambda: rs.solve_seeds(problem(0), rs.fedavg(0.05), [0, 1], seed=2), "seed is given"),
        (lambda: rs.solve_seeds([problem(0)], rs.fedavg(0.05), [0, 1]), "problems is a list of 1"),
        (lambda: rs.solve_seeds(problem(0), rs.fedavg(0.05), [0, 1], engine="debug"), "leave engine and recorder out"),
    ],
)
def test_refused(call: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        call()


def test_runs_that_go_on_from_other_rounds_are_asked_apart() -> None:
    """The shuffles of a round depend on its number: questions of different rounds have different answers."""
    problems, scheme = [problem(0), problem(1)], SCHEMES["fedprox"](4)
    begun = rs.solve(problems[0], scheme, rounds=1, progress=False).state
    joint, starts = Joint(problems, choice.local_operator(scheme, problems[0])), [begun, None]

    def work(k: int, engine: Any = "in_process") -> Any:
        return rs.solve(problems[k], scheme, engine=engine, rounds=3, seed=k, start=starts[k], progress=False)

    for k, run in enumerate(joint.run([partial(work, k, joint.engines[k]) for k in range(2)])):
        same(run, work(k))
