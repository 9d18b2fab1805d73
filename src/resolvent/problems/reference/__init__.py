"""The least value of what users minimise together, for every model over rows: found somehow, accepted in one way."""

from resolvent.problems.reference.door import Minimum, Pool, Unknown, minimum

__all__ = ["Minimum", "Pool", "Unknown", "minimum"]
