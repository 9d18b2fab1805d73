"""Sums of tilted absolute values of residuals: exact proxes and minima."""
