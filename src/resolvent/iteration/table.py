"""Table 1 of the paper as rows of data: an algorithm is one row, and everything else reads the table."""

from __future__ import annotations

from typing import Any, NamedTuple

from resolvent.errors import InputError, refuse
from resolvent.iteration.scheme import AUTO, Number, Scheme, cancels


class Row(NamedTuple):
    """A line of Table 1, with all that the rest of the library needs to know about an algorithm.

    A new algorithm is a new row: `solve`, `explain`, the command line, reports and pictures read the table.
    """

    title: str
    alpha: float
    beta: float
    gamma: float
    forward: bool
    """Whether local(u) is gradient steps instead of a prox."""
    colour: str
    """Of its curves in every picture, as #RRGGBB."""
    about: str
    """One line of documentation."""
    compared: bool = True
    """Whether `resolvent compare` runs it without being asked to."""
    compared_steps: int = 1
    """Local gradient steps that `resolvent compare` lets it take, unless told otherwise."""

    @property
    def exact(self) -> bool:
        """Whether it solves the original problem at any eta."""
        return not self.forward and cancels(self.alpha, self.beta)

    @property
    def default_eta(self) -> str | None:
        """ "auto" where what is solved does not depend on eta; None where a step size must be given."""
        return AUTO if self.exact else None

    def scheme(self, eta: Number | str, local: Any = None, steps: int = 1) -> Scheme:
        """The scheme of this row."""
        mixing = self.alpha, self.beta, self.gamma
        return Scheme(*mixing, eta, local, name=self.title, forward=self.forward, steps=steps)


TABLE: dict[str, Row] = {
    "fedavg": Row("FedAvg", 1, 1, 1, forward=True, colour="#0072B2", compared_steps=2,
                  about="gradient steps, then the mean; solves the original problem with one local step"),
    "fedprox": Row("FedProx", 1, 1, 1, forward=False, colour="#E69F00",
                   about="prox, then the mean; solves the problem of the Moreau envelopes at eta"),
    "fedsplit": Row("FedSplit", 2, 2, 1, forward=False, colour="#009E73",
                    about="reflected prox, reflected mean; solves the original problem, strongly convex and smooth"),
    "fedpi": Row("FedPi", 2, 2, 0.5, forward=False, colour="#D55E00",
                 about="FedSplit averaged with the identity; solves the original problem, convex"),
    "fedrp": Row("FedRP", 2, 1, 1, forward=False, colour="#CC79A7",
                 about="reflected prox, then the mean; has the fixed points of FedProx"),
    "reflect_gradient": Row("R_H G", 1, 2, 1, forward=True, colour="#56B4E9", compared=False,
                            about="gradient steps, reflected mean; solves neither problem"),
    "reflect_prox": Row("R_H P", 1, 2, 1, forward=False, colour="#6B4C9A", compared=False,
                        about="prox, reflected mean; has the fixed points of FedProx at eta / 2"),
}  # fmt: skip
"""Table 1 of the paper by name. Colours are Okabe and Ito's, but for their yellow and black: colour-blind readers can
tell them apart."""


def named(name: str, eta: Number | str, local: Any = None, steps: int = 1) -> Scheme:
    """The scheme of a row of Table 1."""
    if name not in TABLE:
        refuse("scheme", repr(name), f"one of {', '.join(TABLE)} or an rs.Scheme is needed")
    return TABLE[name].scheme(eta, local, steps)


def fedavg(eta: Number, steps: int = 1, local: Any = None) -> Scheme:
    """FedAvg (eq:FB): P_H G^k. Solves the original problem if steps = 1."""
    return named("fedavg", eta, local, steps)


def fedprox(eta: Number, local: Any = None) -> Scheme:
    """FedProx (eq:BB): P_H P. Solves the problem of the Moreau envelopes (eq:regFL) at eta."""
    return named("fedprox", eta, local)


def fedsplit(eta: Number | str, local: Any = None) -> Scheme:
    """FedSplit (eq:PR): R_H R. Solves the original problem where it converges: strongly convex and smooth f_i."""
    return named("fedsplit", eta, local)


def fedpi(eta: Number | str, local: Any = None) -> Scheme:
    """FedPi (eq:DR): (id + R_H R) / 2. Solves the original problem for any convex f_i."""
    return named("fedpi", eta, local)


def fedrp(eta: Number, local: Any = None) -> Scheme:
    """FedRP (eq:rp): P_H R. Its fixed points are those of FedProx."""
    return named("fedrp", eta, local)


def reflect_gradient(eta: Number, steps: int = 1, local: Any = None) -> Scheme:
    """R_H G (eq:rg): its fixed points solve neither problem."""
    return named("reflect_gradient", eta, local, steps)


def reflect_prox(eta: Number, local: Any = None) -> Scheme:
    """R_H P (eq:rpp): its fixed points are those of FedProx at eta / 2."""
    return named("reflect_prox", eta, local)


def as_scheme(scheme: Scheme | str, eta: Number | str | None = None) -> Scheme:
    """A scheme, or a row of Table 1 by name; exact ones (FedPi, FedSplit) then find eta themselves."""
    if isinstance(scheme, Scheme):
        if eta is not None:
            refuse("eta", eta, f"{scheme.name} has its own already: give it there, or give the scheme by name")
        return scheme
    if not isinstance(scheme, str):
        refuse("scheme", repr(scheme), f"one of {', '.join(TABLE)} or an rs.Scheme is needed")
    name = scheme.lower().replace("-", "_")
    if eta is None and name in TABLE:
        eta = TABLE[name].default_eta
        if eta is None:
            raise InputError(
                f"scheme is {scheme!r} without a step size, but {TABLE[name].title} cannot find one by itself; "
                f"write rs.{name}(eta=...) or give eta"
            )
    return named(name, AUTO if eta is None else eta)
