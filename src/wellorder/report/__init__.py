"""Table → verdict, PNG, and a self-contained HTML page. Nothing here trains or recomputes.

Whatever made the flat table (`table_of` says what that is), `verdicts` judges it, `picture` draws it, and
`Page` and `render` turn it into ``report.html``. Names are loaded on first use, so that processes that only
make tables need not wait for plotting libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wellorder._extras import needed_by

if TYPE_CHECKING:
    from wellorder.report._page import Page, render
    from wellorder.report._pictures import costs, picture, save_picture
    from wellorder.report._table import Metric, read_table, table_of, write_table
    from wellorder.report._verdict import Conclusion, Kind, Verdict, headline, verdicts

_HOMES = {
    "page": ("Page", "render"),
    "pictures": ("costs", "picture", "save_picture"),
    "table": ("Metric", "read_table", "table_of", "write_table"),
    "verdict": ("Conclusion", "Kind", "Verdict", "headline", "verdicts"),
}

__all__ = [
    "Conclusion",
    "Kind",
    "Metric",
    "Page",
    "Verdict",
    "costs",
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
            with needed_by(f"wellorder.report.{name}", "experiments"):
                return getattr(import_module(f"wellorder.report._{module}"), name)
    raise AttributeError(f"module 'wellorder.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
