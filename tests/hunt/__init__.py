"""Differential tests: random cases of the package against independent code. `make hunt` tries many of each family."""
