"""Where ranks meet before they connect to each other: a store of torch.distributed, at the address that torchrun gives.

Every rank says in the store that it is there and looks, again and again, whether all others are. So a rank that fails
before it has joined can say so, and nobody waits for it. Nor does anybody wait among the ranks of another launch, whose
store was found at the port.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed

from resolvent.errors import InputError, NotJoined

stores: Any = torch.distributed  # it has TCPStore and PrefixStore, but does not say so to a type checker

LOOK = 0.1
"""Seconds between two looks at the store."""
ANSWER, ATTEMPTS = 3.0, 3
"""Seconds that a store may take to answer, and how often it is asked before something else must be listening there."""
LINGER = 60.0
"""Seconds that a rank which has failed, and rank 0, wait for the others to hear of it: they may import torch still."""
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Place(NamedTuple):
    """This process among the others, and where they meet. served: torchrun holds the store, not rank 0.

    joins: how often they have met by then.
    """

    rank: int
    size: int
    host: str
    port: int
    served: bool
    joins: int = 1

    @property
    def serves(self) -> bool:
        """Whether this rank holds the store."""
        return self.rank == 0 and not self.served

    @property
    def address(self) -> str:
        return f"port {self.port} of {self.host}"

    @property
    def launch(self) -> str:
        """Whom the ranks of one launch have in common."""
        name = os.environ.get("TORCHELASTIC_RUN_ID", "")
        return f"{self.size} ranks of {f'launch {name!r}' if name else 'a launch without a name'}"

    def key(self, name: str) -> str:
        """A store may outlive an attempt."""
        return f"resolvent/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{self.joins}/{name}"


def place(joins: int = 1) -> Place:
    """As torchrun, or a script, has set it."""
    given = {name: os.environ.get(name, "") for name in VARIABLES}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not given[name].isdecimal() or int(given[name]) >= 1 << 16:
            raise InputError(f"the variable {name} is {given[name]!r}, but a number is needed; torchrun sets it")
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    if not given["MASTER_ADDR"] or rank >= size:
        raise InputError(
            f"RANK is {rank}, WORLD_SIZE {size} and MASTER_ADDR {given['MASTER_ADDR']!r}, but a rank below the size "
            "and an address are needed; torchrun sets all of them"
        )
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(rank, size, given["MASTER_ADDR"], int(given["MASTER_PORT"]), served, joins)


def met(where: Place, timeout: float) -> Any:
    """A store for the process group, once all ranks are there."""
    until, parent = time.monotonic() + timeout, os.getppid()
    store = _store(where, until, timeout)
    failure, here = where.key("left"), [where.key(f"here/{rank}") for rank in range(where.size)]
    with _gone(where):
        _take_place(store, where)
        try:
            while not all(store.check([key]) for key in here):
                if store.check([failure]):
                    rank, message = json.loads(store.get(failure))
                    _await_others(store, where, where.serves)
                    raise NotJoined(f"rank {rank} has failed before it joined: {message}")
                if time.monotonic() >= until:
                    missing = [str(rank) for rank, key in enumerate(here) if not store.check([key])]
                    raise NotJoined(f"rank {', '.join(missing)} did not come within {timeout:g} s; look there for why")
                if os.getppid() != parent:
                    raise NotJoined("what started this rank has ended, and not all others have come; start them again")
                time.sleep(LOOK)
        except (KeyboardInterrupt, SystemExit) as error:
            _tell(store, where, type(error).__name__)
            raise
    return stores.PrefixStore(f"default_pg/{where.joins}", store)


def _take_place(store: Any, where: Place) -> None:
    """Say that this rank is there: among those of its own launch, and it alone."""
    launch = bytes(store.compare_set(where.key("launch"), "", where.launch)).decode()
    if launch != where.launch:
        message = f"{where.launch} and {launch} meet at {where.address}; start them anew, or name another port"
        if (
            launch.partition(" ")[2] == where.launch.partition(" ")[2]
        ):  # one launch, of whose size there are two opinions
            _tell(store, where, message)
        raise NotJoined(message)
    if store.add(where.key(f"count/{where.rank}"), 1) > 1:  # sums with either of them might be wrong
        message = f"two processes at {where.address} are rank {where.rank}; end one launch, or name another port for it"
        _tell(store, where, message)
        raise NotJoined(message)
    store.set(where.key(f"here/{where.rank}"), "")


def announce(message: str) -> None:
    """Tell the others, who wait for this rank, that it has failed and does not come. Nothing is raised."""
    with suppress(Exception):
        where = place()
        store = _store(where, time.monotonic() + LINGER, LINGER)
        _tell(store, where, message, wait=True)


def _tell(store: Any, where: Place, message: str, wait: bool = False) -> None:
    """This rank leaves; whoever has left before it has said why."""
    store.compare_set(where.key("left"), "", json.dumps([where.rank, " ".join(message.split())[:1000]]))
    _await_others(store, where, wait)


def _await_others(store: Any, where: Place, wait: bool) -> None:
    """This rank knows that one has failed. `wait`: it stays until all others do, or for a while."""
    until = time.monotonic() + LINGER
    heard = store.add(where.key("heard"), 1)
    while wait and heard < where.size and time.monotonic() < until:
        time.sleep(LOOK)
        heard = store.add(where.key("heard"), 0)
    if where.serves:
        time.sleep(5 * LOOK)  # whoever has just heard is still reading


def _store(where: Place, until: float, timeout: float) -> Any:
    """The store, which this rank opens or finds open."""
    given: dict[str, Any] = {
        "host_name": where.host,
        "port": where.port,
        "world_size": where.size,
        "wait_for_workers": False,
    }
    if where.serves:
        try:
            return stores.TCPStore(**given, is_master=True, timeout=timedelta(seconds=timeout), multi_tenant=True)
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"rank 0 cannot listen at {where.address} ({first_line(error)}); end what listens there, or name "
                "another port by --master-port of torchrun or the variable MASTER_PORT"
            ) from None
    refused, stores_made = 0, list[Any]()
    while time.monotonic() < until:
        if _listening(where):
            _connect(given, stores_made)
            if stores_made:
                stores_made[0].set_timeout(timedelta(seconds=timeout))
                return stores_made[0]
            refused += 1
        else:
            refused = 0
        if refused >= ATTEMPTS:
            raise NotJoined(
                f"what listens at {where.address} is not the store of rank 0; name another port by --master-port"
            )
        time.sleep(LOOK)
    raise NotJoined(f"rank 0 has not opened {where.address} within {timeout:g} s; look there for why")


def _connect(given: dict[str, Any], stores_made: list[Any]) -> None:
    """Look for a client of the store. In a thread, since it waits for what listens there and never answers.

    An earlier attempt may be answered meanwhile. One whose connection is closed ends soon, and does not try again.
    """

    def connect() -> None:
        with suppress(RuntimeError, ValueError):
            stores_made.append(stores.TCPStore(**given, is_master=False, timeout=timedelta(seconds=ANSWER)))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    until = time.monotonic() + ANSWER
    while thread.is_alive() and not stores_made and time.monotonic() < until:
        thread.join(LOOK)


def _listening(where: Place) -> bool:
    with suppress(OSError), socket.create_connection((where.host, where.port), timeout=ANSWER):
        return True
    return False


@contextmanager
def _gone(where: Place) -> Iterator[None]:
    """What a store raises whose process has ended."""
    try:
        yield
    except (NotJoined, InputError):
        raise
    except RuntimeError as error:
        who = "torchrun" if where.served else "rank 0"
        raise NotJoined(f"{who} ended before all ranks had joined ({first_line(error)}); look there for why") from None


def first_line(error: Exception) -> str:
    """What an exception of torch says, without the trace of its own that follows."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
