"""Real data: files and image sets as arrays, and who holds which rows of them."""

from resolvent.data import dividing, fitted, scaling
from resolvent.data.by_user import UserTable, from_frame
from resolvent.data.held_out import HeldOut
from resolvent.data.images import Images, cifar10, fashion_mnist, mnist, normalised
from resolvent.data.partition import counts, split, splits
from resolvent.data.preparation import Preparation
from resolvent.data.samples import hospitals
from resolvent.data.tables import Table, columns, frame, inputs, is_table, read, signs, stem

__all__ = [
    "HeldOut",
    "Images",
    "Preparation",
    "Table",
    "UserTable",
    "cifar10",
    "columns",
    "counts",
    "dividing",
    "fashion_mnist",
    "fitted",
    "frame",
    "from_frame",
    "hospitals",
    "inputs",
    "is_table",
    "mnist",
    "normalised",
    "read",
    "scaling",
    "signs",
    "split",
    "splits",
    "stem",
]
