"""precision=: what a device has, torch's own flags afterwards, and how near results are by every method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import resolvent as rs
from command_line import resolvent
from neural_reference import chosen, federation, plain_loop
from resolvent.errors import InputError
from resolvent.experiment import tasks
from resolvent.networks.models import cifar10_cnn, mnist_cnn
from resolvent.networks.precision import PRECISIONS, as_precision, products_in
from resolvent.runs import Folder

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GPU = torch.device("cuda")
READERS: tuple[Callable[[], Any], ...] = (
    torch.get_float32_matmul_precision,
    lambda: torch.backends.cuda.matmul.allow_tf32,
    lambda: torch.backends.cudnn.allow_tf32,
    lambda: torch.backends.cuda.matmul.fp32_precision,
    lambda: torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    lambda: torch.backends.cudnn.rnn.fp32_precision,  # type: ignore[attr-defined]
    lambda: torch.backends.fp32_precision,  # type: ignore[attr-defined]
    lambda: torch.backends.mkldnn.conv.fp32_precision,  # type: ignore[attr-defined]
)


def flags() -> list[Any]:
    """All of torch's flags; those that it refuses to read are "mixed"."""
    values = []
    for read in READERS:
        try:
            values.append(read())
        except (RuntimeError, AttributeError) as error:
            values.append("mixed" if isinstance(error, RuntimeError) else "missing")
    return values


def newer(where: Any, value: str) -> Callable[[], None]:
    return lambda: setattr(where, "fp32_precision", value)


SETTINGS: dict[str, Callable[[], object]] = {
    "untouched": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "older, products": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "older, convolutions": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "newer, products": newer(torch.backends.cuda.matmul, "tf32"),
    "newer, convolutions": newer(torch.backends.cudnn.conv, "ieee"),  # type: ignore[attr-defined]
    "newer, convolutions of CPUs": newer(torch.backends.mkldnn.conv, "bf16"),  # type: ignore[attr-defined]
    "newer, all": newer(torch.backends, "tf32"),
}


@pytest.fixture
def own_flags() -> Any:
    before = [
        (b, op, torch._C._get_fp32_precision_getter(b, op)) for b in ("cuda",) for op in ("matmul", "conv", "rnn")
    ]
    yield
    torch._C._set_fp32_precision_setter("generic", "all", "none")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    for backend, op, value in before:
        torch._C._set_fp32_precision_setter(backend, op, "none")
        if torch._C._get_fp32_precision_getter(backend, op) != value:
            torch._C._set_fp32_precision_setter(backend, op, value)
    for op in ("matmul", "conv"):
        torch._C._set_fp32_precision_setter("mkldnn", op, "none")


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="a torch without the newer flags")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_torchs_flags_are_afterwards_what_they_were(setting: str, precision: Any, own_flags: None) -> None:
    SETTINGS[setting]()
    before, tf32 = flags(), precision == "tf32"
    with products_in(GPU, precision):
        assert flags()[1:3] == [tf32, tf32]
        assert flags()[3:6] == ["tf32" if tf32 else "ieee"] * 3
    assert flags() == before
    with pytest.raises(ZeroDivisionError), products_in(GPU, precision):
        1 / 0  # noqa: B018
    assert flags() == before


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="a torch without the newer flags")
def test_float32_is_exact_on_a_cpu_too(own_flags: None) -> None:
    SETTINGS["newer, convolutions of CPUs"]()
    before = flags()
    with products_in(torch.device("cpu"), "float32"):
        assert flags()[-1] == "ieee"
    assert flags() == before


def test_a_gradient_leaves_the_flags_alone(own_flags: None) -> None:
    torch.set_float32_matmul_precision("medium")
    before, fed = flags(), federation(mnist_cnn(), (1, 28, 28), users=2, n=3, dtype=torch.float32)
    for method in ("stacked", "vmap", "loop"):
        gradients = chosen(fed, method=method)
        gradients.value_and_grad(fed.W, fed.x, fed.y)
        gradients.outputs(fed.W, fed.x)
        assert flags() == before


@pytest.mark.parametrize("method", ["stacked", "vmap", "loop"])
def test_bfloat16_is_near_and_everything_else_stays_float32(method: str) -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=16, dtype=torch.float32)
    want = plain_loop(fed)
    gradients = chosen(fed, method=method, precision="bfloat16")
    loss, grad, _ = gradients.value_and_grad(fed.W, fed.x, fed.y)
    outputs = gradients.outputs(fed.W, fed.x)
    assert {t.dtype for t in (loss, grad, outputs)} == {torch.float32}
    assert 1e-5 < float((grad - want[1]).norm() / want[1].norm()) < 0.1
    assert 1e-6 < float((loss - want[0]).norm() / want[0].norm()) < 0.1


def users(dtype: torch.dtype = torch.float32) -> list[Any]:
    torch.manual_seed(0)
    return [(torch.randn(4, 3, dtype=dtype), torch.tensor([0, 1, 1, 0])) for _ in range(2)]


@pytest.mark.filterwarnings("ignore")
def test_a_problem_says_its_precision() -> None:
    problem = rs.Neural(nn.Linear(3, 2), users(), precision="bfloat16", test=users())
    assert problem.precision == "bfloat16"
    assert "bfloat16" in repr(problem)
    run = rs.solve(problem, rs.fedavg(0.1, steps=2), rounds=2, progress=False)
    assert run.history["test_loss"].notna().all()
    assert rs.Neural(nn.Linear(3, 2), users()).precision == "float32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "half"}, "precision is 'half', but 'float32', 'tf32' or 'bfloat16' is needed"),
        ({"precision": "tf32"}, "precision is 'tf32', but cpu has no TF32, CUDA devices have: take 'float32'"),
        ({"precision": torch.bfloat16}, "'float32', 'tf32' or 'bfloat16' is needed"),
        ({"precision": "bfloat16", "dtype": torch.float64}, "it is for parameters of torch.float32"),
        ({"method": "fast"}, "'stacked', 'compiled', 'vmap', 'loop' or None is needed"),
    ],
)
def test_what_there_is_not_is_refused_in_a_sentence(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rs.Neural(nn.Linear(3, 2), users(), **options)


@pytest.mark.filterwarnings("ignore")
def test_the_command_line_and_a_file_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows = torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 10
    images = rs.data.Images(*rows, *rows, tuple("0123456789"), "mnist")
    monkeypatch.setitem(tasks.LOADERS, "mnist", (lambda folder: images, mnist_cnn))
    settings = "--users", 2, "--set", "problem.partition=iid", "--rounds", 1, "--local-steps", 1
    kept, ends = ("--out", tmp_path, "--format", "json"), dict[str, float]()
    for precision in ("float32", "bfloat16"):
        done = resolvent("run", "mnist", *settings, "--precision", precision, *kept)
        assert done.code == 0, done.err
        ends[precision] = done.json["value"]
        assert Folder(Path(done.json["folder"])).config["problem"]["precision"] == precision
    assert 0 < abs(ends["bfloat16"] / ends["float32"] - 1) < 0.02, "products of eight bits"
    file = tmp_path / "tf32.toml"
    file.write_text('[problem]\nname = "mnist"\nusers = 2\npartition = "iid"\nprecision = "tf32"\n')
    for given in (("mnist", *settings, "--precision", "tf32"), (file,)):
        done = resolvent("run", *given, *kept)
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert "precision is 'tf32', but cpu has no TF32, CUDA devices have: take 'float32'" in done.err


def test_an_old_gpu_has_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
    for precision in ("tf32", "bfloat16"):
        with pytest.raises(InputError, match="an old GPU has no tensor cores for it: take 'float32'"):
            as_precision(precision, GPU, torch.float32)
    assert as_precision("float32", GPU, torch.float32) == "float32"


@CUDA
@pytest.mark.parametrize("method", ["stacked", "vmap", "loop"])
@pytest.mark.parametrize("make", [mnist_cnn, cifar10_cnn])
def test_tf32_on_cuda_is_near_and_float32_exact(method: str, make: Any) -> None:
    shape = (1, 28, 28) if make is mnist_cnn else (3, 32, 32)
    fed = federation(make(), shape, users=2, n=64, dtype=torch.float32)
    want = plain_loop(fed.to(torch.float64))[1]
    errors = {}
    for precision in ("float32", "tf32"):
        gradients = chosen(fed, "cuda", method=method, precision=precision)
        grad = gradients.value_and_grad(fed.W.cuda(), fed.x.cuda(), fed.y.cuda()).grad.double().cpu()
        errors[precision] = float((grad - want).norm() / want.norm())
    assert errors["float32"] < 1e-3, errors  # near ties of pools
    assert errors["tf32"] < 0.1, errors
    assert errors["tf32"] > errors["float32"] or (make is mnist_cnn and method == "stacked"), errors
