"""The processes of a run, as torchrun started them: sums over all of them, and what happens when one of them leaves.

Every rank calls the same operations in the same order, and every rank gets the same bits. A rank that must leave alone
says why in the rendezvous store and closes its connections, so that no other rank waits for it.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from resolvent.engines import rendezvous
from resolvent.engines.rendezvous import first_line
from resolvent.errors import InputError, NotJoined, RankLost

TIMEOUT = 1800.0
"""Seconds after which a rank that is not heard of counts as lost. One that dies is noticed at once."""
CONNECT = 60.0
"""Seconds within which ranks that have all come connect to each other: one may have died since, without a word."""
FEW = 1 << 15
"""Bytes of all ranks together up to which gathering is quicker than an all-reduce: it has half as many messages."""
INDEX_BYTES = 4
"""Of a coordinate's place in a vector."""
LEFT = "resolvent/left"
"""The key under which a rank that leaves says why."""
_joins = 0
"""How often this process has begun to join the others."""


def started() -> bool:
    """Whether this process is one of several that torchrun, or a script, started."""
    return dist.is_available() and (dist.is_initialized() or {"RANK", "WORLD_SIZE"} <= os.environ.keys())


def join(timeout: float = TIMEOUT) -> Group:
    """The group of all ranks: the one that the script has opened already, else the one that torchrun describes."""
    if not dist.is_available():
        raise InputError("engine is all_reduce, but this build of PyTorch has no torch.distributed; take another build")
    if not dist.is_initialized():
        if not started():
            raise InputError(
                "engine is all_reduce, but this process is no rank of a group (RANK and WORLD_SIZE are not set); "
                "start it with `torchrun --nproc-per-node 2 -m resolvent run ...`, or a script with "
                "`torchrun --nproc-per-node 2 script.py`"
            )
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        _open(backend, timeout)
        atexit.register(_close)
    elif "cpu" not in str(dist.get_backend_config()):
        raise InputError(
            f"the process group has the backend {dist.get_backend()} alone, but ranks also exchange numbers that are "
            'on no GPU; open it with init_process_group("cpu:gloo,cuda:nccl")'
        )
    return Group()


def _open(backend: str, timeout: float) -> None:
    """Meet the other ranks, then connect to them."""
    global _joins
    _joins += 1
    where = rendezvous.place(_joins)
    store = rendezvous.met(where, timeout)
    limit = timedelta(seconds=min(timeout, CONNECT))
    try:
        dist.init_process_group(backend, store=store, rank=where.rank, world_size=where.size, timeout=limit)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
    except RuntimeError as error:
        raise NotJoined(f"the ranks could not connect to each other ({first_line(error)})") from error


def announce(message: str) -> None:
    """This process has failed: where it is a rank that others still wait for, they are told."""
    if _joins == 0 and dist.is_available() and not dist.is_initialized() and expected():
        rendezvous.announce(message)


def expected() -> bool:
    """Whether other ranks may be waiting for this process."""
    return all(os.environ.get(name) for name in rendezvous.VARIABLES) and os.environ["WORLD_SIZE"] != "1"


def announce_at_exit() -> None:
    """From now on a process that ends without having joined tells the others."""
    if expected():
        atexit.unregister(_ended)
        atexit.register(_ended)


def _ended() -> None:
    error = getattr(sys, "last_value", None)  # what nobody has caught
    announce("it ended" if error is None else f"{type(error).__name__}: {error}")


def _close() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class Group:
    """Operations among all ranks. `moved` counts the bytes that this rank has put into them and got out of them."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.moved = [0, 0]
        self._lost: str | None = None
        self._store: Any = getattr(dist.distributed_c10d, "_get_default_store", lambda: None)()

    # --- sums ------------------------------------------------------------------------------------------------------

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks. The order of additions depends on the number of ranks and the shape alone."""
        return self._reduced(values, torch.add, dist.ReduceOp.SUM)

    def most(self, values: Tensor) -> Tensor:
        """The largest value of any rank, one by one."""
        return self._reduced(values, torch.maximum, dist.ReduceOp.MAX)

    def _reduced(self, values: Tensor, combine: Callable[[Tensor, Tensor], Tensor], how: Any) -> Tensor:
        """Few numbers travel once around the ranks, which combine them in the order of ranks; many travel in parts."""
        own = values.detach().contiguous()
        if own.device.type == "cpu" and self.size * own.nbytes <= FEW:
            return functools.reduce(combine, self._gathered(own))
        total = own.clone()
        self._do(lambda: dist.all_reduce(total, op=how), total.nbytes, total.nbytes)
        return total

    def _gathered(self, own: Tensor) -> list[Tensor]:
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(rows, own), own.nbytes, self.size * own.nbytes)
        return rows

    def rows(self, own: Tensor, before: Tensor | None) -> Tensor:
        """What every rank brings, (ranks, d); where all know what they brought `before`, what is new alone crosses.

        Values are replaced, not added, so that the rows have the same bits however they came.
        """
        if before is None:
            return torch.stack(self._gathered(own.detach().contiguous()))
        places = (own != before[self.rank]).nonzero().flatten()
        most = int(self.most(torch.tensor(len(places), device="cpu")))
        if most * (own.itemsize + INDEX_BYTES) >= own.nbytes:
            return torch.stack(self._gathered(own.detach().contiguous()))
        filled = places.new_zeros(most, dtype=torch.int32)
        filled[: len(places)] = places.int()  # whoever has fewer repeats coordinate 0, as it is
        now = before.clone()
        indices, values = self._gathered(filled), self._gathered(own.detach()[filled.long()])
        for rank in range(self.size):
            now[rank, indices[rank].long()] = values[rank]
        return now

    def spread(self, values: Tensor, source: int = 0) -> Tensor:
        """What one rank has, on all of them; the others bring a tensor of the same shape."""
        given = values.detach().contiguous().clone()
        self._do(lambda: dist.broadcast(given, source), given.nbytes * (self.rank == source), given.nbytes)
        return given

    def gathered(self, own: Any) -> list[Any]:
        """What every rank says, in the order of ranks: anything that JSON can write. Nothing is unpickled."""
        said = torch.tensor(list(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = self.sum(torch.tensor([len(said) * (rank == self.rank) for rank in range(self.size)])).tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(said)] = said
        rows = self._gathered(padded)
        return [json.loads(bytes(row[:n].tolist())) for row, n in zip(rows, lengths, strict=True)]

    def _do(self, operation: Callable[[], Any], sent: int, received: int) -> None:
        if self._lost is not None:
            raise RankLost(self._lost)
        try:
            operation()
        except RuntimeError as error:  # a connection was closed, or nothing was heard for too long
            self._fail(error)
        self.moved[0] += sent
        self.moved[1] += received

    # --- leaving ---------------------------------------------------------------------------------------------------

    def leave(self, message: str) -> None:
        """Leave the run alone: the others are told why, and none of them waits."""
        if self._lost is not None:
            return
        self._lost = f"rank {self.rank} has left the run: {message}"
        with suppress(Exception):  # whoever holds the store may have gone before
            self._store.set(LEFT, json.dumps([self.rank, message]))
        _close()

    def _fail(self, error: RuntimeError) -> NoReturn:
        """Say which rank is gone, and why, as far as it has said so."""
        self._lost = f"another rank is gone, or cannot be reached any more ({first_line(error)})"
        with suppress(Exception):
            if self._store.check([LEFT]):
                rank, message = json.loads(self._store.get(LEFT))
                self._lost = f"rank {rank} has left the run: {message}"
        raise RankLost(self._lost) from error


def same(group: Group, facts: dict[str, Any], needed: str) -> None:
    """Refuse, on every rank alike, facts that differ between ranks; the first one that does is named."""
    everyone: Sequence[dict[str, Any]] = group.gathered(facts)
    for name, value in everyone[0].items():
        for rank, other in enumerate(everyone):
            if other.get(name) != value:
                raise InputError(f"{name} is {other.get(name)} on rank {rank} and {value} on rank 0, but {needed}")
