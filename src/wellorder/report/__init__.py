"""Table → verdict, PNG, and a self-contained HTML page. Nothing here trains or recomputes.

The seam: whatever made the flat table of `wellorder.report.table`, `verdicts` judges it, `picture` draws it,
and `Page`/`render` turn it into ``report.html``.
"""

from wellorder.report.page import Page, render
from wellorder.report.pictures import picture, save_picture
from wellorder.report.table import Metric, read_table, table_of, write_table
from wellorder.report.verdict import Kind, Verdict, headline, verdicts

__all__ = [
    "Kind",
    "Metric",
    "Page",
    "Verdict",
    "headline",
    "picture",
    "read_table",
    "render",
    "save_picture",
    "table_of",
    "verdicts",
    "write_table",
]
