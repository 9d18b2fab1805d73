"""Real data: files and image sets as arrays, and who holds which rows of them."""

from resolvent.data.partition import counts, split, splits

__all__ = ["counts", "split", "splits"]
