"""The campaigns. Each gives, seed by seed, how an attack ended: a word that is fine, or what is wrong."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import Said, beside, model, resolvent, rows
from resolvent.runs import Folder, folders
from siege import forge, insiders, strangers
from siege.forge import Ends

PATIENCE = 60.0
"""Seconds after which an attack counts as a hang."""
SMALL = ("least-squares", "--users", 3, "--dim", 4, "--rows", 8, "--eta", 0.02, "--participation", 0.6, "--quiet")


@dataclass(frozen=True)
class Campaign:
    name: str
    wage: Callable[[Iterable[int], Path], Ends]
    many: int
    fine: tuple[str, ...] = ("refused", "the same bits", "done", "diverged")


def _said(*command: object) -> Said | str:
    """How a command ended; a string where that is wrong."""
    try:
        with warnings.catch_warnings(), _alarm():
            warnings.simplefilter("ignore")
            said = resolvent(*command)
    except TimeoutError:
        return f"hang: {command}"
    except BaseException:
        return "traceback: " + traceback.format_exc(limit=-2)
    if "Traceback" in said.err and said.code != 4:
        return f"traceback: {said.err}"
    if said.code == 2 and (
        said.err.count("resolvent: ") < 1 or not said.err.splitlines()[-1].startswith("resolvent: ")
    ):
        return f"no sentence: {said.err}"
    if said.code == 4 and "was not found to the tolerance" in said.err:
        return said._replace(code=2)  # data on which a prox cannot be certified: refused, in a round
    return said if said.code in (0, 2, 3) else f"exit code {said.code}: {said.err}"


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _originals(at: Path) -> tuple[Folder, Folder]:
    """A whole run, and the same one as a kill in its middle leaves it."""
    resolvent("run", *SMALL, "--rounds", 12, "--out", at / "whole")
    (whole,) = folders(at / "whole")
    keep = forge.recorder_call()

    def kill(recorder: Any, happened: Any, *rest: Any) -> Any:
        if happened.number == 8:
            raise forge.Killed
        return keep(recorder, happened, *rest)

    with forge.recording(kill), contextlib.suppress(forge.Killed):
        resolvent("run", *SMALL, "--rounds", 12, "--out", at / "torn")
    return whole, folders(at / "torn")[0]


def _mutations(seeds: Iterable[int], at: Path) -> Ends:
    """Mutated run folders: every command on them is a sentence or right, and resume has the same bits."""
    originals = _originals(at)
    whole = originals[0]
    for seed in seeds:
        rng, out = random.Random(seed), at / f"store-{seed}"
        source = rng.choice(originals)
        shutil.copytree(source.path, out / source.id)
        shutil.copytree(whole.path, out / "good")
        what = [forge.mutate(out / source.id, rng) for _ in range(rng.choice([1, 1, 1, 2, 5]))]
        end = _attack(out, source.id, whole)
        yield seed, end if end in ("refused", "the same bits") else f"{end} after {what}"
        shutil.rmtree(out, ignore_errors=True)


def _attack(out: Path, run: str, whole: Folder) -> str:
    for command in (
        ("ls",),
        ("export", "--to", out / "all.csv"),
        ("show", run),
        ("export", run, "--to", out / "m.npz"),
    ):
        said = _said(*command, "--out", out)
        if isinstance(said, str):
            return said
    listed = _said("ls", "--format", "json", "--out", out)
    if isinstance(listed, str) or not any(
        line["run"] == "good" and line["status"] == "finished" for line in listed.json
    ):
        return "the sound run is not listed"
    said = _said("resume", run, "--quiet", "--out", out)
    if isinstance(said, str):
        return said
    if said.code == 2:
        return "refused"
    found = Folder(out / run)
    same = rows(found) == rows(whole) and model(found) == model(whole) and found.config == whole.config
    return "the same bits" if same else "silent wrong"


def _configs(seeds: Iterable[int], at: Path) -> Ends:
    """Fuzzed TOML files and options."""
    for seed in seeds:
        rng = random.Random(seed)
        path = at / f"{seed}.toml"
        at.mkdir(parents=True, exist_ok=True)
        path.write_bytes(forge.config(rng))
        command = ("explain",) if rng.random() < 0.3 else ("run", "--quiet", "--out", at / "runs")
        said = _said(*command, path, *forge.options(rng))
        yield seed, _word(said)


def _data(seeds: Iterable[int], at: Path) -> Ends:
    """Fuzzed data files of every format."""
    os.environ["RESOLVENT_UNPACK_GIB"] = "0.01"
    try:
        for seed in seeds:
            rng = random.Random(seed)
            at.mkdir(parents=True, exist_ok=True)
            path = forge.data(rng, at / str(seed))
            problem = rng.choice(["least-squares", "logistic"])
            said = _said("run", problem, "--data", path, "--users", 2, "--rounds", 3, "--quiet", "--out", at / "runs")
            yield seed, _word(said)
    finally:
        del os.environ["RESOLVENT_UNPACK_GIB"]


def _word(said: Said | str) -> str:
    return said if isinstance(said, str) else {0: "done", 2: "refused", 3: "diverged"}[said.code]


def _kills(seeds: Iterable[int], at: Path) -> Ends:
    """SIGKILL at random moments, then resume until it ends."""
    asked = (*SMALL, "--rounds", 1500)
    resolvent("run", *asked, "--out", at / "whole")
    (whole,) = folders(at / "whole")
    for seed in seeds:
        rng, out = random.Random(seed), at / str(seed)
        command = beside("run", *asked, "--out", out)
        for _ in range(3):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            forge.wait_for_a_checkpoint(out, process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.random() * 2)
            process.kill()
            process.wait()
            there = folders(out)
            if not there:
                continue
            command = beside("resume", there[0].id, "--quiet", "--out", out)
        (run,) = folders(out)
        said = _said("resume", run.id, "--quiet", "--out", out)
        same = not isinstance(said, str) and said.code == 0 and rows(run) == rows(whole)
        yield seed, "the same bits" if same else f"after kills: {said}"


def _full(seeds: Iterable[int], at: Path) -> Ends:
    """No file may grow beyond a random size: a sentence, and once there is room the same bits."""
    whole, _ = _originals(at)
    for seed in seeds:
        out = at / str(seed)
        with forge.files_of(random.Random(seed).randrange(8000)):
            said = _said("run", *SMALL, "--rounds", 12, "--out", out)
        yield seed, said if isinstance(said, str) else _with_room(out, whole)


def _with_room(out: Path, whole: Folder) -> str:
    there = folders(out)
    if not there:
        return "refused" if not list(out.glob(".*.part")) else "a half-made folder stays"
    said = _said("resume", there[0].id, "--quiet", "--out", out)
    if isinstance(said, str):
        return said
    return "the same bits" if said.code == 0 and rows(there[0]) == rows(whole) else f"wrong with room: {said}"


def _tmpfs(seeds: Iterable[int], at: Path) -> Ends:
    """A file system that is full, where root may mount one."""
    whole, _ = _originals(at)
    for seed in seeds:
        out = at / str(seed)
        out.mkdir()
        size = random.Random(seed).randrange(8, 80)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", out], capture_output=True)
        if mounted.returncode:
            return  # not permitted here
        try:
            said = _said("run", *SMALL, "--rounds", 12, "--out", out)
            subprocess.run(["mount", "-o", "remount,size=4m", out], check=True, capture_output=True)
            yield seed, said if isinstance(said, str) else _with_room(out, whole)
        finally:
            subprocess.run(["umount", out], check=True, capture_output=True)


CAMPAIGNS = (
    Campaign("mutated folders", _mutations, 400),
    Campaign("fuzzed configurations", _configs, 400),
    Campaign("fuzzed data", _data, 400),
    Campaign("kills", _kills, 6),
    Campaign("files that cannot grow", _full, 60),
    Campaign("a full file system", _tmpfs, 20),
    Campaign("the live page", strangers.page, 600, ("refused", "answered")),
    Campaign("malicious answers", insiders.answers, 200, ("refused", "withheld", "harmless")),
    Campaign("malicious claims", insiders.claims, 200, ("refused", "in proportion")),
    Campaign("secure sums", insiders.sums, 100, ("refused", "right")),
    Campaign("a federation's server", insiders.server, 40, ("the same bits", "counted", "refused")),
    Campaign("ranks", insiders.ranks, 12, ("refused",)),
    Campaign("a live federation", strangers.federation, 2, ("refused",)),
)
