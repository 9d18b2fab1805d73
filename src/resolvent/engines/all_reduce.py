"""Users on several ranks of torch.distributed, without a server: every rank runs the loop on its own users' rows."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from resolvent.engines import joining
from resolvent.engines.process_group import TIMEOUT, announce_at_exit, join
from resolvent.engines.rank import RankEngine
from resolvent.errors import InputError, RankLost, flag, quoted, real, refuse
from resolvent.iteration.facts import Facts
from resolvent.problems.problem import select


class AllReduce:
    """Where the users of `solve` live on several ranks, started by torchrun: `engine=rs.AllReduce()`.

    Every rank passes the problem of its own users only. Users are numbered rank after rank, and their weights are
    compared across ranks: equal unless given. weights: "rows" (every row counts the same), "users" (every user's mean
    does), or one number for each user here, on a scale that all ranks share. whole: every rank passes the same problem
    of all users, of which it retains its share; weights are then the problem's own. Once this is made, a rank that ends
    before it has joined the others tells them.
    """

    def __init__(self, weights: Any = None, whole: bool = False, timeout: float = TIMEOUT) -> None:
        if flag(whole, "whole") and weights is not None:
            refuse("weights", quoted(weights), "a whole problem has its own: leave it out")
        self.weights, self.whole = weights, whole
        self.timeout = real(timeout, "timeout", lambda x: 0 < x < math.inf, "a number of seconds > 0 is needed")
        announce_at_exit()

    def join(self, problem: Any, operator: Any, steady: bool = True) -> RankEngine:
        """This rank's engine, once all ranks are there and fit together."""
        group = join(self.timeout)
        try:
            if not self.whole:
                facts = joining.joined_facts(problem, operator, self.weights, group)
                return RankEngine(_weighing(problem, facts), facts, group, steady)
            names = joining.split(problem.users, group)
            facts = joining.whole_facts(problem, operator, names, group)
            if "training" in facts.offers:
                own = facts.problem.part(torch.arange(problem.users).tensor_split(group.size), group.rank)
            else:
                own = problem.take(names.to(facts.device))
            return RankEngine(_weighing(own, facts), facts, group, steady, None if group.rank else problem, True)
        except (InputError, RankLost):  # found wrong on every rank alike
            raise
        except BaseException as error:
            group.leave(f"{type(error).__name__}: {error}")
            raise


def _weighing(problem: Any, facts: Facts) -> Any:
    """A network whose users' weights, relative to each other, and start are those of the whole federation."""
    if "training" not in problem.offers:
        return problem
    assert facts.numbers is not None
    part = copy.copy(problem)
    part.weights, part.start = select(facts.weights, facts.numbers.to(facts.device)), facts.start
    return part
