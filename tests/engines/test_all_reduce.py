"""All-reduce with 2 and 3 ranks: the contract, networks, and every way in which a rank might leave the loop alone."""

from __future__ import annotations

import json
import socket
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import resolvent as rs
from command_line import FORKS
from engines import rank
from engines.cases import CASES, COMPRESSED

# A part of the contract runs on two ranks, another part on three, of which one has a single user. `slow`: all on both.
PARTS = {2: list(CASES)[::6], 3: list(dict.fromkeys([*list(CASES)[3::6], *COMPRESSED]))}
NETWORKS = {2: ["fedavg+", "fedpi+hold"], 3: ["fedavg+paper", "fedpi+"]}
TOGETHER = {
    "stop_on_one_rank": ["stopped", "as the function `stop` said", 4],
    "clock_on_one_rank": "stopped",
    "interrupt_on_one_rank": ["interrupted", 6, 6],
    "divergence": "diverged",
    "personal_models_without_the_others": None,
}
REFUSED = {
    "few_users": "there are 1 users and 2 ranks, but every rank needs one; take fewer ranks",
    "dim": "the length of a model is 4 on rank 1 and 3 on rank 0, but all ranks must be alike",
    "kind": "the problem is LeastSquares on rank 1 and Logistic on rank 0, but all ranks must be alike",
    "version": "the version of resolvent is 0.1 on rank 1 and 0.0 on rank 0, but all ranks must be alike",
    "seed": "seed is 1 on rank 1 and 0 on rank 0, but all ranks must run the same",
    "rounds": "rounds is 4 on rank 1 and 3 on rank 0, but all ranks must run the same",
    "scheme": "scheme is FedPi(alpha=2, beta=2, gamma=0.5, eta=0.2) [",
    "start": "start is a vector",
    "frozen": "the checksum of frozen parameters is ",
    "own_weights": "on rank 0 the problem has weights of its own",
    "negative_weights": "on rank 1 weights is [1.0, -1.0], but one number >= 0 for each of the 2 users here is needed",
    "kinds_of_weights": "weights is rows on rank 1 and numbers on rank 0, but all ranks must weigh their users in the",
    "robust": "meet is CoordinateMedian(), but it needs the rows of all users in one place, and every rank has its own",
    "no_weight": "weights is zero for every user of every rank, but at least one must be positive",
}


SECONDS = 300
"""For all jobs of a launch together: many times what they take on an idle machine."""


def launch(ranks: int, *jobs: str) -> list[dict[str, Any]]:
    """What came of each job on each rank."""
    with socket.socket() as free, TemporaryDirectory() as folder:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that rank 0 may listen there, and nobody else
        free.bind(("127.0.0.1", 0))  # is given the port until it does
        port = free.getsockname()[1]
        group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        each = [(group | {"RANK": str(k)}, SECONDS, folder, *jobs) for k in range(ranks)]
        started = [FORKS.Process(target=rank.main, args=given, daemon=True) for given in each]
        for process in started:
            process.start()
        for process in started:
            process.join()
        return [json.loads((Path(folder) / f"{k}.json").read_text()) for k in range(ranks)]


@cache
def results(ranks: int) -> list[dict[str, Any]] | str:
    """All jobs of one number of ranks share the processes.

    Where they fail to end, that is the result of every test: the second one does not start them again.
    """
    jobs = [f"contract:{case}" for case in PARTS[ranks]]
    jobs += [f"network:{kind}" for kind in NETWORKS[ranks]]
    jobs += [f"own_users:{kind}" for kind in ("given", "users", "equal")[ranks - 2 :: 2]]
    if ranks == 2:
        jobs += [*TOGETHER, "user_code_fails", "answer_not_finite", *(f"refused:{what}" for what in REFUSED)]
    if ranks == 3:
        jobs += ["news_alone"]
    try:
        return launch(ranks, *jobs, "callback_fails_on_one_rank")
    except OSError as error:
        return f"the ranks did not end as they should: {error}"


def of(ranks: int, job: str) -> list[Any]:
    """What a job gave on each rank."""
    nothing = {"error": "", "trace": "it was not run, since an earlier job has failed"}
    each = results(ranks)
    assert not isinstance(each, str), each
    found = [own.get(job, nothing) for own in each]
    failed = [f"rank {k}: {own['trace']}" for k, own in enumerate(found) if "error" in own]
    assert not failed, "\n".join(failed)
    return [own["ok"] for own in found]


@pytest.mark.parametrize(("ranks", "case"), [(n, case) for n, part in PARTS.items() for case in part])
def test_ranks_compute_what_one_process_does(ranks: int, case: str) -> None:
    of(ranks, f"contract:{case}")


@pytest.mark.parametrize(("ranks", "kind"), [(n, kind) for n, kinds in NETWORKS.items() for kind in kinds])
def test_networks_compute_what_one_process_does(ranks: int, kind: str) -> None:
    of(ranks, f"network:{kind}")


@pytest.mark.parametrize(("ranks", "kind"), [(2, "given"), (2, "equal"), (3, "users")])
def test_every_rank_may_bring_its_own_users(ranks: int, kind: str) -> None:
    of(ranks, f"own_users:{kind}")


def test_what_is_new_crosses_alone_where_that_is_less() -> None:
    for dense, sent in of(3, "news_alone"):
        assert sent < dense / 2


@pytest.mark.parametrize("job", TOGETHER)
def test_no_rank_leaves_the_loop_alone(job: str) -> None:
    assert of(2, job) == [TOGETHER[job]] * 2


def test_code_of_a_user_that_fails_on_one_rank_fails_the_run_on_all() -> None:
    here, there = of(2, "user_code_fails")
    assert "a user's own mistake" in there
    assert here.startswith("BadAnswer: rank 1 failed in round 4 with ")
    assert "a user's own mistake" in here


def test_an_answer_that_is_not_finite_on_one_rank_ends_the_run_on_all() -> None:
    status, reason, rows = of(2, "answer_not_finite")[0]
    assert (status, rows) == ("diverged", 3)
    assert "diverged by round 4: user 4 answered NaN" in reason


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_must_leave_says_why_and_nobody_waits(ranks: int) -> None:
    said = of(ranks, "callback_fails_on_one_rank")
    assert said.pop(1) == "OSError: the disk is full"
    assert set(said) == {"RankLost: rank 1 has left the run: OSError: the disk is full"}


@pytest.mark.parametrize("what", REFUSED)
def test_ranks_that_do_not_fit_together_are_refused_in_one_sentence(what: str) -> None:
    assert of(2, f"refused:{what}")[0].startswith(REFUSED[what])


def test_without_torchrun_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    problem = rs.make_least_squares(users=2, dim=2, rows=3)
    for engine in ("all_reduce", "all-reduce", rs.AllReduce(), rs.AllReduce(whole=True)):
        with pytest.raises(rs.InputError, match=r"no rank of a group .*torchrun --nproc-per-node 2"):
            rs.solve(problem, rs.fedpi(0.1), engine=engine)


def test_bad_arguments() -> None:
    with pytest.raises(rs.InputError, match="a whole problem has its own"):
        rs.AllReduce(weights=[1, 2], whole=True)
    with pytest.raises(rs.InputError, match="seconds > 0"):
        rs.AllReduce(timeout=0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_whole_contract(ranks: int) -> None:
    for own in launch(ranks, *(f"contract:{case}" for case in CASES)):
        assert not [f"{job}: {found['error']}" for job, found in own.items() if "error" in found]
