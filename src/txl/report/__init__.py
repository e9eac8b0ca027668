"""Tables and figures, made from the files of runs alone: neither torch nor a model is needed."""

from txl.report.figures.learning_curve import draw_learning_curve
from txl.report.render.summary import summary
from txl.report.render.tables import summary_of, write_tables
