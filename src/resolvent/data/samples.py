"""Data sets to begin with: a table of five hospitals, made by seed, and the LIBSVM sets of optimisation papers."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from resolvent.data import fetch
from resolvent.data.limits import TooLarge
from resolvent.errors import InputError, whole

if TYPE_CHECKING:
    import pandas as pd

HOSPITALS = {"north": 60, "south": 90, "east": 150, "west": 220, "centre": 380}
"""Patients of each."""


def hospitals(seed: int = 0) -> pd.DataFrame:
    """Patients of five hospitals of different sizes, ages and habits, one row each; `ill` is what to predict.

    >>> hospitals().groupby("hospital").size()["centre"]
    np.int64(380)
    """
    import pandas as pd

    rng = np.random.default_rng(whole(seed, "seed", least=0))
    frames = []
    for name, patients in HOSPITALS.items():
        age = np.clip(rng.normal(rng.uniform(42, 66), 13, patients), 18, 95).round()
        pressure = (105 + 0.45 * age + rng.normal(0, 12, patients)).round()
        cholesterol = np.clip(rng.normal(rng.uniform(185, 215), 32, patients), 110, 340).round()
        smoker = rng.random(patients) < rng.uniform(0.15, 0.45)
        ward = rng.choice(["surgery", "heart", "general"], patients, p=rng.dirichlet([2, 2, 4]))
        score = 0.05 * (age - 55) + 0.03 * (pressure - 130) + 0.01 * (cholesterol - 200) + 0.9 * smoker
        score = score + 0.7 * (ward == "heart") - 0.6
        ill = np.where(rng.random(patients) < 1 / (1 + np.exp(-score)), "yes", "no")
        columns = {"age": age, "pressure": pressure, "cholesterol": cholesterol, "smoker": smoker, "ward": ward}
        frames.append(pd.DataFrame({"hospital": name, **columns, "ill": ill}))
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class Sample:
    """A file of a public set: where it is, and the SHA-256 of its content."""

    about: str
    url: str
    sha256: str


LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
SAMPLES: Mapping[str, Sample] = {
    "a9a": Sample(
        "32,561 people, 123 binary features: income above 50,000 or not",
        LIBSVM + "a9a",
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    ),
    "w8a": Sample(
        "49,749 pages of the web, 300 binary features",
        LIBSVM + "w8a",
        "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2",
    ),
    "mushrooms": Sample(
        "8,124 mushrooms, 112 binary features: edible or not",
        LIBSVM + "mushrooms",
        "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538",
    ),
}


def sample(name: str, to: Path) -> Path:
    """Download a set of SAMPLES into a file, packed if its name ends with .gz; nothing unchecked is written."""
    which = SAMPLES[name]
    with TemporaryDirectory(prefix="resolvent-") as folder:
        file = Path(folder) / name
        try:
            fetch.download(which.url, file, name)
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != which.sha256:
                raise fetch.Unavailable("what came is not this set: its checksum differs")
        except (fetch.Unavailable, TooLarge) as error:
            raise InputError(
                f"{name} could not be fetched from {which.url} ({error}); bring the file from another machine, "
                "or try `resolvent data hospitals`, which needs no network"
            ) from None
    to.write_bytes(gzip.compress(content, mtime=0) if to.suffix == ".gz" else content)
    return to
