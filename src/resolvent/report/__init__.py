"""Pictures, tables and one-file pages of runs on disk. Reads the runs and computes nothing."""

from resolvent.report.curves import Curve, curves
from resolvent.report.figures import draw, draw_partition
from resolvent.report.page import page
from resolvent.report.tables import summary

__all__ = ["Curve", "curves", "draw", "draw_partition", "page", "summary"]
