"""A small compiler: a module's layers, forward and backward, over stacked users."""
