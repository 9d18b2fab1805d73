"""Table 1 of the paper, and its kin, as rows of data: an algorithm is one row, and everything else reads the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from resolvent.errors import InputError, number, quoted, refuse
from resolvent.iteration import registry
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
    local: str | None = None
    """The registered local operator that it takes; None: a prox or gradient steps, as `forward` says."""
    steps: int = 1
    """Local steps of its operator, unless told otherwise."""
    free: tuple[str, ...] = ()
    """Which of alpha, beta and gamma may be chosen, above 1: what is given is where they stand unless they are."""
    kin: str = ""
    """What it is an instance of, and what differs from its paper: a sentence without its full stop."""
    sampling: str = ""
    """Whose rule `absent="paper"` is where it is not Algorithm 1 (`participation.RULES`); "none": the paper has
    everybody present, and it is refused."""

    @property
    def exact(self) -> bool:
        """Whether its prox solves the original problem at any eta, so that eta can be found while running."""
        return not self.forward and self.local is None and cancels(self.alpha, self.beta)

    @property
    def default_eta(self) -> str | None:
        """ "auto" where what is solved does not depend on eta; None where a step size must be given."""
        return AUTO if self.exact else None

    @property
    def size(self) -> str:
        """What the step size is called where the row's function takes it."""
        return "eta" if self.local is None else "lr"

    def operator(self, **settings: Any) -> Any:
        """Its own local operator."""
        assert self.local is not None
        return registry.named("local", self.local).make(**{"steps": self.steps} | settings)

    def scheme(self, eta: Number | str, local: Any = None, steps: int | None = None, **free: float) -> Scheme:
        """The scheme of this row; `free` are those of alpha, beta and gamma that may be chosen."""
        for name, value in free.items():
            if isinstance(value, int | float) and not number(value) > 1:
                refuse(name, quoted(value), f"{self.title} needs a number > 1: rs.fedprox has 1, rs.Scheme any other")
        if local is None and self.local is not None:
            local = self.operator(**{} if steps is None else {"steps": steps})
        mixing = {"alpha": self.alpha, "beta": self.beta, "gamma": self.gamma} | free
        count = steps if steps is not None and self.local is None else 1
        return Scheme(
            **mixing, eta=eta, local=local, name=self.title, forward=self.forward, steps=count, beyond=bool(self.free),
            sampling=self.sampling,
        )  # fmt: skip


_TILTED = ", so that its fixed points solve the original problem at any eta for which it converges"

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
    "scaffold": Row("SCAFFOLD", 2, 2, 0.5, forward=False, colour="#8C510A", compared=False, local="tilted-steps",
                    steps=5, kin=f"SCAFFOLD is FedPi with k tilted gradient steps in place of the prox{_TILTED}; its "
                    'paper moves c by the share of users present and x to their models alone: so does absent="paper", '
                    'while "hold" takes the latest models of all', sampling="scaffold",
                    about="FedPi with k tilted gradient steps for the prox; solves the original problem, eta = k lr"),
    "scaffnew": Row("Scaffnew", 2, 2, 0.5, forward=False, colour="#01665E", compared=False, local="random-tilted-steps",
                    steps=5, kin="Scaffnew (ProxSkip) is SCAFFOLD with a geometric number of steps, and so FedPi with "
                    f"tilted steps in place of the prox{_TILTED}; its paper has everybody present", sampling="none",
                    about="SCAFFOLD with a geometric number of steps of mean k; solves the original problem"),
    "feddyn": Row("FedDyn", 2, 2, 0.5, forward=False, colour="#B2182B", compared=False,
                  kin="FedDyn is FedPi, with eta = 1/alpha of its paper, and has FedPi's theorem; under sampling its "
                  'paper averages the models of those present and the duals of all: so does absent="paper", while '
                  '"hold" takes the latest models of all', sampling="feddyn",
                  about="FedPi under another name, eta = 1/alpha of its paper; solves the original problem, convex"),
    "fedadmm": Row("FedADMM", 2, 2, 0.5, forward=False, colour="#762A83", compared=False,
                   kin="FedADMM with a server step of 1 is FedPi, with eta = 1/rho of its paper, and has FedPi's "
                   'theorem; under sampling its paper adds the changes of those present times that step: '
                   'absent="paper" is the step |S|/N, and so is "hold" once everybody has answered', sampling="fedadmm",
                   about="FedPi under another name, eta = 1/rho of its paper; solves the original problem, convex"),
    "fedpd": Row("FedPD", 2, 2, 0.5, forward=False, colour="#1B7837", compared=False,
                 kin="FedPD that meets in every round is FedPi, with the same eta, and has FedPi's theorem; its paper "
                 "skips meetings at random, which is not done here", sampling="none",
                 about="FedPi under another name, at the same eta; solves the original problem, convex"),
    "fedexprox": Row("FedExProx", 1, 1, 1.5, forward=False, colour="#BF812D", compared=False, free=("gamma",),
                     kin="FedExProx is FedProx with gamma > 1: it goes that much further, to the same fixed points; "
                     'under sampling its paper is absent="paper", Algorithm 1',
                     about="FedProx that goes gamma > 1 times as far; has the fixed points of FedProx at eta"),
    "fednova": Row("FedNova", 1, 1, 1, forward=True, colour="#4393C3", compared=False, local="normalised-steps",
                   steps=5, kin="FedNova is FedAvg with displacements divided by the number of steps, so that users "
                   "with many steps pull no harder; at equal numbers of steps it is FedAvg; under sampling its paper "
                   'is absent="paper", Algorithm 1, here with the mean number of steps of all users, present or not',
                   about="FedAvg in which users with many steps pull no harder; about the regularised problem"),
}  # fmt: skip
"""Table 1 of the paper by name, then its kin. Colours of Table 1 are Okabe and Ito's, but for their yellow and black:
colour-blind readers can tell them apart."""


def named(name: str, eta: Number | str, local: Any = None, steps: int | None = None, **free: float) -> Scheme:
    """The scheme of a row of the table."""
    if name not in TABLE:
        refuse("scheme", quoted(name), f"one of {', '.join(TABLE)} or an rs.Scheme is needed")
    return TABLE[name].scheme(eta, local, steps, **free)


def fedavg(eta: Number, steps: int = 1, local: Any = None) -> Scheme:
    """FedAvg (eq:FB): P_H G^k. Solves the original problem if steps = 1."""
    return named("fedavg", eta, local, steps)


def fedprox(eta: Number, local: Any = None) -> Scheme:
    """FedProx (eq:BB): P_H P. Solves the problem of the Moreau envelopes (eq:regFL) at eta."""
    return named("fedprox", eta, local)


def fedsplit(eta: Number | str = "auto", local: Any = None) -> Scheme:
    """FedSplit (eq:PR): R_H R. Solves the original problem where it converges: strongly convex and smooth f_i."""
    return named("fedsplit", eta, local)


def fedpi(eta: Number | str = "auto", local: Any = None) -> Scheme:
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


def scaffold(
    lr: float, steps: int, batch: int | None = None, momentum: float = 0.0, eta: Number | None = None
) -> Scheme:
    """SCAFFOLD (Karimireddy et al., 2020; option II, server step 1): FedPi with k tilted gradient steps for the prox.

    It solves the original problem at any eta for which it converges. eta is k lr, as in the paper; with `batch`, which
    makes `steps` shuffled passes over the rows, k is the number of batches in all, of the user who has most; with
    momentum it is what the k steps amount to. Another eta moves no fixed point; a larger one damps s_i's changes.
    The paper's x is mean(u); the model of a run is mean(z), as for FedPi, which has the same limit.

    Under sampling users who are absent keep their u_i ("hold"), and it converges. The paper moves c by |S|/N of the
    mean change of those present, and x to the mean of their models: `absent="paper"`, at an eta that stays as it is.
    """
    return _tilted("scaffold", lr, steps, batch, momentum, eta)


def scaffnew(
    lr: float, steps: int, batch: int | None = None, momentum: float = 0.0, eta: Number | None = None
) -> Scheme:
    """Scaffnew (ProxSkip; Mishchenko et al., 2022): SCAFFOLD with a geometric number of steps of mean `steps`.

    The paper meets after each step with probability p = 1 / steps. The number is drawn for each round, the same for all
    users, by hashed randomness. eta is lr / p; it solves the original problem.
    """
    return _tilted("scaffnew", lr, steps, batch, momentum, eta)


def _tilted(name: str, lr: float, steps: int, batch: int | None, momentum: float, eta: Number | None) -> Scheme:
    if lr is None:
        refuse("lr", None, "a finite number > 0 is needed")
    local = TABLE[name].operator(steps=steps, lr=lr, batch=batch, momentum=momentum)
    own = local.own_eta(None) if eta is None else eta
    return named(name, AUTO if own is None else own, local)


def feddyn(eta: Number | str, local: Any = None) -> Scheme:
    """FedDyn (Acar et al., 2021) is FedPi, with eta = 1/alpha of the paper.

    Under sampling absent users keep their u_i ("hold"); the paper averages the models of those present and the duals of
    all users: `absent="paper"`.
    """
    return named("feddyn", eta, local)


def fedadmm(eta: Number | str, local: Any = None) -> Scheme:
    """FedADMM (Gong et al., 2022) with a server step of 1 is FedPi, with eta = 1/rho of the paper."""
    return named("fedadmm", eta, local)


def fedpd(eta: Number | str, local: Any = None) -> Scheme:
    """FedPD (Zhang et al., 2021) that meets in every round is FedPi, with the same eta."""
    return named("fedpd", eta, local)


def fedexprox(eta: Number, gamma: Number, local: Any = None) -> Scheme:
    """FedExProx (Li, Acharya and Richtarik, 2024): FedProx that goes gamma > 1 times as far, to the same fixed points.

    With everybody present it converges for convex f_i and any gamma < 2, and for larger ones where users differ much.
    """
    return named("fedexprox", eta, local, gamma=gamma)  # type: ignore[arg-type]


def fednova(
    lr: Number,
    steps: int | Sequence[int],
    batch: int | None = None,
    momentum: float = 0.0,
    scale: float | None = None,
) -> Scheme:
    """FedNova (Wang et al., 2020): FedAvg whose users' displacements are divided by their numbers of steps.

    steps: one number, or one per user; with `batch`, shuffled passes over the rows, of which large users have more. The
    meeting goes as far as `scale` steps, by default the weighted mean of the users' (tau_eff in the paper).
    """
    local = TABLE["fednova"].operator(steps=steps, batch=batch, momentum=momentum, scale=scale)
    return named("fednova", lr, local)


def as_scheme(scheme: Scheme | str, eta: Number | str | None = None) -> Scheme:
    """A scheme, or a row of Table 1 by name; exact ones (FedPi, FedSplit) then find eta themselves."""
    if isinstance(scheme, Scheme):
        if eta is not None:
            refuse("eta", eta, f"{scheme.name} has its own already: give it there, or give the scheme by name")
        return scheme
    if not isinstance(scheme, str):
        refuse("scheme", quoted(scheme), f"one of {', '.join(TABLE)} or an rs.Scheme is needed")
    name = scheme.lower().replace("-", "_")
    if eta is None and name in TABLE:
        eta = TABLE[name].default_eta
        if eta is None:
            raise InputError(
                f"scheme is {scheme!r} without a step size, but {TABLE[name].title} cannot find one by itself; "
                f"write rs.{name}({TABLE[name].size}=...) or give eta"
            )
    return named(name, AUTO if eta is None else eta)
