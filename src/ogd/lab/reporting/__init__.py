"""Records → tables, figures and the page (`ogd.lab.reporting.report`). Never imports torch."""

from ogd.lab.reporting.compare import compare
from ogd.lab.reporting.formats import table
from ogd.lab.reporting.tables import Table, overview, scores, speeds

__all__ = ["Table", "compare", "overview", "scores", "speeds", "table"]
