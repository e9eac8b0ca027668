"""Tables and figures, made from the files of runs alone: neither torch nor a model is needed."""

from txl.report.learning_curve import draw_learning_curve
from txl.report.summary import summary
from txl.report.tables import summary_of, write_tables

__all__ = ["draw_learning_curve", "summary", "summary_of", "write_tables"]
