"""Campaigns of those who are let in: nodes that lie, over the fake grid, and ranks that fail."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import socket
import threading
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import resolvent as rs
from command_line import model
from engines.fake_grid import FakeGrid, engine_over
from engines.test_flower_claims import Claiming, gathered
from engines.test_flower_trust import FORGERIES
from engines.test_pipes import problem
from engines.test_plausibility import nodes_of
from engines.test_rendezvous import RUN, ended
from engines.test_secure import engine_over as secure_engine
from engines.test_secure import problem as secure_problem
from federation.test_private import NOISY
from federation.test_server import NAMES, Dies, Power, grid_of
from resolvent.engines.flower import packets
from resolvent.engines.flower.messages import Question
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.rule import MAX_WEIGHT, Rule
from resolvent.errors import BadAnswer, InputError, StorageError
from resolvent.federation import keys, server_app, template
from resolvent.federation.project import Project
from resolvent.federation.recording import RELEASED
from resolvent.runs import Folder, folders
from siege import forge
from siege.forge import Ends

ROUNDS, USERS = 12, 3
PROMPT = Rule(poll=1e-4, timeout=0.2)
SOON = 60.0
"""Seconds within which every rank has ended, though each first imports torch; the time limit of a run is 1800."""


def answers(seeds: Iterable[int], at: Path) -> Ends:
    """One of three users lies in some rounds: an event names it, and the model is that of a run without its lies."""
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield seed, _answered(seed)


def far(rng: Any, reply: Any) -> Any:
    """An answer that leads away, however far or, at least, 1e5."""
    packet = packets.from_records(reply.content)
    moved = {"p": packet.arrays["p"] + 10.0 ** rng.integers(6, 300)}
    reply.content = packets.to_records(packets.Packet(packet.header, moved))
    return reply


def _answered(seed: int) -> str:
    rng, kinds = np.random.default_rng(seed), {**FORGERIES, "far": far}
    liar, share, kind = int(rng.integers(USERS)), rng.choice([0.2, 1.0]), list(kinds)[seed % len(kinds)]
    events: list[dict[str, Any]] = []
    lies = 0

    def forge(user: int, reply: Any) -> list[Any]:
        nonlocal lies
        header = {} if reply.has_error() else packets.from_records(reply.content).header
        if user != liar or header.get("verb") != "local" or (header["t"] != 2 and rng.random() > share):
            return [reply]
        lies += 1
        return [kinds[kind](rng, reply)]

    grid = FakeGrid(nodes_of(problem()), forge=forge)
    note = lambda kind, **about: events.append({"kind": kind} | about)  # noqa: E731
    try:
        engine = engine_over(problem(), rs.ExactProx(), grid=grid, rule=PROMPT, note=note)
        everybody = rs.Trace([[1] * USERS])
        run = rs.solve(None, rs.fedpi(0.3), rounds=ROUNDS, engine=engine, participation=everybody)
    except (BadAnswer, InputError) as error:
        return "refused" if len(str(error)) < 1000 else f"{kind}: a sentence of {len(str(error))} characters"
    except Exception as error:
        return f"{kind}: {type(error).__name__}: {error}"
    here = [[1 if user != liar else count - USERS + 1 for user in range(USERS)] for count in run.history.participants]
    expected = rs.solve(problem(), rs.fedpi(0.3), rounds=ROUNDS, participation=rs.Trace(here))
    if not torch.allclose(run.model, expected.model, rtol=1e-9, atol=1e-11):
        return f"{kind}: silent wrong, participants {run.history.participants.tolist()}"
    if lies > 0 and not events:
        return f"{kind}: {lies} lies and no event"
    return "withheld" if events else "harmless"


def claims(seeds: Iterable[int], at: Path) -> Ends:
    """A user who says something else of itself: refused by name, or with a weight in proportion to the others'."""
    odd = [0, 1, -1, 2**40, 2**60, 10**400, math.nan, math.inf, 1e308, 1e-320, 0.5, True, None, "", "x" * 10_000, [],
           {}, [1.0] * 9, "\x1b[2J", [math.nan], {"a": 1}]  # fmt: skip
    facts = Claiming(problem().take(torch.tensor([0])))._describe(Question("describe", "a-run")).facts
    for seed in seeds:
        rng = random.Random(seed)
        names = rng.sample([*facts, "more"], rng.choice([1, 1, 2, 3]))
        said = {name: rng.choice(odd) for name in names}
        if rng.random() < 0.2:
            said |= dict.fromkeys(("samples", "rows"), rng.choice([10**5, 2**40, 1, 2**30])) | {"means": True}
        liar = rng.randrange(USERS)
        yield seed, _claimed([said if user == liar else {} for user in range(USERS)], said)


def _claimed(each: list[dict[str, Any]], said: dict[str, Any]) -> str:
    try:
        facts = gathered(*each)
    except InputError as error:
        sentence = str(error)
        return (
            "refused" if len(sentence) < 1000 and sentence.isprintable() else f"{said}: refused with {sentence[:300]!r}"
        )
    except Exception as error:
        return f"{said}: {type(error).__name__}: {error}"
    weights = sorted(facts.weights.tolist())
    sound = all(math.isfinite(w) and w > 0 for w in weights) and weights[-1] <= MAX_WEIGHT * weights[1]
    for name in ("lipschitz", "typical_eta"):
        numbers = getattr(facts, name, None)
        sound = sound and (numbers is None or bool(torch.isfinite(torch.as_tensor(numbers)).all()))
    return "in proportion" if sound else f"{said}: silently taken, weights {weights}"


def sums(seeds: Iterable[int], at: Path) -> Ends:
    """One user of a secure sum changes a word of what it tells: there is a sentence, or the sum of all, or of all but
    one: it, or whoever cannot read a share of its."""
    for seed in seeds:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # the nodes' logs
            warnings.simplefilter("ignore")
            yield seed, _summed(random.Random(seed))


def _summed(rng: random.Random) -> str:
    users, verb, scheme = rng.choice([3, 4, 5]), rng.choice(["keys", "shares", "unmask"]), rs.fedprox(0.05)
    liar, whole, told = rng.randrange(users), secure_problem(users, seed=rng.randrange(9)), ""

    def forge(user: int, reply: Any) -> list[Any]:
        nonlocal told
        packet = None if reply.has_error() else packets.from_records(reply.content)
        if packet is not None and user == liar and packet.header["verb"] == verb:
            secure = json.loads(json.dumps(packet.header["secure"]))
            told = _one_changed(secure, rng)
            reply.content = packets.to_records(packet._replace(header=packet.header | {"secure": secure}))
        return [reply]

    grid = FakeGrid([Node(whole.take(torch.tensor([i])), secure=True) for i in range(users)], forge=forge)
    try:
        engine, _ = secure_engine(whole, scheme, grid, rule=PROMPT)
        model = rs.solve(None, scheme, rounds=1, engine=engine).model
    except (BadAnswer, InputError) as error:
        return "refused" if len(str(error)) < 1000 else f"{verb} {told}: a sentence of {len(str(error))} characters"
    except Exception as error:
        return f"{verb} {told}: {type(error).__name__}: {error}"
    p = whole.prox(torch.zeros(users, whole.dim, dtype=torch.float64), 0.05)
    sets = [[i for i in range(users) if i != gone] for gone in range(-1, users)]
    right = any(torch.allclose(model, p[some].mean(0), rtol=0, atol=1e-11) for some in sets)
    return "right" if right else f"{verb} {told}: silent wrong"


def _one_changed(tree: Any, rng: random.Random) -> str:
    """Change one thing somewhere in JSON, and say what."""
    while True:
        key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        if isinstance(tree[key], (dict, list)) and tree[key] and rng.random() < 0.9:
            tree = tree[key]
            continue
        before = tree[key]
        odd: list[Any] = [0, None, "", [], {}, "0" * 104, "02" + "ff" * 32, 10**400, "\ud800", [1], -1.5]
        if isinstance(before, str) and before and rng.random() < 0.7:
            place = rng.randrange(len(before))
            odd = [before[:place] + rng.choice("0123456789abcdefxy=") + before[place + 1 :]]
        tree[key] = rng.choice(odd)
        return f"{key}: {str(before)[:60]!r} -> {str(tree[key])[:60]!r}"


def server(seeds: Iterable[int], at: Path) -> Ends:
    """The server of a federation is killed, and its disk is full, and it goes on: the same bits. That of a private one
    may lose its newest checkpoint as well, and counts every noisy mean."""
    projects = [_project(at / name, private) for name, private in (("open", ""), ("private", NOISY))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = server_app.conduct(grid_of(projects[0]), projects[0], at / "whole")
        for seed in seeds:
            private = seed % 2 == 1
            end = _conducted(random.Random(seed), projects[private], at / str(seed), private)
            if isinstance(end, Folder) and private:
                state, told = end.state(), (end.path / RELEASED).read_text().splitlines()
                sound = state is not None and (state.round, end.status) == (8, "finished")
                counted = sound and state.parts.meet.rounds >= len(told) and end.row()["epsilon"] <= 6.0
                end = "counted" if counted else f"{len(told)} means told, and {end.row()}"
            elif isinstance(end, Folder):
                columns = [name for name in whole.history() if name not in ("seconds", "bytes_up", "bytes_down")]
                same = whole.history()[columns].equals(end.history()[columns]) and model(end) == model(whole)
                end = "the same bits" if same else "silent wrong"
            yield seed, end


def _project(folder: Path, private: str) -> Project:
    project = template.write(folder)
    template.fix(project, eta=0.3, rounds=8, more=f'\n[privacy]\nkind = "user"\n{private}\n' if private else "")
    for name in NAMES:
        keys.make_node(project, name)
    return project


def _conducted(rng: random.Random, project: Project, out: Path, private: bool) -> Folder | str:
    """The run in the end, or how it was refused."""
    honest = grid_of(project)  # its nodes go on, and remember
    try:
        for hurt in (*rng.choices(["killed", "full"], k=2), "neither"):
            there = folders(out)
            grid = (Dies if hurt == "killed" else FakeGrid)(honest.nodes, keys=honest.keys)
            grid.at = rng.randrange(1, 9)  # type: ignore[attr-defined]
            room = rng.randrange(1000, 7000) if hurt == "full" else None
            with contextlib.suppress(Power, StorageError), forge.files_of(room):
                server_app.conduct(grid, project, out, resume=there[0].id if there else "")
            stored = [path for run in folders(out) if run.end is None for path in run.checkpoints.iterdir()]
            if private and stored and rng.random() < 0.5:
                newest = max(stored)
                newest.write_bytes(newest.read_bytes()[:-1])
    except InputError as error:
        return "refused" if private else f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return folders(out)[0]


WRONG = """
import os, signal, sys
import resolvent as rs
from resolvent.errors import BadAnswer, InputError, NotJoined, RankLost
engine, how = rs.AllReduce(), os.environ["HOW"] if os.environ["RANK"] == os.environ["FAILING"] else ""
problem = rs.make_least_squares(users=3, dim=3 if how == "other shapes" else 2, rows=3)
signal.signal(signal.SIGALRM, lambda *_: sys.exit("resolvent: interrupted"))
signal.alarm(2 if how == "waits" else 0)
def strike(happened):
    if how == "is killed" and happened.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
try:
    rs.solve(problem, rs.fedpi(0.1), rounds=9, engine=engine, callback=strike, progress=False)
except (BadAnswer, InputError, NotJoined, RankLost) as error:
    sys.exit(f"resolvent: {error}")
"""
NEVER = ["-c", "import sys, time; time.sleep(20); sys.exit('resolvent: not one of them')"]
RANKS = ("wrong option", "waits", "silent port", "garbage at the port", "other shapes", "is killed")


def ranks(seeds: Iterable[int], at: Path) -> Ends:
    """Ranks that fail before they join, while they wait for another, or in the middle; that have another problem; and
    ports at which something else listens: all ranks end soon, each with a sentence but for who was killed."""
    at.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        rng, began, how = random.Random(seed), time.monotonic(), RANKS[seed % len(RANKS)]
        size = rng.choice([2, 3])
        failing = rng.randrange(size)
        commands = [RUN] * size if "port" in how else [["-c", WRONG]] * size
        with socket.create_server(("", 0)) as listener:
            port = listener.getsockname()[1]
            if how == "garbage at the port":
                threading.Thread(target=_talk, args=(listener, rng), daemon=True).start()
            elif how != "silent port":
                listener.close()
            if how == "wrong option":
                wrong = ("run.round=3", "scheme.eta=nobody", "problem.data=missing.csv")
                commands = [[*RUN[:-1], rng.choice(wrong)] if rank == failing else RUN for rank in range(size)]
            elif how == "waits":
                commands.append(NEVER)
            outcomes = ended(port, at, *commands, FAILING=str(failing), HOW=how)
        last = [(said.strip().splitlines() or [""], code) for said, code in outcomes]  # torch may warn before it
        killed = failing if how == "is killed" else None
        bad = [said for rank, (said, code) in enumerate(last) if rank != killed and not _refused(said[-1], code)]
        late = time.monotonic() - began > SOON
        yield seed, f"{how}: not a sentence: {bad}" if bad else f"{how}: late" if late else "refused"


def _refused(said: str, code: int) -> bool:
    return code != 0 and said.startswith("resolvent: ")


def _talk(listener: socket.socket, rng: random.Random) -> None:
    """Answer whoever comes with bytes that nobody asked for, until it is closed."""
    with contextlib.suppress(OSError):
        while True:
            line, _ = listener.accept()
            with line, contextlib.suppress(OSError):
                line.sendall(rng.choice([b"HTTP/1.1 400 Bad Request\r\n\r\n", rng.randbytes(100), bytes(1000), b"\0"]))
