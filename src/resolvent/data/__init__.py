"""Real data: files and image sets as arrays, and who holds which rows of them."""

from resolvent.data.partition import counts, split, splits
from resolvent.data.tables import Table, read, signs

__all__ = ["Table", "counts", "read", "signs", "split", "splits"]
