"""Users' data for networks: each user trains on its own rows, nothing writes to them, and what cannot be is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import resolvent as rs
from resolvent.networks import choose_method

DOUBLE = torch.float64
pytestmark = [
    pytest.mark.filterwarnings("ignore::resolvent.errors.MayNotConverge"),
    pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem"),
]


def people(*sizes: int, dtype: torch.dtype = DOUBLE, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 5, generator=g, dtype=dtype), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


def net(dtype: torch.dtype = DOUBLE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def normed(dtype: torch.dtype = DOUBLE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


class Rows(Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> Any:
        return self.x[k], self.y[k]


class Flow(IterableDataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x, self.y, strict=True))


# --- data stay as they are -------------------------------------------------------------------------------------------


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x /= 2
        return self.end(x) if float(x.sum()) < 1e9 else x


@pytest.mark.parametrize("sizes", [(6, 6), (6, 20)])
def test_a_module_that_writes_to_its_input_leaves_the_data(sizes: tuple[int, ...]) -> None:
    users = people(*sizes)
    problem = rs.Neural(Writing().to(DOUBLE), users, test=people(4, 5), validation=people(7)[0])
    before = [stack.x.clone() for stack in problem.data.stacks]  # type: ignore[attr-defined]
    first = problem.grad(problem.start), problem.value(problem.start)
    rs.solve(problem, rs.fedavg(0.1, steps=3), rounds=3)
    again = problem.grad(problem.start), problem.value(problem.start)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(stack.x, b) for stack, b in zip(problem.data.stacks, before, strict=True))  # type: ignore[attr-defined]
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(users, people(*sizes), strict=True))


@pytest.mark.parametrize("method", ["vmap", "loop"])
def test_no_method_writes_to_its_data(method: str) -> None:
    class Plain(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return super().forward(x)

    (x, y), (X, Y) = people(6, 6)
    x, y = torch.stack([x, X]), torch.stack([y, Y])
    W, before = torch.ones(2, 18, dtype=DOUBLE), x.clone()
    gradients = choose_method(Plain(5, 3), W, x, y, dtype=DOUBLE, method=method)
    for _ in range(2):
        gradients.value_and_grad(W, x, y)
        gradients.outputs(W, x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("make", [net, normed])
def test_a_loss_that_writes_to_output_and_target_leaves_both(make: Any) -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        o *= 2
        y.copy_((y + 1) % 3)
        return F.cross_entropy(o, y)

    def same(o: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(2 * o, (y + 1) % 3)

    problem, other = (rs.Neural(make(), people(6, 9), loss=f, test=people(4, 5)) for f in (loss, same))
    for _ in range(3):
        assert torch.equal(problem.value(problem.start), other.value(other.start))
        assert torch.allclose(problem.grad(problem.start), other.grad(other.start), rtol=1e-12)
    a, b = (rs.solve(p, rs.fedavg(0.1), rounds=2, metrics=["accuracy"]).history for p in (problem, other))
    assert a.test_accuracy.tolist() == b.test_accuracy.tolist()


def test_data_changed_by_the_caller_later_change_nothing() -> None:
    for stream in (False, True):
        users = people(6, 6)
        arrays: list[Any] = [users[0], (users[1][0].numpy(), users[1][1].numpy())]
        model = normed()
        problem = rs.Neural(model, [*arrays, Rows(*people(6)[0])] if stream else arrays)
        before = problem.grad(problem.start)
        users[0][0].zero_()
        arrays[1][0][:] = 7
        model(torch.randn(4, 5, dtype=DOUBLE))  # moves the module's own running means
        assert torch.equal(problem.grad(problem.start), before)
        assert torch.equal(problem.remembering({}).memory()["buffer.1.running_mean"][0], torch.zeros(7, dtype=DOUBLE))


# --- whose rows ------------------------------------------------------------------------------------------------------


def test_a_sampler_says_which_rows_are_the_users() -> None:
    x, y = people(30)[0]
    mine, theirs = [3, 8, 21, 4], [0, 1, 2]
    loaders = [DataLoader(Rows(x, y), 2, sampler=SubsetRandomSampler(rows)) for rows in (mine, theirs)]
    problem, plain = rs.Neural(net(), loaders), rs.Neural(net(), [(x[mine], y[mine]), (x[theirs], y[theirs])])
    assert problem.sizes.tolist() == [4, 3]
    assert torch.allclose(problem.grad(problem.start), plain.grad(plain.start), rtol=1e-12)
    scheme = rs.fedavg(0.1, local=rs.GradientSteps(1, batch=2))
    one, two = (rs.solve(p, scheme, rounds=2).model for p in (problem, plain))
    assert torch.allclose(one, two, rtol=1e-12)


class Doubled(TensorDataset):
    def __getitem__(self, k: int) -> Any:
        x, y = super().__getitem__(k)
        return 2 * x, y


def test_rows_are_what_reading_gives() -> None:
    """Not the tensors of a data set that changes them, nor all rows where a batch sampler gives some."""
    x, y = people(9)[0]
    some = BatchSampler(SubsetRandomSampler([1, 5, 6]), 2, drop_last=False)
    problem = rs.Neural(net(), [Doubled(x, y), DataLoader(Rows(x, y), batch_sampler=some)])
    plain = rs.Neural(net(), [(2 * x, y), (x[[1, 5, 6]], y[[1, 5, 6]])])
    assert problem.sizes.tolist() == [9, 3]
    assert torch.allclose(problem.grad(problem.start), plain.grad(plain.start), rtol=1e-12)


def test_parts_of_a_tensor_data_set_stay_on_the_device() -> None:
    x, y = people(30)[0]
    parts = random_split(TensorDataset(x, y), [10, 20], torch.Generator().manual_seed(0))
    nested = [Subset(parts[0], range(5)), parts[1]]
    problem = rs.Neural(net(), nested)
    assert hasattr(problem.data, "stacks")
    rows = [[parts[0].indices[k] for k in range(5)], parts[1].indices]
    plain = rs.Neural(net(), [(x[r], y[r]) for r in rows])
    assert torch.equal(problem.grad(problem.start), plain.grad(plain.start))


def test_a_shuffling_loader_gives_the_same_bits_every_time() -> None:
    loaders = [DataLoader(Rows(x, y), 3, shuffle=True) for x, y in people(11, 8)]
    problem = rs.Neural(net(), loaders)
    state = torch.get_rng_state()
    assert torch.equal(problem.grad(problem.start), problem.grad(problem.start))
    assert torch.equal(state, torch.get_rng_state())


def test_workers_and_collate_functions_are_those_of_the_loader() -> None:
    users = people(7, 9)
    loaders = [DataLoader(Rows(x, y), 4, num_workers=1, collate_fn=halved) for x, y in users]
    problem, plain = rs.Neural(net(), loaders), rs.Neural(net(), [(x / 2, y) for x, y in users])
    assert torch.allclose(problem.grad(problem.start), plain.grad(plain.start), rtol=1e-12)
    rows, mask = torch.tensor([[0, 3], [8, 1]]), torch.ones(2, 2)
    both = (p.batch_grad(p.start, rows, mask) for p in (problem, plain))
    assert torch.allclose(*both, rtol=1e-12)  # type: ignore[arg-type, misc]


def halved(rows: list[Any]) -> Any:
    return torch.stack([x for x, _ in rows]) / 2, torch.stack([y for _, y in rows])


# --- rows drawn at random --------------------------------------------------------------------------------------------


class Augmented(Rows):
    def __getitem__(self, k: int) -> Any:
        noise = torch.randn(5, dtype=DOUBLE) + float(np.random.normal()) + random.random()
        return self.x[k] + noise, self.y[k]


def test_augmentation_is_fresh_in_every_step_and_follows_the_seed() -> None:
    def problem() -> rs.Neural:
        return rs.Neural(net(), [Augmented(*user) for user in people(6, 9)])

    one = problem()
    assert torch.equal(one.value(one.start), problem().value(one.start))  # figures are of one draw
    first = one.grad(one.start, seeds=np.array([5, 6], dtype=np.uint64))
    second = one.grad(one.start, seeds=np.array([5, 9], dtype=np.uint64))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    scheme = rs.fedavg(0.1, local=rs.GradientSteps(1, batch=4))
    whole = rs.solve(problem(), scheme, rounds=4, seed=3)
    half = rs.solve(problem(), scheme, rounds=2, seed=3)
    rest = rs.solve(problem(), scheme, rounds=2, seed=3, start=half.state)
    assert torch.equal(whole.model, rest.model)
    assert not torch.equal(whole.model, rs.solve(problem(), scheme, rounds=4, seed=4).model)


class Private(Rows):
    generator = np.random.default_rng(0)

    def __getitem__(self, k: int) -> Any:
        return self.x[k] + self.generator.normal(), self.y[k]


def test_rows_drawn_by_a_generator_of_their_own_are_warned_of() -> None:
    with pytest.warns(rs.ResolventWarning, match=r"users\[1\] reads other rows in every pass"):
        rs.Neural(net(), [people(4)[0], Private(*people(4)[0])])


# --- batches that users do not have ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_small_users_empty_batches_leave_its_batch_norm(stream: bool) -> None:
    users = people(4, 12)
    problem = rs.Neural(normed(), [Rows(*user) if stream else user for user in users])
    run = rs.solve(problem, rs.fedavg(0.1, local=rs.GradientSteps(2, batch=4)), rounds=1)
    alone = rs.Neural(normed(), users[:1])
    one = rs.solve(alone, rs.fedavg(0.1, local=rs.GradientSteps(2, batch=4)), rounds=1)
    assert run.state.memory["buffer.1.num_batches_tracked"].tolist() == [2, 6]
    for name, rows in one.state.memory.items():
        assert torch.allclose(run.state.memory[name][0], rows[0], rtol=1e-12)


def test_a_module_that_refuses_empty_batches_never_gets_one() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.end = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            if not float(x.abs().max()) >= 0:  # fails where there are no rows
                raise ValueError("no rows")
            return self.end(x)

    problem = rs.Neural(Picky().to(DOUBLE), people(3, 12))
    rs.solve(problem, rs.fedavg(0.1, local=rs.GradientSteps(1, batch=3)), rounds=1)
    nobody = problem.batch_grad(problem.start, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))
    assert nobody.shape == (2, problem.dim)
    assert not bool(nobody.any())


def test_a_batch_of_ignored_labels_moves_nobody() -> None:
    x = people(4)[0][0]
    problem = rs.Neural(net(), [(x, torch.tensor([-100, -100, 1, 2]))])
    slope = problem.batch_grad(problem.start, torch.tensor([[0, 1]]), torch.ones(1, 2))
    assert not bool(slope.any())


def test_one_row_and_batch_norm() -> None:
    with pytest.raises(rs.InputError, match=r"users\[1\] is of one row, but the model cannot be trained on one"):
        rs.Neural(normed(), people(4, 1, 5))
    problem = rs.Neural(normed(), people(4, 5))
    with pytest.raises(rs.InputError, match=r"a batch has one row, .* take a batch size that leaves no single row"):
        rs.solve(problem, rs.fedavg(0.1, local=rs.GradientSteps(1, batch=4)), rounds=1)


# --- streams are what resident data are ------------------------------------------------------------------------------

WEIGHT = torch.tensor([1.0, 10.0, 0.1], dtype=DOUBLE)


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(weight=WEIGHT),
        nn.CrossEntropyLoss(ignore_index=1),
        nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=0, label_smoothing=0.3),
        nn.CrossEntropyLoss(reduction="sum"),
        lambda o, y: F.cross_entropy(o, y) + o.std(0).sum(),
    ],
)
@pytest.mark.parametrize("make", [net, normed])
@pytest.mark.parametrize("kind", [Rows, Flow])
@pytest.mark.filterwarnings("ignore:loss is a sum over rows")
def test_streamed_users_are_what_resident_ones_are(loss: Any, make: Any, kind: Any) -> None:
    users = [(x, y.sort().values) for x, y in people(17, 11)]
    test = [(x, y.sort().values) for x, y in people(9, 14, seed=3)]
    resident = rs.Neural(make(), users, loss=loss, test=test)
    loaders = ([DataLoader(kind(x, y), 4) for x, y in sets] for sets in (users, test))
    streamed = rs.Neural(make(), next(loaders), loss=loss, test=next(loaders))
    assert torch.allclose(streamed.grad(streamed.start), resident.grad(resident.start), rtol=1e-11)
    assert torch.allclose(streamed.value(streamed.start), resident.value(resident.start), rtol=1e-11)
    scheme, asked = rs.fedavg(0.1, steps=2), ["accuracy"]
    a, b = (rs.solve(problem, scheme, rounds=2, metrics=asked) for problem in (streamed, resident))
    shown = ["value", "test_loss", "test_accuracy", "personal_test_loss"]
    assert np.allclose(a.history[shown], b.history[shown], rtol=1e-10)
    for name, rows in b.state.memory.items():
        assert torch.allclose(a.state.memory[name], rows, rtol=1e-10)


def test_streams_are_cut_only_where_rows_do_not_meet() -> None:
    def cut(model: nn.Module, loss: Any) -> tuple[bool, ...]:
        return tuple(rs.Neural(model, [Rows(*people(9)[0])], loss=loss).cuts)

    assert cut(net(), F.cross_entropy) == (True, True)
    assert cut(net(), nn.CrossEntropyLoss(weight=WEIGHT)) == (True, True)
    assert cut(net(), lambda o, y: F.cross_entropy(o, y)) == (False, True)
    assert cut(normed(), F.cross_entropy) == (False, True)
    assert cut(nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False), net()), F.cross_entropy) == (False, False)


class Centred(nn.Module):
    """Rows meet in their mean, in training only or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.end, self.always = nn.Linear(5, 2).to(DOUBLE), always

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x - x.mean(0) if self.always or self.training else x)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.SmoothL1Loss(beta=1e-3), nn.HuberLoss(delta=1e-3)])
def test_rows_that_meet_are_not_cut_where_all_residuals_have_one_sign(always: bool, loss: Any) -> None:
    """The gradient over two rows is then the mean of those over each, but over all rows it is another."""
    torch.manual_seed(0)
    x, y = torch.randn(9, 5, dtype=DOUBLE), torch.randn(9, 2, dtype=DOUBLE)
    y[:2] += 100
    model = Centred(always)
    problem = rs.Neural(model, [DataLoader(Rows(x, y), 2)], loss=loss)
    assert problem.cuts == (False, not always)
    value = loss(model(x), y)
    wanted = torch.autograd.grad(value, list(model.parameters()))
    assert torch.allclose(problem.grad(problem.start)[0], torch.cat([g.flatten() for g in wanted]), rtol=1e-12)


def test_parts_of_a_stream_draw_their_own_dropout() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3)).to(DOUBLE)
    x, y = people(4)[0]
    twice = torch.cat([x, x]), torch.cat([y, y])
    grads = []
    for user in (DataLoader(Rows(*twice), 4), DataLoader(Rows(x, y), 4)):
        problem = rs.Neural(model, [user])
        grads.append(problem.grad(problem.start, seeds=np.array([7], dtype=np.uint64)))
    assert not torch.allclose(grads[0], grads[1])  # the second half of the rows would repeat the first half's noise


class Once(IterableDataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.rows = iter(zip(x, y, strict=True))

    def __iter__(self) -> Iterator[Any]:
        return self.rows


class Shrinking(Flow):
    size = 9

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x[: self.size], self.y, strict=False))


def test_a_stream_that_gives_fewer_rows_later_ends_the_run() -> None:
    stream = Shrinking(*people(9)[0])
    problem = rs.Neural(net(), [stream])
    problem.grad(problem.start)
    stream.size = 8
    with pytest.raises(rs.InputError, match="gave 8 rows, but 9 when the problem was built"):
        problem.grad(problem.start)


# --- types, shapes and figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8, torch.int64])
@pytest.mark.parametrize("make", [net, normed])
def test_whole_labels_of_any_type_are_classes(kind: torch.dtype, make: Any) -> None:
    users = people(6, 9)
    problem, plain = rs.Neural(make(), [(x, y.to(kind)) for x, y in users]), rs.Neural(make(), users)
    assert torch.equal(problem.grad(problem.start), plain.grad(plain.start))


def test_frames_arrays_and_lists_are_data() -> None:
    users = people(6, 9, dtype=torch.float32)
    plain = rs.Neural(net(torch.float32), users)
    (x, y), (X, Y) = users
    readonly = X.numpy().copy()
    readonly.flags.writeable = False
    frames = (pd.DataFrame(x.numpy().astype(">f8")), pd.Series(y.numpy()))
    for first in (frames, (x.tolist(), y.tolist()), (list(x), list(y)), (x.double().requires_grad_(), y)):
        problem = rs.Neural(net(torch.float32), [first, (readonly, Y.numpy()[::-1][::-1])])
        assert torch.equal(problem.grad(problem.start), plain.grad(plain.start))


def test_a_shared_test_set_may_be_arrays() -> None:
    x, y = people(20)[0]
    one, two = (rs.Neural(net(), people(6, 9), test=test) for test in ((x, y), (x.numpy(), y.numpy())))
    a, b = (rs.solve(problem, rs.fedavg(0.1), rounds=1).history for problem in (one, two))
    assert a.test_loss.tolist() == b.test_loss.tolist()


def test_one_output_has_no_accuracy() -> None:
    """The largest of one score is always the first: the share of zeros is no accuracy."""

    def loss(o: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(o.squeeze(-1), y.to(o))

    users = [(x, y % 2) for x, y in people(6, 9)]
    problem = rs.Neural(nn.Linear(5, 1).to(DOUBLE), users, loss=loss, test=users)
    assert "test_accuracy" not in rs.solve(problem, rs.fedavg(0.1), rounds=1).history


def test_buffers_that_count_are_averaged_as_whole_numbers() -> None:
    problem = rs.Neural(normed(), people(4, 12))
    run = rs.solve(problem, rs.fedavg(0.1, local=rs.GradientSteps(1, batch=4)), rounds=3)
    assert run.state.memory["buffer.1.num_batches_tracked"].tolist() == [3, 9]
    assert int(run.module()[1].num_batches_tracked) == 6  # type: ignore[index]


def test_buffers_follow_the_type_of_the_problem() -> None:
    problem = rs.Neural(normed(torch.float32), people(6, 9), dtype=DOUBLE)
    run = rs.solve(problem, rs.fedavg(0.1), rounds=1)
    assert run.state.memory["buffer.1.running_mean"].dtype == DOUBLE


def test_the_debug_engine_keeps_buffers_too() -> None:
    problem = rs.Neural(normed(), people(6, 9, 7))
    runs = [rs.solve(problem, rs.fedavg(0.1), rounds=3, participation=0.5, engine=e) for e in ("inprocess", "debug")]
    assert torch.allclose(runs[0].model, runs[1].model, rtol=1e-12)
    for name in ("buffer.1.running_mean", "buffer.1.num_batches_tracked"):
        assert torch.allclose(runs[0].state.memory[name], runs[1].state.memory[name], rtol=1e-12)


def bad(x: Tensor, y: Tensor, **settings: Any) -> rs.Neural:
    """The second user is the bad one."""
    return rs.Neural(net(), [people(4)[0], (x, y)], **settings)


X, Y = people(4)[0]
NAN = X.clone()
NAN[2, 1] = torch.nan


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bad(NAN, Y), r"users\[1\] is partly NaN or infinite"),
        (lambda: rs.Neural(net(), [Rows(X, Y), Rows(NAN, Y)]), r"users\[1\] is partly NaN or infinite"),
        (lambda: bad(1e300 * X, Y, dtype=torch.float32), r"users\[1\] is partly NaN or infinite"),
        (lambda: rs.Neural(net(), [(X, NAN[:, :3])], loss=F.mse_loss), r"users\[0\] is partly NaN .* in y"),
        (lambda: bad(X, Y, test=[(X, Y), (NAN, Y)]), r"test\[1\] is partly NaN"),
        (lambda: bad(X, torch.tensor([0, 1, 2, 3])), r"users\[1\]'s label is 3, .* 3 outputs"),
        (lambda: rs.Neural(net(), [Rows(X, Y), Rows(X, Y + 3)]), r"users\[1\]'s label is [345], .* 3 outputs"),
        (lambda: bad(X, Y - 5, loss=nn.CrossEntropyLoss()), r"users\[1\]'s label is -[345]"),
        (lambda: bad(X, Y, test=[(X, Y), (X, Y + 3)]), r"test\[1\]'s label is"),
        (lambda: bad(X, Y + 3, loss=lambda o, y: F.cross_entropy(o, y)), r"the targets of users\[1\]: Target"),
        (lambda: bad(X, torch.full((4,), -100)), r"users\[1\] is without a row that the loss counts"),
        (lambda: rs.Neural(net(), [(X, Y.double())]), "labels are whole numbers: pass y.long()"),
        (lambda: rs.Neural(normed(), [((255 * X.abs()).to(torch.uint8), Y)]), "rows of shape .* of torch.uint8"),
        (lambda: bad(X[:, :4], Y), r"users\[1\] is x \(4,\) .* those of users\[0\] are x \(5,\)"),
        (lambda: rs.Neural(net(), [Rows(X, Y), Rows(X[:, :4], Y)]), r"users\[1\] is x \(4,\)"),
        (lambda: bad(X, Y.double()), r"users\[1\] is .* y \(\) of torch.float64"),
        (lambda: bad(X, Y, test=[(X, Y), (X[:, :4], Y)]), r"test\[1\] is x \(4,\)"),
        (lambda: bad(X, Y, test=(X[:, :4], Y)), "cannot take rows of shape .4,., those of test"),
        (lambda: rs.Neural(net(), [TensorDataset(X, Y, Y)]), "a TensorDataset of 3 tensors"),
        (lambda: rs.Neural(net(), [(X, Y, Y)]), r"users\[0\] is a tuple of 3"),
        (lambda: rs.Neural(net(), [[(X[0], Y[0]), (X[1], Y[1])]]), "a list of two tuples"),
        (lambda: rs.Neural(net(), [(X, ["a", "b", "c", "d"])]), r"users\[0\]'s y is of type list, but an array of num"),
        (lambda: rs.Neural(net(), [{"x": X, "y": Y}]), "a dict of .*, but 'labels' must be among them"),
        (lambda: rs.Neural(net(), [X]), r"users\[0\] is read as a Tensor"),
        (lambda: rs.Neural(net(), [Rows(X, Y), Rows(X, Y[:3])]), r"users\[1\] cannot be read: IndexError"),
        (lambda: rs.Neural(net(), [Rows(X[:0], Y[:0])]), r"users\[0\] is empty"),
        (lambda: rs.Neural(net(), [DataLoader(Rows(X, Y), sampler=SubsetRandomSampler([]))]), r"users\[0\] is empty"),
        (lambda: rs.Neural(net(), [DataLoader(Rows(X, Y), sampler=SubsetRandomSampler([9]))]), "IndexError"),
        (lambda: rs.Neural(net(), [Subset(TensorDataset(X, Y), [0, 7])]), r"users\[0\] cannot be read: index 7"),
        (lambda: rs.Neural(net(), [Once(X, Y)]), "can be gone through only once"),
        (lambda: rs.Neural(net(), [DataLoader(Flow(X, Y), 3, drop_last=True)]), "pass drop_last=False"),
        (lambda: rs.Neural(net(), [DataLoader(Rows(X, Y), 3, drop_last=True)]), "pass drop_last=False"),
        (
            lambda: rs.Neural(net(), [DataLoader(Rows(X, Y), sampler=WeightedRandomSampler(torch.ones(4), 4))]),  # type: ignore[arg-type]
            "draws rows by weights, but f_i has fixed rows",
        ),
        (
            lambda: rs.Neural(net(), [DataLoader(Rows(X, Y), 2, collate_fn=lambda rows: halved(rows[:1]))]),
            r"users\[0\] is read as 2 rows where it has 4",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_users_number(make: Any, sentence: str) -> None:
    with pytest.raises(rs.InputError, match=sentence):
        make()


def test_the_global_generators_are_left_alone() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    problem = rs.Neural(normed(), [Augmented(*user) for user in people(6, 9)])
    rs.solve(problem, rs.fedavg(0.1), rounds=1)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # type: ignore[index]
    assert states[2] == random.getstate()
