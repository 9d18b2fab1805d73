"""Linear models over users' rows: a loss of a . w per row, whatever the loss."""
