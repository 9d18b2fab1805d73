"""Whether a run on disk is what was written: checksums of its files, and whether they fit together.

Each finding is a few words: which file, and what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resolvent import toml
from resolvent.errors import DamagedRun
from resolvent.runs import checkpoints, metrics, regular, sums
from resolvent.runs.metrics import Extent

if TYPE_CHECKING:
    from resolvent.runs.folder import Folder

FORMAT = 2
"""Of run folders."""
ABOUT = {"id": str, "created": str, "fingerprint": str, "title": str, "problem": dict, "explanation": dict,
         "environment": dict}  # fmt: skip
"""What about.json must hold."""


def damage(run: Folder) -> list[str]:
    """What is wrong with a run's configuration, description, events and rows. Checkpoints are not read."""
    try:
        return [*links(run), *sums.changed(run.path)] or [*_description(run), *_rows(run)]
    except DamagedRun as error:
        return [error.words]
    except OSError as error:
        return [f"{error.filename or run.path} cannot be read ({error.strerror or error})"]
    except regular.UNFIT as error:  # well-formed, but not what is written here
        return [f"its files do not fit together ({type(error).__name__}: {error})"]


def verify(run: Folder) -> list[str]:
    """The same for a run that has ended, and that its last checkpoint is the one it ended with."""
    if wrong := damage(run):
        return wrong
    end = run.end
    _, complaints = run.newest()
    if complaints or end is None or checkpoints.newest_name(run.checkpoints) == end.get("checkpoint"):
        return complaints
    return [f"checkpoint {end.get('checkpoint')} is missing"]


def links(run: Folder) -> list[str]:
    """Which files are links: what they lead to may lie outside."""
    places = (*run.path.iterdir(), *(run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()))
    return [f"{path.name} is a symbolic link" for path in places if path.is_symlink()]


def _description(run: Folder) -> list[str]:
    """about.json has what is needed, and the configuration is the one it was made for."""
    about, tree = run.about, run.written
    wrong = [key for key, kind in ABOUT.items() if not isinstance(about.get(key), kind)]
    if wrong or not isinstance(about["explanation"].get("words"), str) or "partition" not in about["problem"]:
        return [f"about.json lacks {wrong[0] if wrong else 'a part'}"]
    layout = about.get("format", 1)
    if layout != FORMAT:
        which = "a later" if isinstance(layout, int) and layout > FORMAT else "another"
        return [f"its format {layout} is that of {which} version ({made_by(about)})"]
    if not (run.path / sums.FILE).is_file():
        return [f"{sums.FILE} is missing"]
    wrong = [name for name, section in tree.items() if not isinstance(section, dict)]
    missing = [name for name in ("problem", "scheme", "anderson", "run") if name not in tree]
    fingerprint = about["fingerprint"].split("+")[0].rpartition("-")[2]
    if wrong or missing or fingerprint != toml.fingerprint_of(tree):
        return ["config.toml is not the configuration that this run was made with"]
    return []


def _rows(run: Folder) -> list[str]:
    if (end := run.end) is not None:
        extent = Extent(**end["metrics"])
        if extent.differs(run.metrics) or run.metrics.stat().st_size != extent.bytes:
            return ["metrics.csv was changed since the run ended"]
        if "users" in end and (finding := sums.differs(run.path, metrics.USERS, end["users"])):
            return [finding]
    return [] if "round" in run.rows()[0] else ["metrics.csv has no rounds"]


def made_by(about: dict[str, Any]) -> str:
    """The version that made a run."""
    packages = about.get("environment", {}).get("packages", {})
    return f"resolvent {packages.get('resolvent') or 'of an unknown version'}"
