"""Table → verdict, PNG, and a self-contained HTML page. Nothing here trains or recomputes.

The seam: whatever made the flat table of `wellorder.report._table`, `verdicts` judges it, `picture` draws it,
and `Page`/`render` turn it into ``report.html``. Names are loaded on first use, so that processes that only
make tables need not wait for plotting libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wellorder.report._page import Page, render
    from wellorder.report._pictures import picture, save_picture
    from wellorder.report._table import Metric, read_table, table_of, write_table
    from wellorder.report._verdict import Kind, Verdict, headline, verdicts

_HOMES = {
    "page": ("Page", "render"),
    "pictures": ("picture", "save_picture"),
    "table": ("Metric", "read_table", "table_of", "write_table"),
    "verdict": ("Kind", "Verdict", "headline", "verdicts"),
}

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


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"wellorder.report._{module}"), name)
    raise AttributeError(f"module 'wellorder.report' has no attribute {name!r}")
