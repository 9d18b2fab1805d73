"""What `make setup` installs: packages at the versions that constraints.txt names, and no file without a checksum."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import resolvent

ROOT = Path(__file__).resolve().parents[1]


def pins(name: str) -> dict[str, str]:
    lines = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in lines}


def test_both_files_name_the_same_versions() -> None:
    pinned = pins("constraints.txt")
    assert pinned.pop("torch")
    assert pins("requirements.lock") == pinned


def test_every_package_has_a_checksum() -> None:
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", block) for block in blocks)


def test_everything_that_is_asked_for_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"], *chain(*extras.values())]
    pinned = pins("constraints.txt")
    for requirement in map(Requirement, asked):
        if requirement.name != "resolvent":
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement.name


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["version"] == resolvent.__version__


def test_the_wheel_has_the_package_and_nothing_else() -> None:
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    files = {file.distribution_path for file in builder.recurse_selected_project_files()}
    assert {"resolvent/py.typed", "resolvent/__main__.py", "resolvent/report/page.html"} <= files
    assert not [file for file in files if not file.startswith("resolvent/") or "test" in file]
