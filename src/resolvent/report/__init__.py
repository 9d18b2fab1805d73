"""Pictures, tables and one-file pages of runs on disk. Reads the runs and computes nothing."""

from resolvent.report.curves import Curve, curves, labels
from resolvent.report.figures import draw, draw_partition
from resolvent.report.packages import needed
from resolvent.report.page import page
from resolvent.report.tables import NOTE, columns, summary

__all__ = ["NOTE", "Curve", "columns", "curves", "draw", "draw_partition", "labels", "needed", "page", "summary"]
