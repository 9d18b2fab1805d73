"""At which points a problem's functions are called, and how a contradiction is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError
from resolvent.problems.custom import Custom
from resolvent.problems.verify.lines import LineProfile, line_of_gradients, line_of_values

CLOSER, CLOSEST = 30.0, 3
"""A point outside the domain comes CLOSER times nearer to the start, CLOSEST times at most."""


OR = ", or pass check=False to Custom to run it as it is"


class Place(NamedTuple):
    """Points x (users, d), and the length of steps (users,) that matters there."""

    x: Tensor
    reach: Tensor


@dataclass(frozen=True)
class Examiner:
    """Calls the functions of a problem whose users have the numbers `names`."""

    problem: Custom
    names: list[int]
    rng: np.random.Generator

    def offers(self, *functions: str) -> bool:
        return set(functions) <= self.problem.offers

    def ask(self, function: str, W: Tensor, *args: float) -> Tensor:
        """The answers, NaN for users whose function fails."""
        return self.problem.attempt(function, W, *args)

    def directions(self) -> Tensor:
        """A unit vector for each user, without an entry near zero, so that no coordinate is overlooked."""
        shape = self.problem.users, self.problem.dim
        v = self.rng.uniform(0.5, 1.5, shape) * self.rng.choice([-1.0, 1.0], shape)
        unit: Tensor = torch.from_numpy(v / np.linalg.norm(v, axis=1, keepdims=True)).to(self.problem.weights)
        return unit

    def line(self, x: Tensor, reach: Tensor, v: Tensor | None = None) -> LineProfile:
        """How f changes from x along v, or a random direction: from values or, where there are none, from gradients."""
        v = self.directions() if v is None else v
        if self.offers("value"):
            return line_of_values(lambda W: self.ask("value", W), x, v, reach)
        return line_of_gradients(lambda W: self.ask("grad", W), x, v, reach)

    def towards(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The unit vectors from x to y and the distances; random ones, and 1, where they are equal or not finite."""
        distance = (y - x).norm(dim=1)
        some = (torch.isfinite(distance) & (distance > 0)).unsqueeze(1)
        v = torch.where(some, (y - x) / distance.unsqueeze(1), self.directions())
        return v, torch.where(some.squeeze(1), distance, 1.0)

    def places(self, u: Tensor, eta: float) -> list[Place]:
        """A point as far from the start u as the first move goes (else |u|, else 1), one max(1, |u|) away, and u. A
        move from close to the minimum is rounding alone: eps^(1/4) |u| is the shortest."""
        size = u.norm(dim=1).clamp_min(1)
        if self.offers("prox"):
            move = (self.ask("prox", u, eta) - u).norm(dim=1)
        else:
            move = eta * self.ask("grad", u).norm(dim=1)
        away = u.norm(dim=1)
        reach = torch.where(torch.isfinite(move) & (move > 0), move, torch.where(away > 0, away, size))
        reach = torch.maximum(reach, torch.finfo(u.dtype).eps ** 0.25 * away)
        near = self._inside(u, reach.unsqueeze(1) * self.directions())
        far = self._inside(u, size.unsqueeze(1) * self.directions())
        if self.offers("prox"):
            far = self._unstuck(u, near, far, eta)
        begin = torch.where(away > 0, torch.minimum(away, reach), reach)
        return [Place(near, reach), Place(far, size), Place(u, begin)]

    def _inside(self, u: Tensor, step: Tensor) -> Tensor:
        """u + step, or nearer to u where f has no finite value there, or u itself."""
        if not self.problem.offers & {"value", "grad"}:
            return u + step
        for _ in range(CLOSEST):
            outside = self.outside(u + step)
            if not bool(outside.any()):
                return u + step
            step = torch.where(outside, step / CLOSER, step)
        return torch.where(self.outside(u + step), u, u + step)

    def outside(self, x: Tensor) -> Tensor:
        """Whether f is not finite, (users, 1)."""
        answer = self.ask("value" if self.offers("value") else "grad", x)
        return ~torch.isfinite(answer.reshape(len(x), -1)).all(1, keepdim=True)

    def slopes(self, x: Tensor) -> Tensor:
        """Gradients at x, NaN outside of the domain of f, whatever a formula may give there."""
        g = self.ask("grad", x)
        return torch.where(self.outside(x), torch.nan, g) if self.offers("value") else g

    def _unstuck(self, u: Tensor, near: Tensor, far: Tensor, eta: float) -> Tensor:
        """Answers of a prox that stay at one kink show little, so `far` is moved away until they differ."""
        p = self.ask("prox", near, eta)
        for _ in range(3):
            q = self.ask("prox", far, eta)
            stuck = (p - q).norm(dim=1) <= 1e-3 * (near - far).norm(dim=1)
            if not bool(stuck.any()):
                break
            far = torch.where(stuck.unsqueeze(1), u + 30 * (far - u), far)
        return far

    def refuse(self, function: str, user: int, what: str, advice: str) -> NoReturn:
        """Raise InputError: one sentence with the user's number."""
        raise InputError(f"{function} of user {self.names[user]} {what}; {advice}{OR}")

    def refuse_claim(self, claim: str, what: str, advice: str) -> NoReturn:
        """The same for a claim about all users."""
        raise InputError(f"{claim} is {what}; {advice}{OR}")

    def refuse_first(self, function: str, bad: Tensor, what: str, advice: str, *numbers: Tensor) -> None:
        """Refuse the first user for whom `bad` is true, the numbers put into the words; nothing if there is none."""
        if bool(bad.any()):
            user = int(bad.nonzero()[0])
            self.refuse(function, user, what.format(*(float(number[user]) for number in numbers)), advice)
