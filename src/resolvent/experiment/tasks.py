"""Problems by configuration: made by seed, read from a file of the user's, or from a function of the user's."""

from __future__ import annotations

import hashlib
import math
import os
import runpy
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resolvent import data
from resolvent.config import problem_sections
from resolvent.data.tables import FRAMES, inner
from resolvent.data.target import class_weights
from resolvent.errors import InputError, ResolventWarning, quoted, refuse
from resolvent.iteration.facts import facts_of
from resolvent.iteration.registry import within
from resolvent.networks import models
from resolvent.networks.problem import Neural
from resolvent.problems.generate import make_least_squares, make_logistic
from resolvent.problems.penalty_words import parse_penalty
from resolvent.runs import regular
from resolvent.solving.beginning import with_penalty
from resolvent.theory import closed_forms


def cores() -> int:
    """Threads for networks: OMP_NUM_THREADS, or all; not what torch has now, which an earlier run may have set."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else os.cpu_count() or 1


@dataclass(frozen=True)
class Task:
    """A problem, the section that makes it again, an eta where one is customary, and who holds what."""

    problem: Any
    """The problem; or the Facts of users who live elsewhere, or who do not know of a penalty."""
    section: Any
    eta: float | None = None
    small: float | None = None
    """The eta of schemes that are exact at any, FedPi and FedSplit: on networks they run away with a large one."""
    threads: int = 1
    """Rounds of convex problems are short: threads that wait for each other cost more than they save."""
    partition: dict[str, Any] = field(default_factory=dict)
    test: data.HeldOut | None = None
    """Rows that nobody trains on, by which models are judged while the run goes on."""
    notes: tuple[str, ...] = ()
    """What a person should know of the data."""
    factory: str | None = None
    """The name of the function of rs.models that makes the network, where one does."""


def task(section: problem_sections.ProblemSection, seed: int, threads: int | None = None) -> Task:
    """The problem that a section describes, made with the threads that its runs will have where these are given.

    A function of the user's is called with one thread, whether its run begins or is resumed.
    """
    make = TASKS[type(section)]
    for name, value in vars(section).items():
        if isinstance(value, str) and "\0" in value:
            refuse(f"problem.{name}", quoted(value), "text without NUL is needed")
    torch.set_num_threads(
        1 if isinstance(section, problem_sections.OwnSection) or not threads or threads < 1 else threads
    )
    with within("problem"):
        try:
            return _penalised(make(section, seed), section)
        except InputError:
            raise
        except (MemoryError, OverflowError, RuntimeError, ValueError) as error:  # by NumPy or torch
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise InputError(f"the problem cannot be made ({why}); take fewer users, rows or features") from error


def _penalised(plain: Task, section: problem_sections.ProblemSection) -> Task:
    """The task with the penalty that its section names; a column of ones as an intercept is not penalised."""
    asked = getattr(section, "penalty", None)
    if asked is None:
        return plain
    penalty, problem = parse_penalty(asked), plain.problem
    if getattr(section, "intercept", False) and not len(getattr(problem, "intercepts", ())):
        penalty = penalty.free([problem.dim - 1])
    problem, beside = with_penalty(problem, None, penalty)
    if beside is not None:
        return replace(plain, problem=replace(facts_of(problem), penalty=beside, counted=False))
    return replace(plain, problem=problem)


def _least_squares(s: problem_sections.LeastSquaresSection, seed: int) -> Task:
    seed = seed if s.seed is None else s.seed
    _fits(s.users, s.rows, s.dim)
    return Task(make_least_squares(s.users, s.dim, s.rows, s.noise, s.shift, seed), s, eta=1e-5)


def _fits(users: int, rows: int, dim: int) -> None:
    """Refuse data that the machine cannot hold before any of it is made."""
    if not hasattr(os, "sysconf"):
        return
    needed, there = 8 * users * rows * dim, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        size = f"of {users} users with {rows} rows of {dim} numbers, {needed / 2**30:.3g} GiB"
        refuse("the problem", size, f"this machine has {there / 2**30:.3g} GiB: take fewer")


def _logistic(s: problem_sections.LogisticSection, seed: int) -> Task:
    _fits(s.users, s.rows, s.dim)
    return Task(make_logistic(s.users, s.dim, s.rows, seed if s.seed is None else s.seed), s, eta=1e-2)


def _table(s: problem_sections.TableSection, seed: int) -> Task:
    sha256 = _same_file(Path(s.data), s.sha256)
    frame, target = data.columns(s.data, s.target)
    file = Path(s.data).name
    guessed = s.target is None and _has_columns(file)  # other formats say what is predicted
    with within(f"{file}, to predict {target!r}" if guessed else file), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)  # its hints are noted
        table = data.from_frame(
            frame,
            s.user_column,
            target,
            drop=s.drop or (),
            test=s.test,
            test_users=s.test_users or (),
            impute=_imputing(s.impute),
            standardise=bool(s.standardise),
            intercept=bool(s.intercept),
            positive=s.positive,
            seed=seed if s.seed is None else s.seed,
            categories=s.categories or (),
            users=s.users,
            partition=s.partition,
            kind=s.name,
            sample_weight=s.sample_weight,
        )
    if table.kind == "least-squares" and s.reg is not None:
        refuse("problem.reg", s.reg, "least squares has none: give --penalty l2:T")
    problem = table.problem(table.kind, **_numbers(s, table.kind))
    L = closed_forms.curvatures(problem)[1]
    path = str(Path(s.data).absolute())  # so that it is found from any folder
    section = replace(s, name=table.kind, data=path, sha256=sha256)
    partition = _rows_by_class(table.division.training, table.codes)
    if s.user_column is not None:
        partition["names"] = list(table.users)
    eta = 1 / L if 0 < L < math.inf else None
    said = [f"what is predicted is {target!r}; --target names another column"] * guessed
    notes = (*said, _chosen(table, s, len(frame)), *table.hints)
    return Task(problem, section, eta=eta, partition=partition, test=table.held_out, notes=notes)


def _has_columns(file: str) -> bool:
    return inner(Path(file)).suffix.lower() in FRAMES


def _chosen(table: data.UserTable, s: problem_sections.TableSection, rows: int) -> str:
    """A sentence on the problem, the users and the rows that a table has become."""
    training, classes = sum(map(len, table.division.training)), table.preparation.classes
    kind = table.kind if classes is None else f"{table.kind} of {len(classes)} classes"
    instead = "; --user-column names whose they are" if _has_columns(s.data) else ""
    dealt = f" who are dealt rows ({s.partition or 'iid'}{instead})"
    users = f"{len(table.users)} users{dealt if s.user_column is None else ''}"
    return f"{kind}, {users}, {training} training rows" + (f", {rows - training} held out" if rows > training else "")


def _numbers(s: problem_sections.TableSection, kind: str) -> dict[str, Any]:
    """What was asked for beside the table, by the names of the problem's arguments."""
    own = {"huber": ("delta",), "quantile": ("quantile",)}.get(kind, ())
    for name in ("delta", "quantile"):
        if name not in own and getattr(s, name) is not None:
            refuse(f"problem.{name}", getattr(s, name), f"{kind} has none: leave it out")
    asked: dict[str, Any] = {"reg": s.reg, "weights": s.weights, "delta": s.delta, "q": s.quantile}
    if s.class_weight is not None:
        asked["class_weight"] = class_weights(s.class_weight, "problem.class_weight")
    return {name: value for name, value in asked.items() if value is not None}


def _imputing(asked: str | None) -> str | dict[str, str] | None:
    """`mean`, or `age=mean,sex=most_frequent` by column."""
    if asked is None or "=" not in asked:
        return asked
    pairs = [pair.rpartition("=") for pair in asked.split(",")]
    return {column.strip(): kind.strip() for column, _, kind in pairs}


def _images(s: problem_sections.ImagesSection, seed: int) -> Task:
    """A network on images: by the paper's protocol, or by that of Flower's niid_bench."""
    seed = seed if s.seed is None else s.seed
    make, network = LOADERS[s.name]
    paper = s.protocol == problem_sections.PAPER
    network = network if paper else NIID_BENCH[s.name]
    images = data.normalised(make(s.folder)) if paper else data.normalised(make(s.folder), 0.0, 1.0)
    x, y = images.x_train, images.y_train
    if s.images is not None:
        if not s.users <= s.images <= len(y):
            refuse("problem.images", s.images, f"a number from {s.users}, one per user, to {len(y)} is needed")
        part = data.split("iid", y.numpy(), 1, seed)[0][: s.images]
        x, y = x[part], y[part]
    parts = data.split(s.partition, y.numpy(), s.users, seed, equal=paper)
    shares = (0.8, 0.1, 0.1) if paper else (0.9, 0.1)
    kinds = list(zip(*(data.splits(rows, shares, seed) for rows in parts), strict=True))
    sets: list[Any] = [[(x[rows], y[rows]) for rows in kind] for kind in kinds]
    if not paper:  # pooled, so that users' own models, of which niid_bench says nothing, are not evaluated
        rows = np.concatenate(kinds[1])
        sets[1:] = [(x[rows], y[rows]), (images.x_test, images.y_test)]
    training, validation, test = sets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    problem = Neural(
        model, training, weights=s.weights, device=s.device, validation=validation, test=test, precision=s.precision
    )
    section = replace(s, folder=None if s.folder is None else str(Path(s.folder).absolute()))
    partition = _rows_by_class(parts, y.numpy())
    return Task(problem, section, eta=100.0, small=0.1, threads=cores(), partition=partition, factory=network.__name__)


def _own(s: problem_sections.OwnSection, seed: int) -> Task:
    path, _, name = s.name.rpartition(":")
    if not Path(path).is_file():
        refuse("problem", quoted(s.name), f"there is no file {path}: file.py:function is needed")
    sha256 = _same_file(Path(path), s.sha256)
    sys.path.insert(0, str(Path(path).resolve().parent))  # what lies beside the file can be imported
    try:
        make = runpy.run_path(path).get(name)
        if not callable(make):
            refuse("problem", quoted(s.name), f"{path} has no function {name}")
        problem = make()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{s.name} failed with {type(error).__name__}: {error}") from error
    if not hasattr(problem, "offers"):
        refuse(
            s.name,
            f"a function that returns {type(problem).__name__}",
            "one that returns a problem, rs.LeastSquares say, is needed",
        )
    threads = 1 if problem.convex else cores()
    return Task(problem, replace(s, name=f"{Path(path).absolute()}:{name}", sha256=sha256), threads=threads)


def _federation(s: problem_sections.FederationSection, seed: int) -> Task:
    raise InputError(
        "this run's users are on other machines: `resolvent federate run` begins such runs, and goes on with them "
        "with --resume"
    )


LOADERS: dict[str, tuple[Callable[..., data.Images], Callable[[], torch.nn.Module]]] = {
    "mnist": (data.mnist, models.mnist_cnn),
    "fashion-mnist": (data.fashion_mnist, models.mnist_cnn),
    "cifar10": (data.cifar10, models.cifar10_cnn),
}
NIID_BENCH: dict[str, Callable[[], torch.nn.Module]] = {
    "mnist": models.niid_bench_mnist,
    "fashion-mnist": models.niid_bench_mnist,
    "cifar10": models.niid_bench_cifar10,
}
TASKS: dict[type, Callable[[Any, int], Task]] = {
    problem_sections.LeastSquaresSection: _least_squares,
    problem_sections.LogisticSection: _logistic,
    problem_sections.TableSection: _table,
    problem_sections.ImagesSection: _images,
    problem_sections.OwnSection: _own,
    problem_sections.FederationSection: _federation,
}


def checksum(path: Path) -> str:
    """SHA-256 of a file; a pipe or a device, which may have no end, is refused."""
    try:
        with regular.opened(path, limit=None) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a file that is there") from None


def _same_file(path: Path, expected: str | None) -> str:
    """The checksum of a file, which must be the expected one, where one is expected."""
    sha256 = checksum(path)
    if expected not in (None, sha256):
        raise InputError(
            f"{path} is not the file that this run began with (its checksum differs); bring that back, "
            "or go on with this one by `resolvent fork`"
        )
    return sha256


def _rows_by_class(parts: Any, y: Any) -> dict[str, Any]:
    """Rows of each class that each user holds, where there are classes, and few of them."""
    if len(np.unique(y)) > 50 or not np.array_equal(y, np.rint(y)):
        return {"users": [len(rows) for rows in parts]}
    table, classes = data.counts(parts, y)
    return {"classes": [int(name) for name in classes], "counts": table.tolist()}
