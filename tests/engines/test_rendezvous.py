"""Ranks that meet: whoever fails before says so, nobody waits for it, and what else listens there is named."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from guarded import guarded, outcomes
from resolvent.engines import process_group, rendezvous
from resolvent.engines.rendezvous import Place, announce, met, place
from resolvent.errors import InputError, NotJoined

TESTS = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
SOON = 30.0
"""Seconds within which everybody knows; far fewer on an idle machine."""


LIMIT = 60.0
"""The time limit of a rank here: none waits longer, whatever goes wrong."""


@pytest.fixture
def port() -> Iterator[int]:
    """Nobody else is given it, and whoever may share it can listen there."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        yield int(free.getsockname()[1])


def at(port: int, rank: int, size: int = 2) -> Place:
    return Place(rank, size, "127.0.0.1", port, False)


def environment(port: int, rank: int, size: int = 2) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_that_fails_before_it_joins_tells_all_others(
    failing: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(port, failing, 3).items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(met, at(port, rank, 3), LIMIT) for rank in range(3) if rank != failing]
        threads.submit(announce, "OSError: no such\nfile").result()
        for other in others:
            with pytest.raises(NotJoined, match=f"rank {failing} has failed before it joined: OSError: no such file"):
                other.result()
    assert time.monotonic() - began < SOON


def test_a_rank_that_comes_after_the_others_have_heard_hears_too(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has the store: if it ended as soon as it has heard, whoever comes later would wait for it in vain."""

    def refusal(rank: int) -> str:
        try:
            met(at(port, rank, 3), 8.0)
        except NotJoined as error:
            return str(error)  # the error itself would keep the store alive
        return "met"

    for name, value in environment(port, 1, 3).items():
        monkeypatch.setenv(name, value)
    with ThreadPoolExecutor(3) as threads:
        first, _ = threads.submit(refusal, 0), threads.submit(announce, "no data")
        time.sleep(2)
        assert refusal(2) == first.result() == "rank 1 has failed before it joined: no data"


def test_ranks_that_all_come_meet(port: int) -> None:
    with ThreadPoolExecutor(3) as threads:
        stores = [found.result() for found in [threads.submit(met, at(port, rank, 3), 60.0) for rank in range(3)]]
    assert {store.timeout for store in stores} == {timedelta(seconds=60)}
    stores[0].set("a", "b")
    assert stores[2].get("a") == b"b"


def test_whoever_never_comes_is_named(port: int) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(met, at(port, rank, 3), 1.0) for rank in (0, 2)]
        with pytest.raises(NotJoined, match=r"rank 1 did not come within 1 s"):
            found[0].result()
        assert isinstance(found[1].exception(), NotJoined)


def test_a_rank_that_finds_nobody_says_where_it_looked(port: int) -> None:
    with pytest.raises(NotJoined, match=rf"rank 0 has not opened port {port} of 127.0.0.1 within 0.5 s"):
        met(at(port, 1), 0.5)


@pytest.fixture
def squatted() -> Iterator[int]:
    """A port at which something else listens, and never says a word."""
    with socket.create_server(("", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_at_which_something_else_listens_is_named(squatted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "ANSWER", 0.3)
    with pytest.raises(InputError, match=rf"rank 0 cannot listen at port {squatted} .*in use.*name another port"):
        met(at(squatted, 0), LIMIT)
    with pytest.raises(NotJoined, match=rf"what listens at port {squatted} of 127.0.0.1 is not the store of rank 0"):
        met(at(squatted, 1), LIMIT)


def test_an_attempt_at_what_never_answers_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would look for the store until the time limit of the run."""
    monkeypatch.setattr(rendezvous, "ANSWER", 0.5)
    before = set(threading.enumerate())
    with socket.create_server(("", 0)) as other, pytest.raises(NotJoined, match="is not the store"):
        met(at(other.getsockname()[1], 1), LIMIT)
    began = time.monotonic()
    while set(threading.enumerate()) - before:
        assert time.monotonic() - began < SOON
        time.sleep(0.05)


def refusals(*places: Place) -> list[str]:
    """How those end who meet there, each in its own words."""
    with ThreadPoolExecutor(len(places)) as threads:
        found = [threads.submit(met, place, LIMIT) for place in places]
        ends = [each.exception() for each in found]
    assert all(isinstance(end, NotJoined) for end in ends), ends
    return [str(end) for end in ends]


def test_a_store_of_another_launch_is_no_place_to_wait(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken the port before rank 0 could: that one says so, and the others do not join strangers."""
    other = at(port, 0)
    store = rendezvous._store(other, time.monotonic() + LIMIT, LIMIT)
    store.set(other.key("launch"), other.launch)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    (said,) = refusals(at(port, 1))
    assert said.startswith(f"2 ranks of launch 'mine' and 2 ranks of a launch without a name meet at port {port} of ")
    assert not store.check([other.key("left")])  # the other launch is not disturbed


def test_ranks_that_do_not_agree_how_many_they_are_do_not_wait(port: int) -> None:
    said = refusals(at(port, 0, 2), at(port, 1, 3))
    assert sum("ranks of a launch without a name and " in each for each in said) == 2


def test_two_processes_are_not_one_rank(port: int) -> None:
    """Three ranks, of whom two say that they are rank 1: the sums might be with either of them."""
    said = refusals(at(port, 0, 3), at(port, 1, 3), at(port, 1, 3))
    assert [f"two processes at port {port} of 127.0.0.1 are rank 1" in each for each in said] == [True] * 3


def test_a_rank_that_has_come_and_is_gone_is_not_waited_for_until_the_time_limit(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed between the meeting and the connections, and can tell nobody."""
    monkeypatch.setattr(process_group, "CONNECT", 1.0)
    monkeypatch.setattr(process_group, "_joins", 0)
    for name, value in environment(port, 0).items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        gone = threads.submit(met, at(port, 1), LIMIT)
        with pytest.raises(NotJoined, match="the ranks could not connect to each other"):
            process_group._open("gloo", LIMIT)
        gone.result()
    assert time.monotonic() - began < SOON


def test_ranks_meet_again_after_they_have_parted(port: int) -> None:
    """What they said in one meeting is not taken for the next, in a store that outlives it."""
    with ThreadPoolExecutor(2) as threads:
        for joins in (1, 2):
            places = [at(port, rank)._replace(joins=joins) for rank in range(2)]
            stores = [each.result() for each in [threads.submit(met, place, LIMIT) for place in places]]
            assert not stores[1].check(["address"])
            stores[0].set("address", "of the first")


def test_a_rank_whose_parent_has_ended_does_not_wait_for_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    assert refusals(at(port, 0)) == ["what started this rank has ended, and not all others have come; start them again"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "one"), ("WORLD_SIZE", ""), ("MASTER_PORT", "99999"), ("RANK", "2"), ("MASTER_ADDR", "")],
)
def test_variables_that_are_wrong_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, good in environment(1234, 1).items():
        monkeypatch.setenv(key, good)
    assert place() == Place(1, 2, "127.0.0.1", 1234, False)
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{name} (is )?'?{value}"):
        place()


def test_nobody_is_told_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process alone, or one that has joined: it ends at once."""
    monkeypatch.setattr(rendezvous, "announce", lambda words: pytest.fail("it announced"))
    for name in rendezvous.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    process_group.announce("a mistake")
    for name, value in environment(1234, 0, 1).items():
        monkeypatch.setenv(name, value)
    process_group.announce("a mistake")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(process_group, "_joins", 1)
    process_group.announce("a mistake")


# --- processes -------------------------------------------------------------------------------------------------------

SCRIPT = """
import os
import resolvent as rs
engine = rs.AllReduce()
if os.environ["RANK"] == os.environ["FAILING"]:
    raise OSError("no such data")
rs.solve(rs.make_least_squares(users=2, dim=2, rows=3), rs.fedpi(0.1), rounds=2, engine=engine)
"""
RUN = ["-m", "resolvent", "run", "least-squares", "--engine", "all-reduce", "--users", "4", "--set", "run.rounds=3"]


def ended(port: int, folder: Path, *commands: list[str], **more: str) -> list[tuple[str, int]]:
    """How these ranks ended: what each has printed, and its code. None of them is left."""
    given = {"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"} | more
    each = [given | environment(port, k, len(commands)) for k in range(len(commands))]
    with guarded(*commands, each=each, cwd=folder, stderr=subprocess.PIPE) as started:
        return [(err, code) for _, err, code in outcomes(started, 200.0)]


def test_a_command_that_fails_on_one_rank_ends_on_all(port: int, tmp_path: Path) -> None:
    (said, code), (_, other) = ended(port, tmp_path, RUN, [*RUN[:-1], "run.round=3"])
    assert "rank 1 has failed before it joined: there is no key run.round;" in said
    assert len(said.strip().splitlines()) == 1
    assert (code, other) == (4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_script_that_fails_on_one_rank_ends_on_all(failing: int, port: int, tmp_path: Path) -> None:
    outcomes = ended(port, tmp_path, ["-c", SCRIPT], ["-c", SCRIPT], FAILING=str(failing))
    said, code = outcomes[1 - failing]
    assert f"NotJoined: rank {failing} has failed before it joined: OSError: no such data" in said
    assert code == outcomes[failing][1] == 1


@pytest.mark.slow
def test_where_something_else_listens_every_rank_ends_with_a_sentence(squatted: int, tmp_path: Path) -> None:
    for rank, (said, code) in enumerate(ended(squatted, tmp_path, RUN, RUN)):
        own = "rank 0 cannot listen at" if rank == 0 else "what listens at"
        assert [line.startswith(f"resolvent: {own} ") for line in said.strip().splitlines()] == [True], said
        assert code in (2, 4)
