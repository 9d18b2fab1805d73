"""Image sets as tensors: from a folder, the cache, the system, or the network, in this order, and always checked."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.data import fetch, formats
from resolvent.data.image_sets import CIFAR10, FASHION_MNIST, MNIST, SETS, Damaged, FileLayout, Original
from resolvent.errors import InputError, bounded, file_path, flag, quoted, refuse


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """A training and a test set: images (n, channels, height, width) in uint8, labels (n,) in int64."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    name: str

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.x_train.shape[1:]))
        return (
            f"Images({self.name}: {len(self.x_train)} and {len(self.x_test)} of {shape}, {len(self.classes)} classes)"
        )


def mnist(folder: str | Path | None = None, offline: bool = False) -> Images:
    """Handwritten digits, 60,000 and 10,000 of 28 x 28 (LeCun, Cortes and Burges).

    folder: where the files lie; without it RESOLVENT_DATA, the cache, and then the network, unless `offline` or
    RESOLVENT_OFFLINE=1 forbids it.
    """
    return load(MNIST, folder, offline)


def fashion_mnist(folder: str | Path | None = None, offline: bool = False) -> Images:
    """Articles of clothing, 60,000 and 10,000 of 28 x 28 (Xiao, Rasul and Vollgraf); see `mnist`."""
    return load(FASHION_MNIST, folder, offline)


def cifar10(folder: str | Path | None = None, offline: bool = False) -> Images:
    """Colour photographs, 50,000 and 10,000 of 3 x 32 x 32 (Krizhevsky); see `mnist`."""
    return load(CIFAR10, folder, offline)


def normalised(images: Images, mean: Any = None, std: Any = None) -> Images:
    """The set with images in float32, (x/255 - mean)/std by channel; both are the training set's unless given."""
    if not isinstance(images, Images):
        refuse("images", quoted(images), "a set of images is needed, rs.data.mnist() say")
    usual = {which.name: (which.mean, which.std) for which in SETS}.get(images.name, (None, None))
    centre = _by_channel(usual[0] if mean is None else mean, images.x_train, "mean")
    scale = _by_channel(usual[1] if std is None else std, images.x_train, "std")
    if not bool((scale > 0).all()):
        refuse("std", scale.flatten().tolist(), "numbers > 0 are needed")
    x_train, x_test = ((x.float() / 255 - centre) / scale for x in (images.x_train, images.x_test))
    return replace(images, x_train=x_train, x_test=x_test)


def load(which: Original, folder: str | Path | None, offline: bool) -> Images:
    """The set from the first place that has it, all of it or the part that an NPZ file holds."""
    if folder is not None:
        root = file_path(folder, "folder").expanduser()
        if not root.is_dir():
            refuse("folder", root, "there is no such folder")
        images = _search(which, root)
        if images is None:
            refuse("folder", root, f"{which.title} is not there: {_wanted(which)} are needed")
        return images
    roots = _roots(which)
    for root in roots:
        if (images := _search(which, root)) is not None:
            return images
    cache = _cache() / which.name
    if flag(offline, "offline") or os.environ.get("RESOLVENT_OFFLINE", "").lower() not in ("", "0", "false", "no"):
        why = "which offline=True or RESOLVENT_OFFLINE forbids"
    else:
        try:
            fetch.fill(which, cache)
        except fetch.Unavailable as error:
            why = str(error)
        else:
            return load(which, cache, offline=True)
    hint = f", or {which.hint}" if which.hint else ""
    raise InputError(
        f"{which.title} is neither in {', '.join(map(str, roots))} nor to be had from the network ({why}): "
        f"put {_wanted(which)} into a folder and set RESOLVENT_DATA to it{hint}"
    )


# --- where to look ---------------------------------------------------------------------------------------------------


def _roots(which: Original) -> list[Path]:
    named = os.environ.get("RESOLVENT_DATA")
    if named and not Path(named).expanduser().is_dir():
        refuse("RESOLVENT_DATA", named, "there is no such folder")
    return [*([Path(named).expanduser()] if named else []), _cache(), *map(Path, which.system)]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resolvent"


def _wanted(which: Original) -> str:
    names = list(which.layouts[0].files)
    return f"{names[0]} and its {len(names) - 1} companions"


def _search(which: Original, root: Path) -> Images | None:
    for place in (*(root / name for name in which.folders), root):
        for layout in which.layouts:
            contents = _contents(which, layout, place)
            if contents is not None:
                return _images(which, layout.read(contents), str(place))
        for pattern in which.archives:
            for path in sorted(place.glob(pattern)):
                return _images(which, formats.npz(path), str(path))
    return None


def _contents(which: Original, layout: FileLayout, place: Path) -> dict[str, bytes] | None:
    """The files of a layout, checked; None where one is missing, or is another set's of the same name."""
    paths = {name: [p for p in (place / f"{name}.gz", place / name) if p.is_file()] for name in layout.files}
    if not all(paths.values()):
        return None
    others = {md5 for other in SETS if other.name != which.name for md5 in other.sums}
    contents = {}
    for name, (path, *_) in paths.items():
        try:
            contents[name] = layout.content(path.name, path.read_bytes())
        except Damaged as error:
            if error.sums & others:
                return None
            refuse("file", path, str(error))
        except OSError as error:
            refuse("file", path, f"it cannot be read ({error.strerror})")
    return contents


# --- tensors ---------------------------------------------------------------------------------------------------------


def _images(which: Original, four: formats.Four, source: str) -> Images:
    x_train, y_train, x_test, y_test = four
    train, test = _tensors(which, x_train, y_train, source), _tensors(which, x_test, y_test, source)
    return Images(*train, *test, which.classes, which.name)


def _tensors(which: Original, x: NDArray[Any], y: NDArray[Any], source: str) -> tuple[Tensor, Tensor]:
    most = len(which.classes) - 1
    if y.shape != x.shape[:1] or not len(y):
        refuse("file", f"{source}, with {len(x)} images and labels of shape {y.shape}", "one label per image is needed")
    if int(y.max()) > most or int(y.min()) < 0:
        refuse("file", f"{source}, with labels {y.min()} to {y.max()}", f"0 to {most} are needed")
    pixels = formats.nchw(x, which.shape, source)
    own = np.require(pixels, requirements=["C", "W"])  # bytes of a file cannot be written to, which torch minds
    return torch.from_numpy(own), torch.from_numpy(y.astype(np.int64))


def _by_channel(given: Any, x: Tensor, argument: str) -> Tensor:
    bounded(given, argument)
    try:
        values = torch.as_tensor([] if given is None else given, dtype=torch.float32, device=x.device).flatten()
    except Exception:
        values = x.new_empty(0)
    if len(values) not in (1, x.shape[1]):
        refuse(argument, given, f"one number, or one for each of {x.shape[1]} channels, is needed")
    return values.reshape(1, -1, 1, 1)
