"""Real data: files and image sets as arrays, and who holds which rows of them."""

from resolvent.data.held_out import HeldOut
from resolvent.data.images import Images, cifar10, fashion_mnist, mnist, normalised
from resolvent.data.partition import counts, split, splits
from resolvent.data.tables import Table, read, signs, stem

__all__ = [
    "HeldOut",
    "Images",
    "Table",
    "cifar10",
    "counts",
    "fashion_mnist",
    "mnist",
    "normalised",
    "read",
    "signs",
    "split",
    "splits",
    "stem",
]
