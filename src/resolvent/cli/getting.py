"""The command that gets data to begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent import config as configs
from resolvent import data as sets
from resolvent.cli import output
from resolvent.cli.arguments import Form
from resolvent.cli.output import Format, say
from resolvent.data import samples
from resolvent.errors import InputError

IMAGES = {"mnist": sets.mnist, "fashion-mnist": sets.fashion_mnist, "cifar10": sets.cifar10}
HOSPITALS = "hospitals"
ABOUT = {
    HOSPITALS: "900 patients of five hospitals, made up: a table to try things with",
    **{name: which.about for name, which in samples.SAMPLES.items()},
    "mnist": "70,000 handwritten digits of 28 x 28 pixels",
    "fashion-mnist": "70,000 pieces of clothing of 28 x 28 pixels",
    "cifar10": "60,000 photographs of ten kinds of things, 32 x 32 pixels in colour",
}
"""Every set that can be had."""


def data(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Without it: a list of the sets.")] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Where to write a table; hospitals into a folder: one table each."),
    ] = None,
    form: Form = Format.table,
) -> None:
    """Get a data set: a made-up table of five hospitals, a LIBSVM set, or images (which go to the cache)."""
    if name is None:
        output.rows([{"set": each, "what": about} for each, about in ABOUT.items()], form)
        return
    chosen = configs.alike(name)
    if chosen not in ABOUT:
        raise InputError(f"there is no data set {name!r}{configs.nearest(chosen, ABOUT)}")
    if chosen in IMAGES:
        if to is not None:
            raise InputError(f"--to is {to}, but {chosen} goes to the cache, where runs find it; leave --to out")
        images = IMAGES[chosen]()
        output.pairs({"set": chosen, "images": len(images.y_train) + len(images.y_test)}, form)
        return
    path = to or Path(f"{chosen}.csv" if chosen == HOSPITALS else f"{chosen}.gz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if chosen == HOSPITALS:
            if not path.suffix:
                _by_hospital(path, form)
                return
            path.write_text(samples.hospitals().to_csv(index=False), encoding="utf-8")
        else:
            samples.sample(chosen, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}); name another file with --to") from None
    output.pairs({"set": chosen, "file": str(path)}, form)
    if form is Format.table:
        table = f"{path} --user-column hospital --target ill --test 0.2 --anderson 5 --rounds 60"
        say(f"next: resolvent run {table if chosen == HOSPITALS else f'logistic --data {path} --users 20'}")


def _by_hospital(folder: Path, form: Format) -> None:
    """A table per hospital, as a federation has them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in samples.hospitals().groupby("hospital", sort=False):
        rows.drop(columns="hospital").to_csv(folder / f"{name}.csv", index=False)
    output.pairs({"set": HOSPITALS, "folder": str(folder)}, form)
    if form is Format.table:
        say("next: resolvent federate init trial --table --target ill")


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    data: (
        "resolvent data",
        "resolvent data hospitals --to patients.csv",
        "resolvent data a9a",
    ),
}
