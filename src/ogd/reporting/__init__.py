"""Records → tables, figures and the page (`ogd.reporting.report`). Never imports torch."""

from ogd.reporting.compare import compare
from ogd.reporting.formats import table
from ogd.reporting.tables import Table, overview, scores, speeds

__all__ = ["Table", "compare", "overview", "scores", "speeds", "table"]
