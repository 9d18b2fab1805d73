"""Modules of several inputs, as dicts and tuples, and modules that compute their loss, against plain `.backward()`."""

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

import resolvent as rs
from resolvent.networks.calling import called_with
from resolvent.networks.method_choice import propose
from resolvent.networks.packed_inputs import Packing
from resolvent.networks.streamed import Placement
from resolvent.networks.user_inputs import as_user_data

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
DOUBLE = torch.float64
TOLERANCE = 1e-12
"""Sums of a few dozen doubles of size one, in another order."""


class Reader(nn.Module):
    """Classes from tokens, of which a mask says which are real, and from numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(11, 6), nn.Linear(8, 3)

    def forward(self, ids: Tensor, numbers: Tensor, mask: Tensor) -> Tensor:
        real = mask.to(numbers.dtype).unsqueeze(-1)
        return self.last(torch.cat([(torch.tanh(self.embed(ids)) * real).sum(1) / real.sum(1), numbers], 1))


class Writer(nn.Module):
    """A language model: from each token, the scores of the next one; with labels, the mean loss over tokens.

    `shift` = 0: labels are those of the same place, as where tokens are classified.
    """

    def __init__(self, shift: int = 1) -> None:
        super().__init__()
        self.embed, self.last, self.shift = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False), shift

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        h = torch.tanh(self.embed(input_ids))
        logits = self.last(h.cumsum(1) / torch.arange(1, h.shape[1] + 1, dtype=h.dtype)[:, None])
        loss = None
        if labels is not None:
            stop = logits.shape[1] - self.shift
            loss = F.cross_entropy(logits[:, :stop].flatten(0, 1), labels[:, self.shift :].flatten())
        return {"loss": loss, "logits": logits}


def reader() -> nn.Module:
    torch.manual_seed(0)
    return Reader().to(DOUBLE)


def writer(shift: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return Writer(shift).to(DOUBLE)


def people(sizes: Any = (4, 7, 5), seed: int = 1) -> list[tuple[dict[str, Tensor], Tensor]]:
    g = torch.Generator().manual_seed(seed)

    def user(n: int) -> tuple[dict[str, Tensor], Tensor]:
        mask = torch.rand(n, 5, generator=g) < 0.6
        mask[:, 0] = True
        ids = torch.randint(0, 11, (n, 5), generator=g)
        numbers = torch.randn(n, 2, generator=g, dtype=DOUBLE)
        return {"ids": ids, "numbers": numbers, "mask": mask}, torch.randint(0, 3, (n,), generator=g)

    return [user(n) for n in sizes]


def texts(sizes: Any = (4, 7, 5), seed: int = 2) -> list[list[Tensor]]:
    """Rows of different lengths."""
    g = torch.Generator().manual_seed(seed)
    lengths = [[int(torch.randint(3, 9, (), generator=g)) for _ in range(n)] for n in sizes]
    return [[torch.randint(0, 9, (length,), generator=g) for length in own] for own in lengths]


def padded(rows: list[Tensor]) -> dict[str, Tensor]:
    """Rows padded to the longest of them; padding has no label."""
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def equally_padded(users: list[list[Tensor]]) -> list[dict[str, Tensor]]:
    whole = padded([row for rows in users for row in rows])
    ends = np.cumsum([0, *map(len, users)])
    return [{key: t[a:b] for key, t in whole.items()} for a, b in pairwise(ends)]


def at(model: nn.Module, w: Tensor) -> nn.Module:
    model = copy.deepcopy(model)
    nn.utils.vector_to_parameters(w, model.parameters())
    return model


def slopes(model: nn.Module, W: Tensor, losses: list[Any]) -> Tensor:
    """Each user's gradient by plain autograd; losses are functions of the module."""
    rows = []
    for w, loss in zip(W, losses, strict=True):
        held = at(model, w)
        loss(held).backward()
        rows.append(torch.cat([p.grad.flatten() for p in held.parameters() if p.grad is not None]))
    return torch.stack(rows)


def token_sum(model: nn.Module, rows: list[Tensor], shift: int = 1) -> tuple[Tensor, int]:
    """The losses of all tokens of some texts, one by one, without padding, and how many there are."""
    total, count = torch.zeros((), dtype=DOUBLE), 0
    for row in rows:
        scores = model(input_ids=row[None])["logits"][0].log_softmax(-1)
        for k in range(shift, len(row)):
            total, count = total - scores[k - shift, row[k]], count + 1
    return total, count


def points(problem: Any) -> Tensor:
    g = torch.Generator().manual_seed(3)
    return problem.start + torch.randn(problem.users, problem.dim, generator=g, dtype=DOUBLE)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 7, 5)])
@pytest.mark.parametrize("form", ["dict", "tuple", "list of rows", "loader", "mixed"])
def test_gradients_values_and_minibatches_are_those_of_plain_autograd(form: str, sizes: Any) -> None:
    model, users = reader(), people(sizes)
    rows = [[({k: t[i] for k, t in x.items()}, y[i]) for i in range(len(y))] for x, y in users]
    forms: dict[str, Any] = {
        "dict": users,
        "tuple": [(tuple(x.values()), y) for x, y in users],
        "list of rows": rows,
        "loader": [DataLoader(own, 3, shuffle=True) for own in rows],  # type: ignore[arg-type]
        "mixed": [*users[:1], *rows[1:]],
    }
    problem = rs.Neural(model, forms[form])
    assert problem.method == "loop: its rows are several tensors"
    W = points(problem)
    whole = [lambda m, x=x, y=y: F.cross_entropy(m(**x), y) for x, y in users]
    assert torch.allclose(problem.grad(W), slopes(model, W, whole), rtol=0, atol=TOLERANCE)
    values = torch.stack([loss(at(model, w)).detach() for loss, w in zip(whole, W, strict=True)])
    assert torch.allclose(problem.value(W), values, rtol=0, atol=TOLERANCE)
    chosen = torch.tensor([[0, 2], [3, 1], [2, 3]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    some = [
        lambda m, x=x, y=y, at=at[real]: F.cross_entropy(m(**{k: t[at] for k, t in x.items()}), y[at])
        for (x, y), at, real in zip(users, chosen, mask, strict=True)
    ]
    assert torch.allclose(problem.batch_grad(W, chosen, mask), slopes(model, W, some), rtol=0, atol=TOLERANCE)


def test_inputs_of_any_types_reach_the_module_as_they_are() -> None:
    seen: list[dict[str, Tensor]] = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(2, 2)

        def forward(self, **batch: Tensor) -> Tensor:
            seen.append({key: t.clone() for key, t in batch.items()})
            return self.last(batch["a"])

    batch = {
        "a": torch.tensor([[1e-45, -0.0], [3.4e38, 1 / 3]]),
        "b": torch.tensor([2**62 + 1, -(2**63)]),
        "c": torch.tensor([[True], [False]]),
        "d": torch.tensor([[[1, -7]], [[3, 4]]], dtype=torch.int16),
    }
    problem = rs.Neural(Looks(), [(batch, torch.tensor([0, 1]))])
    seen.clear()
    problem.value(problem.start)
    assert seen[0].keys() == batch.keys()
    for key, t in batch.items():
        assert seen[0][key].dtype == t.dtype
        assert torch.equal(seen[0][key], t)


def test_the_module_is_left_as_it_was() -> None:
    model = reader()
    rs.Neural(model, people())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    x, _ = people()[0]
    assert model(**x).shape == (4, 3)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("form", ["padded alike", "loaders", "loaders of one batch"])
def test_a_models_own_loss_is_the_mean_over_a_users_tokens(form: str, shift: int) -> None:
    model, users = writer(shift), texts((4, 9, 5))
    forms: dict[str, Any] = {
        "padded alike": equally_padded(users),
        "loaders": [DataLoader(own, 2, collate_fn=padded) for own in users],  # type: ignore[arg-type]
        "loaders of one batch": [DataLoader(own, 16, collate_fn=padded) for own in users],  # type: ignore[arg-type]
    }
    problem = rs.Neural(model, forms[form], weights="tokens")
    assert problem.cuts.training == form.startswith("loaders")  # batches are taken one by one
    counts = torch.tensor([sum(len(row) - shift for row in rows) for rows in users], dtype=DOUBLE)
    assert torch.allclose(problem.weights, counts / counts.sum(), rtol=1e-15, atol=0)
    W = points(problem)

    def mean(model: nn.Module, rows: list[Tensor]) -> Tensor:
        total, count = token_sum(model, rows, shift)
        return total / count

    own = [lambda m, rows=rows: mean(m, rows) for rows in users]
    assert torch.allclose(problem.grad(W), slopes(model, W, own), rtol=0, atol=TOLERANCE)
    w = W[0]
    every = slopes(model, w[None], [lambda m: mean(m, [row for rows in users for row in rows])])[0]
    together = problem.weights @ problem.grad(w.expand(3, -1))
    assert torch.allclose(together, every, rtol=0, atol=TOLERANCE)
    chosen, mask = torch.tensor([[0, 2], [3, 1], [2, 3]]), torch.tensor([[1, 1], [1, 0], [1, 1]]).bool()
    some = [
        lambda m, rows=rows, which=which[real]: mean(m, [rows[i] for i in which.tolist()])
        for rows, which, real in zip(users, chosen, mask, strict=True)
    ]
    assert torch.allclose(problem.batch_grad(W, chosen, mask), slopes(model, W, some), rtol=0, atol=TOLERANCE)


def test_a_loss_of_ones_own_takes_the_place_of_the_models() -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(o.mT, y, label_smoothing=0.1)

    batches, model = equally_padded(texts()), writer()
    problem = rs.Neural(model, batches, loss)
    pairs = [({k: t for k, t in b.items() if k != "labels"}, b["labels"]) for b in batches]
    W = points(problem)
    plain = slopes(model, W, [lambda m, x=x, y=y: loss(m(**x)["logits"], y) for x, y in pairs])
    assert torch.allclose(problem.grad(W), plain, rtol=0, atol=TOLERANCE)
    assert torch.equal(rs.Neural(model, pairs, loss).grad(W), problem.grad(W))


LEAF = st.tuples(
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]),
    st.lists(st.integers(0, 3), max_size=3),
)


@given(st.lists(LEAF, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 3))
@settings(deadline=None, max_examples=50)
def test_what_is_packed_comes_back_bit_for_bit(leaves: Any, lengths: list[int], rows: int) -> None:
    g = torch.Generator().manual_seed(0)

    def inputs(more: int) -> dict[str | int, Tensor]:
        shapes = [(rows, *(n + more * (k == 0) for k, n in enumerate(shape))) for _, shape in leaves]
        bits = [torch.randint(0, 256, (*shape, dtype.itemsize), generator=g, dtype=torch.uint8)
                for (dtype, _), shape in zip(leaves, shapes, strict=True)]  # fmt: skip
        return {
            f"input {k}": (b[..., 0] > 99) if dtype == torch.bool else b.view(dtype).reshape(b.shape[:-1])
            for k, ((dtype, _), b) in enumerate(zip(leaves, bits, strict=True))
        }

    packing = Packing(inputs(0))
    given = [inputs(more) for more in lengths]
    packed = [packing.pack(each, "users") for each in given]
    for each, x in zip(given, packed, strict=True):
        for key, t in packing.unpack(x).items():
            assert t.dtype == each[key].dtype
            assert t.shape == each[key].shape
            assert t.contiguous().numpy().tobytes() == each[key].contiguous().numpy().tobytes()


def test_padding_that_a_model_looks_at_is_that_of_all_rows_collated_together() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.last = nn.Embedding(9, 5), nn.Linear(5, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.embed(ids).mean(1))

    torch.manual_seed(0)
    model, users = Careless().to(DOUBLE), texts((6, 5))

    def collate(rows: list[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        return {"ids": padded(rows)["input_ids"]}, torch.tensor([int(row[0]) % 2 for row in rows])

    problem = rs.Neural(model, [DataLoader(own, 2, collate_fn=collate) for own in users])  # type: ignore[arg-type]
    assert not problem.cuts.training
    W = points(problem)
    whole = [lambda m, x=x, y=y: F.cross_entropy(m(**x), y) for x, y in map(collate, users)]
    assert torch.allclose(problem.grad(W), slopes(model, W, whole), rtol=0, atol=TOLERANCE)


def test_metrics_are_those_of_the_targets_that_count() -> None:
    users = texts()
    loaders: Any = [DataLoader(own, 2, collate_fn=padded) for own in users]  # type: ignore[arg-type]
    problem = rs.Neural(writer(), loaders, weights="tokens", test=loaders)
    metrics: dict[str, Any] = {name: name for name in ("log_loss", "accuracy", "perplexity")}
    metrics["own"] = lambda y, o: float(torch.exp(F.cross_entropy(torch.from_numpy(o), torch.from_numpy(y))))
    run = rs.solve(problem, rs.fedavg(0.5), rounds=3, metrics=metrics)
    module = run.module().eval()
    with torch.no_grad():
        total, count = token_sum(module, [row for rows in users for row in rows])
    last = run.history.iloc[-1]
    mean = float(total) / count
    assert last.value == pytest.approx(mean, rel=1e-12)
    assert last.test_loss == pytest.approx(mean, rel=1e-12)
    assert last.test_log_loss == pytest.approx(mean, rel=1e-12)
    assert last.test_perplexity == pytest.approx(np.exp(mean), rel=1e-12)
    assert last.test_own == pytest.approx(np.exp(mean), rel=1e-12)
    hits = [
        bool(module(input_ids=row[None])["logits"][0, k - 1].argmax() == row[k])
        for rows in users
        for row in rows
        for k in range(1, len(row))
    ]
    assert last.test_accuracy == pytest.approx(np.mean(hits), rel=1e-12)


def test_predictions_take_the_same_inputs() -> None:
    users = people()
    run = rs.solve(rs.Neural(reader(), users, test=users[0]), rs.fedavg(0.1), rounds=2)
    x, y = users[1]
    scores = run.module().eval()(**x)
    assert np.array_equal(run.predict(x), scores.argmax(1).numpy())
    assert run.score(x, y) == pytest.approx(float((scores.argmax(1) == y).double().mean()))
    with pytest.raises(rs.InputError, match="a batch of ids, numbers, mask is needed"):
        run.predict(x["ids"])


@pytest.mark.parametrize("own", [False, True])
def test_a_resumed_run_has_the_same_bits(own: bool) -> None:
    def problem() -> Any:
        return rs.Neural(writer(), equally_padded(texts())) if own else rs.Neural(reader(), people())

    scheme = rs.fedprox(1.0, local=rs.GradientProx(2, lr=0.1, batch=2))
    whole = rs.solve(problem(), scheme, rounds=6, seed=4)
    begun = rs.solve(problem(), scheme, rounds=3, seed=4)
    ended = rs.solve(problem(), scheme, rounds=3, seed=4, start=begun.state)
    assert torch.equal(ended.model, whole.model)


def test_several_seeds_and_one_user_at_a_time_give_the_same() -> None:
    problem, scheme = rs.Neural(reader(), people((4, 4, 4))), rs.fedavg(0.1, local=rs.GradientSteps(1, batch=2))
    runs = rs.solve_seeds(problem, scheme, seeds=(0, 1), rounds=2)
    for seed, run in enumerate(runs):
        assert torch.equal(run.model, rs.solve(problem, scheme, rounds=2, seed=seed).model)
    checked = rs.solve(problem, scheme, rounds=2, engine="debug")
    assert torch.allclose(checked.model, runs[0].model, rtol=0, atol=TOLERANCE)


def test_a_mean_over_texts_is_no_mean_over_tokens() -> None:
    class Texts(Writer):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
            given = super().forward(input_ids)
            if labels is not None:
                each = F.cross_entropy(given["logits"][:, :-1].mT, labels[:, 1:], reduction="none")
                given["loss"] = (each.sum(1) / (labels[:, 1:] != -100).sum(1)).mean()
            return given

    torch.manual_seed(0)
    model, users = Texts().to(DOUBLE), texts((4, 9))
    problem = rs.Neural(model, [DataLoader(own, 2, collate_fn=padded) for own in users])  # type: ignore[arg-type]
    assert problem.mean is None
    W = points(problem)
    whole = [lambda m, batch=padded(rows): m(**batch)["loss"] for rows in users]  # noqa: B008
    assert torch.allclose(problem.grad(W), slopes(model, W, whole), rtol=0, atol=TOLERANCE)
    with pytest.raises(rs.InputError, match="weights is 'tokens'"):
        rs.Neural(model, [padded(users[0])], weights="tokens")


class Flow(IterableDataset[Tensor]):
    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Tensor]:
        return (row[: self.length].repeat(2)[: self.length] for row in texts((5,))[0])


def test_an_iterable_data_set_gives_batches_with_labels() -> None:
    problem = rs.Neural(writer(), [DataLoader(Flow(3), 2, collate_fn=padded)])
    assert problem.cuts.training
    W = points(problem)
    plain = slopes(writer(), W, [lambda m: m(**padded(list(Flow(3))))["loss"]])
    assert torch.allclose(problem.grad(W), plain, rtol=0, atol=TOLERANCE)


X, Y = people((4,))[0]
BATCH = equally_padded(texts((3,)))[0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rs.Neural(reader(), [(X | {"more": X["ids"]}, Y)]), "'more', but Reader.forward takes ids, numbers"),
        (lambda: rs.Neural(reader(), [({"ids": X["ids"]}, Y)]), "the model cannot take rows of ids .* missing 2"),
        (lambda: rs.Neural(reader(), [(X | {"ids": X["ids"][:3]}, Y)]), r"users\[0\] is ids of shape \(3, 5\)"),
        (lambda: rs.Neural(reader(), [(X, Y), (X | {"ids": X["ids"][:, :4]}, Y)]), r"users\[1\] is ids \(4,\) .* pad"),
        (lambda: rs.Neural(reader(), [(X, Y), ({"ids": X["ids"]}, Y)]), r"users\[1\] is of ids, but all users"),
        (lambda: rs.Neural(reader(), [(X, Y), (X["ids"], Y)]), r"users\[1\] is one tensor, but all users"),
        (lambda: rs.Neural(reader(), [(X | {"numbers": X["numbers"] / 0}, Y)]), "finite numbers are needed in numbers"),
        (lambda: rs.Neural(reader(), [(X, Y)], test=(tuple(X.values()), Y)), r"test\[0\] is of 3 inputs"),
        (lambda: rs.Neural(reader(), [X]), "'labels' must be among them"),
        (lambda: rs.Neural(writer(), [DataLoader(Flow(), 2, collate_fn=padded)]), "iterable data sets whose rows have"),
        (lambda: rs.Neural(reader(), [({}, Y)]), r"users\[0\] is without inputs"),
        (lambda: rs.Neural(writer(), [(BATCH, BATCH["labels"])]), "a pair whose inputs have 'labels'"),
        (
            lambda: rs.Neural(writer(), [BATCH | {"labels": BATCH["labels"][:, :2]}]),
            "the model cannot take rows of inp",
        ),
        (lambda: rs.Neural(writer(), [BATCH, BATCH | {"labels": BATCH["labels"] + 9}]), r"users\[1\]'s label is"),
        (
            lambda: rs.Neural(writer(), [BATCH | {"labels": BATCH["labels"] + 9}]),
            r"users\[0\]'s labels is partly 17, but",
        ),
        (lambda: rs.Neural(writer(), [BATCH | {"labels": BATCH["labels"] * 0 - 100}]), "without a row that the loss"),
        (lambda: rs.Neural(writer(), [BATCH | {"labels": [[1], [2, 3], [4]]}]), "an array of numbers is needed"),
        (lambda: rs.Neural(writer(), [BATCH], loss=lambda o, y: o.mean(), weights="tokens"), "weights is 'tokens'"),
        (lambda: rs.Neural(reader(), [((torch.ones(2, 3), torch.ones(2, 3)), Y[:2])]), "may be rows or inputs"),
    ],
)
def test_bad_input(make: Any, sentence: str) -> None:
    with pytest.raises(rs.InputError, match=sentence):
        make()


def test_vectorised_users_come_through_the_same_door() -> None:
    placement = Placement(torch.device("cpu"), DOUBLE, classes=True, finite=True)
    data, placement = as_user_data(people((4, 4, 4)), "users", placement)
    model = reader()
    with called_with(model, placement.packing):
        proposed = propose(model, F.cross_entropy, "cpu", DOUBLE, method="vmap")
    (batch,) = data.batches()
    W = proposed.layout.flatten(model) + torch.randn(3, proposed.dim, dtype=DOUBLE)
    assert proposed.method == "vmap"
    found = proposed.value_and_grad(W, batch.x, batch.y)
    plain = [lambda m, x=x, y=y: F.cross_entropy(m(**x), y) for x, y in people((4, 4, 4))]
    assert torch.allclose(found.grad, slopes(model, W, plain), rtol=0, atol=TOLERANCE)
