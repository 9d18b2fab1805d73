"""Files of every format, real ones too; every bad file gets its sentence."""

from __future__ import annotations

import bz2
import gzip
import lzma
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from resolvent.data import Table, libsvm, limits, read, signs
from resolvent.installed import install

Write = Callable[[str, Any], Path]
Refused = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails what would hang: seconds of the processor, so that other programs do not count."""

    def hangs(*_: object) -> None:
        raise TimeoutError(f"still busy after {seconds:g} seconds of the processor")

    before = signal.signal(signal.SIGVTALRM, hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def check(table: Table, x: Any, y: Any, features: list[str], target: str) -> None:
    assert table.x.dtype == np.float64
    assert table.x.tolist() == x
    assert table.y.tolist() == y
    assert table.features == tuple(features)
    assert table.target == target


# --- LIBSVM ----------------------------------------------------------------------------------------------------------

LINES = "# from a paper\n+1 1:0.5 3:-2e1\n\n-1 qid:7 2:.25 # and so on\r\n0\n"


@pytest.mark.parametrize("name", ["a9a", "a9a.t", "a.libsvm", "a.svm", "a.svmlight", "a.txt", "A.TXT", "a.data"])
def test_libsvm_by_any_name(name: str, write: Write) -> None:
    x = [[0.5, 0.0, -20.0], [0.0, 0.25, 0.0], [0.0, 0.0, 0.0]]
    check(read(write(name, LINES)), x, [1.0, -1.0, 0.0], ["1", "2", "3"], "label")


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
@pytest.mark.parametrize("name", ["a9a", "a9a.t", "a.libsvm", "a.csv"])
def test_compressed(name: str, suffix: str, pack: Callable[[bytes], bytes], write: Write) -> None:
    content = b"a,b,y\n1,2,3\n" if name.endswith("csv") else LINES.encode()
    plain, packed = read(write(name, content)), read(write(f"{name}.{suffix}", pack(content)))
    check(packed, plain.x.tolist(), plain.y.tolist(), list(plain.features), plain.target)


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(rows=st.lists(st.tuples(numbers, st.dictionaries(st.integers(1, 9), numbers)), min_size=1, max_size=8))
@settings(deadline=None)
def test_libsvm_reads_what_is_written_to_the_bit(
    rows: list[tuple[float, dict[int, float]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("libsvm") / "a.svm"
    lines = (f"{label!r} {' '.join(f'{i}:{v!r}' for i, v in pairs.items())}\n" for label, pairs in rows)
    path.write_text("".join(lines))
    table = read(path, width=9)
    dense = np.zeros((len(rows), 9))
    for i, (_, pairs) in enumerate(rows):
        for j, value in pairs.items():
            dense[i, j - 1] = value
    assert np.array_equal(table.x, dense)
    assert np.array_equal(table.y, [label for label, _ in rows])


def test_libsvm_in_many_blocks(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("a.svm", "".join(f"{i % 2} {i % 5 + 1}:{i}\n" for i in range(100)))
    whole = read(path)
    monkeypatch.setattr(libsvm, "BLOCK_BYTES", 50)
    assert np.array_equal(read(path).x, whole.x)
    assert np.array_equal(read(path).y, whole.y)
    assert whole.x.sum() == sum(range(100))


def test_libsvm_of_a_given_width(write: Write) -> None:
    assert read(write("a.svm", "1 2:1\n"), width=4).x.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_libsvm_in_any_order(write: Write) -> None:
    assert read(write("a.svm", "1 3:3 1:1\n1 1:7\n")).x.tolist() == [[1.0, 0.0, 3.0], [7.0, 0.0, 0.0]]


def test_a_bad_line_is_numbered_from_the_beginning_of_the_file(
    write: Write, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(libsvm, "BLOCK_BYTES", 50)
    refused(lambda: read(write("a.svm", "1 1:1\n" * 99 + "bad\n")), "line 100")


@pytest.mark.parametrize("start", ["", "1 1:", "1 "])
def test_a_long_bad_line_is_refused_at_once(start: str, write: Write, refused: Refused) -> None:
    """In linear time: the work of a pattern that tries every way to cut the digits grows with their square."""
    path = write("a.svm", start + "1" * 100_000 + "x\n")
    with at_most(seconds=20):
        refused(lambda: read(path), "line 1")


def test_what_would_fill_the_memory_is_refused_before_it_is_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(libsvm, "BLOCK_BYTES", 50)
    monkeypatch.setattr(limits, "MAX_DENSE_BYTES", 2**20)
    refused(lambda: read(write("a.svm", "1 1:1 30000:1\n" * 99 + "bad\n")), "of 30000 features", "are read")
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((200, 1000), dtype=np.uint8), y=np.zeros(200))
    refused(lambda: read(tmp_path / "a.npz"), "200 or more, of 1000 features", "are read")


# --- columns ---------------------------------------------------------------------------------------------------------

X, Y = [[1.0, 2.5], [3.0, 4.0]], [0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "text", "features", "target"),
    [
        ("a.csv", "a,b,y\n1,2.5,0\n3,4,1\n", ["a", "b"], "y"),
        ("a.csv", "\ufeffa,b,y\n1,2.5,0\n3,4,1\n", ["a", "b"], "y"),
        ("a.csv", "\n a , b , Class \r\n1,2.5,0\r\n\r\n3,4,1", ["a", "b"], "Class"),
        ("a.csv", "a,TARGET,b\n1,0,2.5\n3,1,4\n", ["a", "b"], "TARGET"),
        ("a.csv", "a,label,y\n1,2.5,0\n3,4,1\n", ["a", "label"], "y"),
        ("a.csv", "a,b,quality\n1,2.5,0\n3,4,1\n", ["a", "b"], "quality"),
        ("a.csv", "y,0,1\n0,1,2.5\n1,3,4\n", ["0", "1"], "y"),
        ("a.csv", "1,2.5,0\n3,4,1\n", ["0", "1"], "2"),
        ("a.csv", '"a, of all";b;y\n1;2.5;0\n3;4;1\n', ["a, of all", "b"], "y"),
        ("a.csv", "a;b;y\n1,0;2,5;0\n3;4;1\n", ["a", "b"], "y"),
        ("a.csv", "1;2,5;0\n3;4;1\n", ["0", "1"], "2"),
        ("a.tsv", "a\tb\ty\n1\t2.5\t0\n3\t4\t1\n", ["a", "b"], "y"),
    ],
    ids=[
        "plain",
        "byte order mark",
        "blanks",
        "in the middle",
        "y before label",
        "last",
        "numbers",
        "none",
        ";",
        "decimal commas",
        "decimal commas, no heading",
        "tab",
    ],
)
def test_headings(name: str, text: str, features: list[str], target: str, write: Write) -> None:
    check(read(write(name, text)), X, Y, features, target)


def test_labels_may_be_text(write: Write) -> None:
    check(read(write("a.csv", "1,2.5,no\n3,4,yes\n")), X, ["no", "yes"], ["0", "1"], "2")
    check(read(write("a.csv", "a,b,y\n1,2.5,no\n3,4,yes\n")), X, ["no", "yes"], ["a", "b"], "y")


@pytest.mark.parametrize("target", ["b", 1, -2])
def test_the_target_by_name_or_number(target: str | int, write: Write) -> None:
    check(read(write("a.csv", "a,b,y\n1,0,2.5\n3,1,4\n"), target), X, Y, ["a", "y"], "b")
    frame = pd.DataFrame({"a": [1, 3], "b": [False, True], "y": [2.5, 4]})
    path = write("a.parquet", b"")
    frame.to_parquet(path)
    check(read(path, target), X, Y, ["a", "y"], "b")


def test_csv_keeps_every_bit(write: Write) -> None:
    x = np.random.default_rng(0).standard_normal((200, 3)) * 1e-7
    table = read(write("a.csv", "\n".join(",".join(map(repr, row)) for row in x.tolist())))
    assert np.array_equal(np.column_stack([table.x, table.y]), x)


def test_parquet_of_other_types(write: Write) -> None:
    path = write("a.parquet", b"")
    pd.DataFrame({"a": pd.array([1, 3], "Int64"), "b": [2.5, 4.0], "class": ["no", "yes"]}).to_parquet(path)
    check(read(path), X, ["no", "yes"], ["a", "b"], "class")


@pytest.mark.parametrize(("x_key", "y_key"), [("x", "y"), ("X", "labels"), ("A", "b"), ("x_train", "y_train")])
def test_npz(x_key: str, y_key: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {x_key: np.array(X, dtype=np.float32), y_key: np.array([[0], [1]]), "z": np.zeros(9)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    check(read(tmp_path / "a.npz"), X, Y, ["0", "1"], y_key)


def test_npz_of_images_and_of_another_target(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(16, dtype=np.uint8).reshape(2, 2, 2, 2), y=[0, 1], sex=["f", "m"])
    table = read(tmp_path / "a.npz", target="sex")
    assert table.x.tolist() == np.arange(16.0).reshape(2, 8).tolist()
    assert table.y.tolist() == ["f", "m"]
    assert repr(table) == "Table(2 rows, 8 features, target 'sex')"


# --- signs -----------------------------------------------------------------------------------------------------------


def test_signs() -> None:
    assert signs([1, 2, 2]).tolist() == [-1.0, 1.0, 1.0]
    assert signs(np.array([0.0, -1.0])).tolist() == [1.0, -1.0]
    assert signs(["yes", "no"]).tolist() == [1.0, -1.0]
    assert signs([True, False]).tolist() == [1.0, -1.0]
    assert signs([3, 1, 2], positive=2).tolist() == [-1.0, -1.0, 1.0]
    assert signs([1, 2], positive=1).tolist() == [1.0, -1.0]
    assert signs(["b", "a", "c"], positive="a").tolist() == [-1.0, 1.0, -1.0]
    assert signs([1.0, 2.0]).dtype == np.float64


# --- real files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "values", "ones"),
    [
        ("a9a", (32561, 123), [-1, 1], 451592),
        ("a9a.t", (16281, 122), [-1, 1], 225731),
        ("w8a", (49749, 300), [-1, 1], 579586),
        ("mushrooms", (8124, 112), [1, 2], 170604),
    ],
)
def test_libsvm_sets(
    name: str, shape: tuple[int, int], values: list[int], ones: int, real_data: Callable[[str], Path]
) -> None:
    path = real_data(f"libsvm/{name}.gz")
    table = read(path)
    assert table.x.shape == shape
    assert table.x.sum() == ones
    assert set(np.unique(table.x)) == {0.0, 1.0}
    assert set(signs(table.y)) == {-1.0, 1.0}
    assert np.unique(table.y).tolist() == values
    slow = by_hand(gzip.decompress(path.read_bytes()).decode().splitlines()[:500], shape[1])
    assert np.array_equal(table.x[:500], slow)


def by_hand(lines: list[str], width: int) -> NDArray[np.float64]:
    x = np.zeros((len(lines), width))
    for i, line in enumerate(lines):
        for pair in line.split()[1:]:
            j, value = pair.split(":")
            x[i, int(j) - 1] = float(value)
    return x


def test_a_part_of_cifar_as_rows(real_data: Callable[[str], Path]) -> None:
    table = read(real_data("cifar10/cifar10_10k_2k.npz"))
    assert table.x.shape == (10000, 3072)
    assert np.bincount(table.y.astype(int)).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]


def test_covertype_has_no_features_of_that_name(real_data: Callable[[str], Path], refused: Refused) -> None:
    refused(lambda: read(real_data("covtype/covtype.npz")), "quant, wilderness, soil, y", "features are looked for")


# --- refusals --------------------------------------------------------------------------------------------------------


def npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def bare(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones((2, 2)))


def parquet(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pd.DataFrame(columns).to_parquet(path)


GOOD = "a,b,y\n1,2,0\n3,4,1\n"
REFUSED: dict[str, tuple[str, Any, dict[str, Any], list[str]]] = {
    "empty": ("a.csv", "", {}, ["which is empty"]),
    "unknown suffix": ("a.xlsx", "hello\n", {}, ["a.xlsx", ".csv, .tsv", "1 3:0.5"]),
    "no suffix and no pairs": ("a", "1\n2\n", {}, ["needed to know its format"]),
    "not gzip": ("a.csv.gz", "hello", {}, ["cannot be read", "gzip"]),
    "not bzip2": ("a.csv.bz2", "hello", {}, ["cannot be read"]),
    "not xz": ("a.csv.xz", "hello", {}, ["cannot be read"]),
    "half a gzip": ("a.svm.gz", gzip.compress(LINES.encode() * 99)[:60], {}, ["cannot be read", "end"]),
    "broken gzip": ("a9a.gz", gzip.compress(LINES.encode())[:10] + b"\xff" * 40, {}, ["cannot be read"]),
    "target True": ("a.csv", GOOD, {"target": True}, ["target is True"]),
    "target 1.5": ("a.csv", GOOD, {"target": 1.5}, ["target is 1.5"]),
    # LIBSVM
    "index a word": ("a.svm", "1 1:2\n1 x:2\n", {}, ["line 2", "'1 x:2'", "`label index:value ...`"]),
    "value missing": ("a.svm", "1 1:2\n\n# note\n1 2:\n", {}, ["line 4", "'1 2:'"]),
    "two colons": ("a.svm", "1 2 3:4:5\n", {}, ["line 1"]),
    "no label": ("a.svm", "1:2 3:4\n", {}, ["line 1", "'1:2 3:4'"]),
    "several labels": ("a.svm", "1,2 3:4\n", {}, ["line 1"]),
    "index far too large": ("a.svm", "1 99999999999999999999:1\n", {}, ["line 1"]),
    "a long line": ("a.svm", "x" * 999, {}, ["line 1", "'" + "x" * 40 + "'"]),
    "not text": ("a.svm", b"\xff\xfe\n", {}, ["line 1"]),
    "index 0": ("a.svm", "1 1:1\n1 0:2\n", {}, ["row 2", "feature number 0", "from 1"]),
    "twice": ("a.svm", "1 1:1\n1 2:2 1:1 2:3\n", {}, ["row 2", "feature 2 twice"]),
    "NaN": ("a.svm", "1 1:1\n1 2:nan\n", {}, ["feature '2' of row 2", "finite"]),
    "infinite label": ("a.svm", "1 1:1\ninf 2:2\n", {}, ["target 'label' of row 2", "finite"]),
    "only comments": ("a.svm", "# nothing\n\n", {}, ["no rows"]),
    "too wide": ("a.svm", "1 1:1\n1 2000000000:1\n", {}, ["feature number 2000000000", "1000000", "sparse=True"]),
    "a slip of the pen": ("a.svm", "1 40000000:1\n", {}, ["feature number 40000000", "1000000", "sparse=True"]),
    "too many columns": ("a.csv", "x," * 1_999_999 + "y\n", {}, ["2000000 columns", "at most 100000 are read"]),
    "too wide even if sparse": ("a.svm", "1 40000000:1\n", {"sparse": True}, ["feature number 40000000", "16777216"]),
    "width too small": ("a.svm", "1 5:1\n", {"width": 4}, ["width is 4", "feature number 5"]),
    "width huge": ("a.svm", "1 5:1\n", {"width": 2**31}, ["width is 2147483648", "1000000"]),
    "width 0": ("a.svm", "1 5:1\n", {"width": 0}, ["width is 0", ">= 1"]),
    "width of a CSV": ("a.csv", GOOD, {"width": 2}, ["width is 2", "LIBSVM", "a.csv is none"]),
    "target of LIBSVM": ("a.svm", "1 5:1\n", {"target": 0}, ["target is 0", "labels come first"]),
    # columns
    "no rows": ("a.csv", "a,b,y\n", {}, ["no rows"]),
    "blank": ("a.csv", "\n\n", {}, ["no rows"]),
    "not UTF-8": ("a.csv", b"a,b,y\n1,2,\xe9\n", {}, ["UTF-8"]),
    "a field without end": ("a.csv", 'a,b,y\n1,2,"3\n4,5,6\n', {}, ["a.csv"]),
    "short line": ("a.csv", GOOD + "5,6\n", {}, ["line 4", "2 fields", "3 are needed"]),
    "long line": ("a.csv", GOOD + "5,6,7,8\n", {}, ["line 4", "4 fields", "3 are needed"]),
    "short heading": ("a.csv", "a,y\n1,2,0\n3,4,1\n", {}, ["line 2", "3 fields", "2 are needed"]),
    "long heading": ("a.csv", "a,b,c,y\n1,2,0\n3,4,1\n", {}, ["line 2", "3 fields", "4 are needed"]),
    "a gap": ("a.csv", GOOD + "5,,7\n", {}, ["feature 'b' of row 3", "missing"]),
    "a gap in the labels": ("a.csv", GOOD + "5,6,\n", {}, ["target 'y' of row 3", "missing"]),
    "a gap in the words": ("a.csv", "a,y\n1,no\n2,\n", {}, ["target 'y' of row 2", "missing"]),
    "infinite": ("a.csv", GOOD + "inf,6,0\n", {}, ["feature 'a' of row 3", "infinite"]),
    "a column of text": ("a.csv", "a,town,y\n1,2,0\n1,Rome,1\n", {}, ["column 'town'", "'Rome' in row 2", "numbers"]),
    "one column": ("a.csv", "y\n1\n2\n", {}, ["one column"]),
    "no such target": ("a.csv", GOOD, {"target": "bb"}, ["target is 'bb'", "nearest: 'b'"]),
    "no such number": ("a.csv", GOOD, {"target": 3}, ["target is 3", "3 columns"]),
    "no such number below": ("a.csv", GOOD, {"target": -4}, ["target is -4", "3 columns"]),
    "no Parquet": ("a.parquet", "hello", {}, ["no Parquet file"]),
    "Parquet without rows": ("a.parquet", parquet(a=[], y=[]), {}, ["no rows"]),
    "Parquet with a gap": ("a.parquet", parquet(a=[1.0, None], y=[0, 1]), {}, ["feature 'a' of row 2"]),
    "Parquet with dates": (
        "a.parquet",
        parquet(when=pd.to_datetime(["2020-01-01", "2021-01-01"]), y=[0, 1]),
        {},
        ["column 'when'", "2020-01-01", "numbers"],
    ),
    # NPZ
    "no NPZ": ("a.npz", "hello", {}, ["NPZ file of plain arrays"]),
    "half an NPZ": ("a.npz", b"PK\x03\x04hello", {}, ["NPZ file of plain arrays"]),
    "NPZ of objects": ("a.npz", npz(x=np.array([{}], dtype=object), y=[1]), {}, ["NPZ file of plain arrays"]),
    "a bare array": ("a.npz", bare, {}, ["NPZ file of plain arrays"]),
    "no features": ("a.npz", npz(z=[1], y=[1]), {}, ["holds z, y", "features are looked for under x, X, A"]),
    "no labels": ("a.npz", npz(x=[[1.0]]), {}, ["holds x", "labels are looked for under y, b"]),
    "no such key": ("a.npz", npz(x=[[1.0]], y=[1]), {"target": "z"}, ["looked for under z"]),
    "lengths": ("a.npz", npz(x=np.ones((3, 2)), y=[1, 2]), {}, ["x of shape (3, 2)", "y of shape (2,)"]),
    "a vector": ("a.npz", npz(x=np.ones(3), y=np.ones(3)), {}, ["x of shape (3,)", "(rows, features)"]),
    "nothing in it": ("a.npz", npz(x=np.ones((0, 2)), y=[]), {}, ["x of shape (0, 2)"]),
    "words": ("a.npz", npz(x=[["a"]], y=[1]), {}, ["x is of type <U1", "numbers"]),
    "NPZ with NaN": ("a.npz", npz(x=[[1.0, np.nan]], y=[1]), {}, ["feature '1' of row 1"]),
}


@pytest.mark.parametrize(("name", "content", "options", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_in_one_sentence(
    name: str, content: Any, options: dict[str, Any], words: list[str], tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    refused(lambda: read(path, **options), *words)


def test_missing_files_and_folders(tmp_path: Path, refused: Refused) -> None:
    refused(lambda: read(tmp_path / "none.csv"), "none.csv", "no such file")
    refused(lambda: read(tmp_path), str(tmp_path), "a file is needed")


def test_parquet_without_pyarrow(write: Write, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(lambda: read(write("a.parquet", "x")), "pyarrow is not installed", install("parquet"))


@pytest.mark.parametrize(
    ("y", "positive", "words"),
    [
        ([1, 2, 3], None, ["y is of 3 classes", "needs two", "positive="]),
        ([1, 1], None, ["y is of one class", "needs two"]),
        ([1, 2, 3], 4, ["positive is 4", "1, 2, 3"]),
        (list(range(30)), 40, ["positive is 40", "8, 9, ..."]),
        ([1.0, np.nan], None, ["y is NaN"]),
    ],
)
def test_labels_without_signs(y: list[Any], positive: Any, words: list[str], refused: Refused) -> None:
    refused(lambda: signs(y, positive), *words)


def test_libsvm_rows_may_stay_sparse(write: Write, refused: Refused) -> None:
    path = write("a9a", LINES)
    dense, sparse = read(path, width=5), read(path, width=5, sparse=True)
    assert sparse.x.format == "csr"
    assert sparse.x.nnz == 3
    assert sparse.x.toarray().tolist() == dense.x.tolist()
    assert sparse.y.tolist() == dense.y.tolist()
    lines = "1 400000:2\n-1 1:3\n" * 1500  # 9 GiB if they were dense
    refused(lambda: read(write("wide.svm", lines)), "GiB")
    assert read(write("wide.svm", lines), sparse=True).x.shape == (3000, 400000)
    refused(lambda: read(write("bad.svm", "1 1:2\n-1 2:1 3:nan\n"), sparse=True), "feature '3' of row 2")
    refused(lambda: read(write("a.csv", "a,y\n1,0\n2,1\n"), sparse=True), "only LIBSVM files have sparse rows")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_table_of_two_million_columns_is_a_sentence(suffix: str, write: Write, refused: Refused) -> None:
    """Pandas would take minutes and 6 GiB for it."""
    separator = {"csv": ",", "tsv": "\t"}[suffix]
    path = write(f"wide.{suffix}", separator.join(["1"] * 2_000_000) + "\n")
    with at_most(10):
        refused(lambda: read(path), "2000000 columns", "at most 100000", "LIBSVM")
