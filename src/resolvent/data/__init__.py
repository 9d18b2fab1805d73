"""Real data: files and image sets as arrays, and who holds which rows of them."""

from resolvent.data.images import Images, cifar10, fashion_mnist, mnist, normalised
from resolvent.data.partition import counts, split, splits
from resolvent.data.samples import hospitals
from resolvent.data.tables import Table, read, signs, stem

__all__ = [
    "Images",
    "Table",
    "cifar10",
    "counts",
    "fashion_mnist",
    "hospitals",
    "mnist",
    "normalised",
    "read",
    "signs",
    "split",
    "splits",
    "stem",
]
