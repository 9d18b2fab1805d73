"""The figures and theorems of the paper, one module each."""
