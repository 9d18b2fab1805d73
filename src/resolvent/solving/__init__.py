"""`solve`: a run from its arguments to its result, and what watches over it."""
