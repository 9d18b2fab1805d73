"""Stacked layers against plain autograd, user by user."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resolvent as rs
from neural_reference import chosen, federation, plain_loop
from resolvent.networks import Captured
from resolvent.networks.models import cifar10_cnn, mnist_cnn
from resolvent.networks.stacked import convolution, jobs
from resolvent.networks.stacked import method as stacked
from resolvent.networks.stacked.group_norm import GroupNorm
from resolvent.networks.stacked.trace import trace

pytestmark = pytest.mark.usefixtures("convolutions")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


class Residual(nn.Module):
    """A net with views, functional calls, a shared layer, a frozen one and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.same = nn.Conv2d(6, 6, 3, padding=1)
        self.frozen = nn.Conv2d(6, 6, 1, bias=False).requires_grad_(False)
        self.end = nn.Linear(6 * 3 * 3, 4)
        self.unused = nn.Linear(3, 2)
        self.dead = nn.Linear(72, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.dead(torch.flatten(x, 1))
        x = F.relu(self.conv(x))
        x = x + torch.tanh(self.same(x))
        x = F.relu(self.same(x))
        x = self.frozen(F.max_pool2d(x, 2) + F.avg_pool2d(x, 2))
        x = x.view(x.size(0), -1)
        return F.log_softmax(self.end(x), dim=1)


class Forked(nn.Module):
    """Values that two layers look at, where one of them would like to overwrite, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = torch.relu(x) + x
        x = torch.relu(torch.tanh(self.b(x)))
        return self.c(x) + F.relu(self.c(x))


class Line(nn.Module):
    """Layers over one axis, the result of one of them looked at twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.end = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4 * 5, 3)
        self.pool = nn.MaxPool1d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = x + F.relu(self.b(x))
        return self.end(self.pool(F.relu(self.b(x))).flatten(1))


class Norms(nn.Module):
    """Normalisations of the data, of a value that two layers read, with shared and frozen parameters, and without."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.end = nn.Conv2d(4, 6, 3, padding=1), nn.Linear(54, 4)
        self.first, self.a, self.b, self.c = (nn.GroupNorm(g, c) for g, c in ((2, 4), (3, 6), (6, 6), (1, 6)))
        self.b.weight, self.c.bias = self.a.bias, self.c.weight
        self.a.weight.requires_grad_(False)
        self.plain = nn.GroupNorm(2, 6, eps=0.1, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.first(x))
        x = F.relu(self.a(x)) + self.plain(x)
        x = self.c(F.max_pool2d(F.relu(self.b(x)), 2))
        return self.end(F.relu(self.a(F.group_norm(x, 3, self.b.weight, eps=1e-3))).flatten(1))


def conv(*tail: nn.Module, shape: tuple[int, ...] = (2, 9, 8)) -> tuple[nn.Module, tuple[int, ...]]:
    """The layers, flattened into ten outputs."""
    net = nn.Sequential(*tail, nn.Flatten())
    width = net(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*tail, nn.Flatten(), nn.Linear(width, 10)), shape


NETS = {
    "mnist": lambda: (mnist_cnn(), (1, 28, 28)),
    "cifar": lambda: (cifar10_cnn(), (3, 32, 32)),
    "mlp": lambda: conv(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5, bias=False), shape=(3, 4)),
    "residual": lambda: (Residual(), (2, 6, 6)),
    "forked": lambda: (Forked(), (5,)),
    "line": lambda: conv(
        nn.Conv1d(2, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.AvgPool1d(2),
        nn.Conv1d(5, 3, 2),
        shape=(2, 19),
    ),
    "line and sum": lambda: (Line(), (2, 12)),
    "line to its end": lambda: conv(
        nn.Conv1d(2, 5, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(5, 4, 3), nn.ReLU(), nn.MaxPool1d(2), shape=(2, 19)
    ),
    "padded pool of a sum": lambda: conv(nn.Conv2d(2, 5, 3), nn.MaxPool2d(3, 3, 1), nn.Conv2d(5, 4, 1), nn.Sigmoid()),
    "stride": lambda: conv(nn.Conv2d(2, 5, 3, stride=2), nn.ReLU()),
    "padding": lambda: conv(nn.Conv2d(2, 5, (3, 2), padding=(2, 1)), nn.ReLU(), nn.Conv2d(5, 3, 3, padding="same")),
    "dilation": lambda: conv(nn.Conv2d(2, 5, 3, dilation=2), nn.Tanh(), nn.Conv2d(5, 3, 2, stride=2, dilation=2)),
    "wide": lambda: conv(nn.Conv2d(2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 40, 3, stride=2), nn.MaxPool2d(2)),
    "one by one": lambda: conv(nn.Conv2d(2, 5, 1), nn.Sigmoid(), nn.Conv2d(5, 3, 1, stride=2)),
    "tiles": lambda: conv(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2)),
    "tiles at once": lambda: conv(
        nn.Conv2d(2, 5, (5, 6), padding=(2, 1)), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(5, 4, 2), shape=(2, 9, 11)
    ),
    "tiles left over": lambda: conv(nn.Conv2d(2, 5, 2, bias=False), nn.MaxPool2d(3), nn.GELU()),
    "pool 3 by 2": lambda: conv(nn.Conv2d(2, 18, 2), nn.ReLU(), nn.MaxPool2d((3, 2)), nn.ELU(0.7)),
    "pools overlap": lambda: conv(nn.Conv2d(2, 5, 3), nn.MaxPool2d(3, stride=2, padding=1), nn.LeakyReLU(0.2)),
    "pools dilated": lambda: conv(nn.Conv2d(2, 5, 2), nn.MaxPool2d(2, stride=1, dilation=2), nn.SiLU()),
    "pool of data": lambda: conv(nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.Softplus(2.0)),
    "means": lambda: conv(nn.Conv2d(2, 5, 2), nn.AvgPool2d(3, stride=2, padding=1), nn.GELU("tanh")),
    "means to one": lambda: conv(nn.Conv2d(2, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    "means to tiles": lambda: conv(nn.Conv2d(2, 5, 2), nn.AdaptiveAvgPool2d((2, 7)), nn.Identity()),
    "normalised": lambda: conv(nn.Conv2d(2, 7, 2), nn.LocalResponseNorm(3, alpha=0.3, beta=0.6, k=2.0), nn.ReLU()),
    "group norms": lambda: (Norms(), (4, 6, 6)),
    "group norm over one axis": lambda: conv(nn.Conv1d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), shape=(2, 40)),
    "group norm of numbers": lambda: conv(nn.Linear(5, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 6), shape=(5,)),
    "group norm of flat data": lambda: conv(nn.Flatten(), nn.GroupNorm(2, 12), shape=(3, 4)),
    "normalised even": lambda: conv(nn.Conv2d(2, 7, 2), nn.ReLU(), nn.LocalResponseNorm(4, alpha=0.3)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_plain_autograd(name: str, device: str) -> None:
    model, shape = NETS[name]()
    fed = federation(model, shape, users=3, n=5)
    want_loss, want = plain_loop(fed)
    gradients = chosen(fed, device)
    W, x, y = (part.to(device) for part in (fed.W, fed.x, fed.y))
    for _ in range(3):  # on CUDA the second time is captured, and the third replayed
        loss, grad, _ = gradients.value_and_grad(W, x, y)
        assert gradients.method == "stacked", gradients.reason
        torch.testing.assert_close(loss.cpu(), want_loss, rtol=1e-12, atol=1e-12)
        assert float(((grad.cpu() - want).norm(dim=1) / want.norm(dim=1)).max()) < 1e-10
    out = chosen(fed, method="loop").outputs(fed.W, fed.x)
    torch.testing.assert_close(gradients.outputs(W, x).cpu(), out, rtol=1e-12, atol=1e-12)


def test_layers_over_one_axis_are_put_as_those_over_two() -> None:
    """One height put in, one taken out, and maxima before biases and ReLUs."""
    names = [type(stage.layer).__name__ for stage in trace(NETS["line to its end"]()[0], join=False).stages]
    middle = ["Conv", "MaxPool", "Bias", "ReLU"]
    assert names == ["Lift", *middle, *middle, "Lift", "Reshape", "Linear", "Bias"]


@pytest.mark.parametrize("device", DEVICES)
def test_data_may_lie_elsewhere_and_come_in_blocks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users who do not fit the device: their data stays on the host, and comes block by block."""
    model, shape = NETS["tiles"]()
    fed = federation(model, shape, users=5, n=70)
    monkeypatch.setattr(stacked, "CUDA_BLOCK_NUMBERS", 1 << 14)
    gradients = chosen(fed, device)
    want = plain_loop(fed)[1]
    for _ in range(3):
        grad = gradients.value_and_grad(fed.W.to(device), fed.x, fed.y).grad
        torch.testing.assert_close(grad.cpu(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_many_steps_in_one_are_the_steps(device: str) -> None:
    model, shape = NETS["tiles"]()
    fed = federation(model, shape, users=3, n=20)
    gradients = chosen(fed, device)
    W, x, y = (part.to(device) for part in (fed.W, fed.x, fed.y))

    def steps(W: Tensor) -> Tensor:
        for _ in range(4):
            W = W - 0.1 * gradients.value_and_grad(W, x, y).grad
        return W

    captured = Captured(steps)
    for _ in range(3):
        torch.testing.assert_close(captured(W), steps(W), rtol=1e-12, atol=1e-12)
        W = steps(W)


@pytest.mark.parametrize("name", ["mnist", "cifar", "wide"])
def test_in_single_precision_it_is_as_near_the_truth_as_plain_autograd(name: str) -> None:
    """Both against double precision, at the same parameters: a kink that falls the other way is allowed to either."""
    model, shape = NETS[name]()
    fed = federation(model, shape, users=3, n=40, dtype=torch.float32)
    truth = plain_loop(fed.to(torch.float64))[1]
    ours = chosen(fed).value_and_grad(fed.W, fed.x, fed.y).grad
    error = (ours - truth).norm(dim=1) / truth.norm(dim=1)
    theirs = (plain_loop(fed)[1] - truth).norm(dim=1) / truth.norm(dim=1)
    assert float(error.max()) < max(3 * float(theirs.max()), 5e-6)


def test_equal_maxima_hand_the_gradient_to_the_first() -> None:
    """A black image is the same everywhere: all maxima are ties, and torch gives the first one everything."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=6)
    x = torch.zeros_like(fed.x)
    x[..., 10:14, 9:15] = 1.0
    x[:, 3:] = x[:, 3:].round()
    fed = fed.with_data(x)
    grad = chosen(fed).value_and_grad(fed.W, x, fed.y).grad
    torch.testing.assert_close(grad, plain_loop(fed)[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("join", [True, False])
def test_ties_in_pools_of_every_kind(join: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers tie often, along rows and columns and across them."""
    monkeypatch.setattr(convolution, "GROWTH", 100.0 if join else 0.0)
    for pool in (nn.MaxPool2d(2), nn.MaxPool2d(3), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 3), 1)):
        model, shape = conv(nn.Conv2d(1, 3, 2), pool, shape=(1, 10, 10))
        fed = federation(model, shape, users=2, n=8)
        W = fed.W.clone()
        W[:, :15] = (3 * W[:, :15]).round()
        fed = fed.with_data(fed.x.round().clamp(-1, 1), W)
        grad = chosen(fed).value_and_grad(W, fed.x, fed.y).grad
        torch.testing.assert_close(grad, plain_loop(fed)[1], rtol=1e-10, atol=1e-12)


def test_a_norm_and_what_follows_it_are_one_stage() -> None:
    """But not where its weight is its bias, where maxima come before both, or where something else reads its result."""
    net = trace(Norms(), join=False)
    norms = [(stage.layer.relu, stage.parameters) for stage in net.stages if isinstance(stage.layer, GroupNorm)]
    assert norms == [
        (False, ("first.weight", "first.bias")),
        (True, ("a.weight", "a.bias")),
        (False, ()),
        (False, ("a.bias",)),
        (False, ("c.weight",)),
        (False, ("a.bias",)),
        (True, ("a.weight", "a.bias")),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_a_norm_in_single_precision_is_as_near_the_truth_as_torch(offset: float, device: str) -> None:
    """Also far from zero, where a variance from the mean of squares would have no correct digit; and of images that
    are the same everywhere, whose variance is zero."""
    model = nn.Sequential(nn.GroupNorm(2, 6), nn.Conv2d(6, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 35 * 34, 4))
    fed = federation(model, (6, 37, 36), users=3, n=9, dtype=torch.float32)
    x = (fed.x + offset).clone()
    x[:, ::3] = offset + 1.5
    fed = fed.with_data(x)
    truth = plain_loop(fed.to(torch.float64))[1]
    gradients = chosen(fed, device)
    ours = gradients.value_and_grad(fed.W.to(device), x.to(device), fed.y.to(device)).grad.cpu()
    assert gradients.method == "stacked", gradients.reason
    error, theirs = ((grad - truth).norm(dim=1) / truth.norm(dim=1) for grad in (ours, plain_loop(fed)[1]))
    assert float(error.max()) < max(3 * float(theirs.max()), 5e-6)


@pytest.mark.filterwarnings("ignore::resolvent.errors.SolvesAnotherProblem")
def test_norms_in_minibatches_of_users_of_different_sizes() -> None:
    """Padding fills up the shorter users' last minibatches."""
    g = torch.Generator().manual_seed(0)
    users = [
        (torch.randn(n, 4, 6, 6, generator=g, dtype=torch.float64), torch.randint(0, 4, (n,), generator=g))
        for n in (3, 11, 8)
    ]
    torch.manual_seed(0)
    model = Norms().double()
    scheme = rs.fedavg(0.1, local=rs.GradientSteps(2, batch=4))
    ours, plain = (
        rs.solve(rs.Neural(model, users, method=method), scheme, rounds=3, progress=False).model
        for method in ("stacked", "loop")
    )
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("groups", "eps", "method"), [(3, 1e-5, "stacked"), (3, 0.0, "loop"), (6, 1e-5, "loop")])
def test_norms_of_single_numbers_or_without_eps_are_left_to_torch(groups: int, eps: float, method: str) -> None:
    """Padding that is zero everywhere would become NaN without eps, and torch refuses single numbers of one image."""
    norm = nn.GroupNorm(groups, 6, eps)
    fed = federation(nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3)), (4,), users=2, n=5)
    gradients = chosen(fed)
    assert gradients.method == method, gradients.reason
    got, want = gradients.value_and_grad(fed.W, fed.x, fed.y).grad, plain_loop(fed)[1]
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [F.mse_loss, nn.MSELoss(), F.smooth_l1_loss])
def test_losses_of_several_numbers(loss: object) -> None:
    model, shape = NETS["mlp"]()
    fed = federation(model, shape, users=3, n=5, loss=loss)
    fed = fed.with_targets(torch.randn(3, 5, 10, dtype=torch.float64))
    got = chosen(fed).value_and_grad(fed.W, fed.x, fed.y)
    want_loss, want = plain_loop(fed)
    torch.testing.assert_close(got.loss, want_loss)
    torch.testing.assert_close(got.grad, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["tiles", "group norms"])
@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_masked_rows_do_not_count(loss: object, name: str) -> None:
    model, shape = NETS[name]()
    fed = federation(model, shape, users=3, n=6, loss=loss)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    x = torch.where(mask.view(3, 6, 1, 1, 1).bool(), fed.x, torch.nan)
    for method in ("stacked", "loop"):
        gradients = chosen(fed, method=method)
        # What lies in a masked row must not matter, as long as it is finite.
        got = gradients.value_and_grad(fed.W, x.nan_to_num(7.0), fed.y, mask=mask)
        for i, count in enumerate(mask.sum(1).tolist()):
            want_loss, want = plain_loop(fed.only(i, count))
            torch.testing.assert_close(got.loss[i : i + 1], want_loss)
            torch.testing.assert_close(got.grad[i : i + 1], want, rtol=1e-10, atol=1e-12)


def test_ignored_targets_do_not_count() -> None:
    model, shape = NETS["mlp"]()
    fed = federation(model, shape, users=2, n=6)
    y = fed.y.clone()
    y[:, ::2] = -100
    fed = fed.with_targets(y)
    got = chosen(fed).value_and_grad(fed.W, fed.x, y)
    torch.testing.assert_close(got.grad, plain_loop(fed)[1], rtol=1e-10, atol=1e-12)


def test_one_row_stands_for_users_who_agree() -> None:
    model, shape = NETS["tiles"]()
    fed = federation(model, shape, users=3, n=6)
    for method in ("stacked", "vmap", "loop"):
        gradients = chosen(fed, method=method)
        shared, full = (gradients.value_and_grad(W, fed.x, fed.y) for W in (fed.W[:1], fed.W[:1].repeat(3, 1)))
        torch.testing.assert_close(shared.grad, full.grad, rtol=0, atol=0)
        torch.testing.assert_close(
            gradients.outputs(fed.W[:1], fed.x), gradients.outputs(fed.W[:1].repeat(3, 1), fed.x)
        )


@pytest.mark.parametrize("name", ["tiles", "group norms"])
def test_blocks_of_images_and_jobs_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, of unlike sizes, in several jobs: the same gradients up to rounding."""
    model, shape = NETS[name]()
    fed = federation(model, shape, users=3, n=150)
    want_loss, want = plain_loop(fed)
    for numbers in (1 << 10, 1 << 13, 1 << 16):
        monkeypatch.setattr(stacked, "BLOCK_NUMBERS", numbers)
        got = chosen(fed).value_and_grad(fed.W, fed.x, fed.y)
        torch.testing.assert_close(got.loss, want_loss)
        assert float(((got.grad - want).norm(dim=1) / want.norm(dim=1)).max()) < 1e-12


@pytest.mark.parametrize(("largest", "blocks"), [(1 << 10, 9), (1 << 14, 5), (1 << 20, 1)])
def test_a_loss_of_all_outputs_takes_any_number_of_blocks(
    largest: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Label smoothing has no stacked form: outputs first, in blocks, then each block again, with the same dropout."""
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    layers = [nn.Conv2d(2, 5, 3, padding=1), nn.Dropout(0.2), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool2d(2)]
    model, shape = conv(*layers)
    fed = federation(model, shape, users=3, n=150, loss=loss)
    mask, seeds = torch.ones(3, 150), torch.tensor([1, 2, 3])
    mask[1, 100:] = mask[2, 3:] = 0
    monkeypatch.setattr(jobs, "MAX_WHOLE_NUMBERS", largest)
    got, want = (chosen(fed, method=method) for method in ("stacked", "loop"))
    assert [len(job.blocks) for job in jobs.plan_jobs(1, 150, 5 * 72, 11, 1 << 19, 1, whole=True)] == [blocks]
    for noise in (None, seeds):
        a, b = (gradients.value_and_grad(fed.W, fed.x, fed.y, mask, noise) for gradients in (got, want))
        torch.testing.assert_close(a.loss, b.loss)
        assert float(((a.grad - b.grad).norm(dim=1) / b.grad.norm(dim=1)).max()) < 1e-12


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 16])
def test_plan_covers_every_image_once(threads: int | None) -> None:
    for users, n, width, numbers in [(7, 1, 3, 10), (5, 100, 1000, 1 << 14), (3, 999, 10, 1 << 11), (2, 16, 9, 1)]:
        plan = jobs.plan_jobs(users, n, width, 11, numbers, threads)
        seen = torch.zeros(users, n)
        for job in plan:
            for a, b in job.blocks:
                seen[job.who, a:b] += 1
        assert bool((seen == 1).all())
        alone = {job.blocks for job in jobs.plan_jobs(1, n, width, 11, numbers, threads)}
        assert alone == {job.blocks for job in plan}, "how images are divided depends on who else is there"


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_nobody_and_nothing_have_plans_too(threads: int | None) -> None:
    assert jobs.plan_jobs(0, 20, 784, 11, 1 << 19, threads) == []
    assert {job.blocks for job in jobs.plan_jobs(4, 0, 784, 11, 1 << 19, threads)} == {((0, 0),)}


def test_every_thread_has_as_many_users() -> None:
    def sizes(users: int, threads: int, dim: int = 200_000) -> list[int]:
        return [job.last - job.first for job in jobs.plan_jobs(users, 20, 784, dim, 1 << 19, threads)]

    assert sizes(20, 1) == [20]
    assert sizes(20, 2) == [10, 10]
    assert sizes(3, 8) == [1, 1, 1]
    assert sizes(21, 2, dim=800_000) == [3, 4, 3, 4, 3, 4]  # five at most, by their parameters
    assert sizes(4, 1, dim=10_000_000) == [1, 1, 1, 1]
