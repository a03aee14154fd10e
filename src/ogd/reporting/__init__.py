"""Records → tables, figures and the page (`ogd.reporting.report`). Never imports torch."""

from ogd.reporting.tables import Table, comparison, overview, scores, speeds

__all__ = ["Table", "comparison", "overview", "scores", "speeds"]
