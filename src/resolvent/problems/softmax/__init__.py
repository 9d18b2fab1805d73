"""Multiclass regression: a score per class and row, whose loss is that of the softmax of the scores."""
