"""What the ranks of a test do: every function is called on all ranks at the same time."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import resolvent as rs
from engines.cases import CASES, built
from engines.contract import check
from resolvent.engines.all_reduce import RankEngine
from resolvent.engines.process_group import join

TIMEOUT = 30.0
"""Seconds that a rank waits for the others before a test has failed."""


def _whole(problem: Any, operator: Any, steady: bool) -> RankEngine:
    return rs.AllReduce(whole=True).join(problem, operator, steady)


def _mine(users: int) -> list[int]:
    return [int(i) for i in torch.arange(users).tensor_split(dist.get_world_size())[dist.get_rank()]]


def contract(case: str) -> None:
    """A case of the contract; all ranks have made the whole problem."""
    join(TIMEOUT)
    found = check(_whole, case, _mine(built(CASES[case].problem).users))
    assert found.run.status == "finished"
