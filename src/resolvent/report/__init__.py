"""Pictures, tables and one-file pages of runs on disk. Reads the runs and computes nothing."""

from resolvent.report.curves import Curve, by_problem, curves, labels
from resolvent.report.figures import AXES, draw, draw_partition, needed
from resolvent.report.page import page
from resolvent.report.tables import NOTE, best, columns, ranked, summary

__all__ = [
    "AXES",
    "NOTE",
    "Curve",
    "best",
    "by_problem",
    "columns",
    "curves",
    "draw",
    "draw_partition",
    "labels",
    "needed",
    "page",
    "ranked",
    "summary",
]
