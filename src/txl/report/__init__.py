"""Tables and figures, made from the files of runs alone: neither torch nor a model is needed."""

from txl.report.learning_curve import draw_learning_curve
from txl.report.summary import summary

__all__ = ["draw_learning_curve", "summary"]
