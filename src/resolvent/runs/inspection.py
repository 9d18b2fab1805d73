"""Whether a run on disk is what was written. Each finding is a few words: which file, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resolvent import config as configs
from resolvent.errors import DamagedRun
from resolvent.runs import checkpoints, regular, sums, users
from resolvent.runs.metrics import Extent

if TYPE_CHECKING:
    from resolvent.runs.folder import Folder

FORMAT = 2
"""Of run folders: 1 had no checksums but those of checkpoints."""
ABOUT = {"id": str, "created": str, "fingerprint": str, "title": str, "problem": dict, "explanation": dict,
         "environment": dict}  # fmt: skip
"""What about.json must hold."""


def damage(run: Folder) -> list[str]:
    """What is wrong with a run's configuration, description, events and rows. Checkpoints are not read."""
    try:
        found = [*_links(run), *sums.changed(run.path)]
        return found or [*_description(run), *_rows(run)]
    except DamagedRun as error:
        return [error.words]
    except OSError as error:
        return [f"{error.filename or run.path} cannot be read ({error.strerror or error})"]
    except regular.UNFIT as error:  # well-formed, but not what is written here
        return [f"its files do not fit together ({type(error).__name__}: {error})"]


def verify(run: Folder) -> list[str]:
    """The same for a run that has ended, and that its last checkpoint is the one it ended with."""
    found = damage(run)
    if found:
        return found
    end = run.end
    _, complaints = run.newest()
    if complaints or end is None or "checkpoint" not in end:
        return complaints
    held = checkpoints.newest_name(run.checkpoints)
    return [] if held == end["checkpoint"] else [f"checkpoint {end['checkpoint']} is missing"]


def _links(run: Folder) -> list[str]:
    places = (*run.path.iterdir(), *(run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()))
    return [f"{path.name} is a symbolic link" for path in places if path.is_symlink()]


def _description(run: Folder) -> list[str]:
    """about.json has what is needed, and the configuration is the one it was made for."""
    about, tree = run.about, run.written
    wrong = [key for key, kind in ABOUT.items() if not isinstance(about.get(key), kind)]
    if wrong or not isinstance(about["explanation"].get("words"), str) or "partition" not in about["problem"]:
        return [f"about.json lacks {wrong[0] if wrong else 'a part'}"]
    if not isinstance(run.format, int) or run.format > FORMAT:
        return [f"its format {run.format} is that of a later version ({made_by(about)})"]
    if run.format >= 2 and not (run.path / sums.FILE).is_file():
        return [f"{sums.FILE} is missing"]
    wrong = [name for name, section in tree.items() if not isinstance(section, dict)]
    missing = [name for name in ("problem", "scheme", "anderson", "run") if name not in tree]
    known = about["fingerprint"].split("+")[0].rpartition("-")[2]
    if wrong or missing or known != configs.fingerprint_of(tree):
        return ["config.toml is not the configuration that this run was made with"]
    return []


def _rows(run: Folder) -> list[str]:
    end = run.end
    if end is not None and "metrics" in end:
        extent = Extent(**end["metrics"])
        if extent.differs(run.metrics) or run.metrics.stat().st_size != extent.bytes:
            return ["metrics.csv was changed since the run ended"]
    if end is not None and "users" in end and (words := sums.differs(run.path, users.FILE, end["users"])):
        return [words]
    frame = run.history()
    return [] if "round" in frame else ["metrics.csv has no rounds"]


def made_by(about: dict[str, Any]) -> str:
    """The version that made a run."""
    packages = about.get("environment", {}).get("packages", {})
    return f"resolvent {packages.get('resolvent') or 'of an unknown version'}"
