"""Ratios against the obvious alternative, measured within one run: `make bench`."""
