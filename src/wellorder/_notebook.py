"""What a notebook shows of a result: a small table in HTML, and axes to draw on, in one style for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import instance_of, shown
from wellorder._extras import needed_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes

STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e2e8f0",
    "grid.linewidth": 0.7, "axes.edgecolor": "#94a3b8", "axes.labelcolor": "#334155",
    "xtick.color": "#475569", "ytick.color": "#475569", "text.color": "#0f172a",
    "legend.frameon": False, "lines.linewidth": 1.6,
    "pdf.fonttype": 42, "svg.hashsalt": "wellorder",
}  # fmt: skip
SHOWN = 6
"""Rows of a long series in a table."""
PICTURES = {".png": "Software", ".pdf": "CreationDate", ".svg": "Date"}
"""What a picture's file may end in, and what of its data would differ from run to run."""


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style inside a ``with`` block."""
    import matplotlib as mpl  # slow to import, and an extra

    with mpl.rc_context(STYLE):
        yield


def literal(text: str) -> str:
    r"""Text that matplotlib shows as it stands: no formula between ``$``, no label hidden by a leading ``_``.

    >>> print(literal("a$b$"))
    a\$b\$
    """
    plain = text.replace("$", r"\$")
    return f"\N{WORD JOINER}{plain}" if plain.startswith("_") else plain


def picture_file(name: str, path: Path) -> Path:
    """Take the name of a picture's file; its folder must exist.

    >>> from pathlib import Path
    >>> picture_file("--plot", Path("a.gif"))
    Traceback (most recent call last):
    ValueError: --plot='a.gif': pass a .png, .pdf or .svg file in a folder that exists
    """
    if path.suffix not in PICTURES or not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"{name}={shown(str(path))}: pass a .png, .pdf or .svg file in a folder that exists")
    return path


def axes_for(axes: Any, what: str) -> Axes:
    """The caller's axes, or new ones in the house style, which a notebook shows when the cell ends."""
    with needed_by(what, "experiments"):
        from matplotlib import pyplot
        from matplotlib.axes import Axes
    if axes is not None:
        given: Axes = instance_of("axes", axes, Axes, "pass matplotlib axes, as plt.subplots() makes them")
        return given
    with house_style():
        return pyplot.figure(figsize=(5.6, 3.4), layout="constrained").subplots()


def plot_series(
    axes: Axes, x: npt.ArrayLike, y: npt.ArrayLike, *, label: str, log: bool = False, **line: Any
) -> None:
    """Draw one series and name it in the legend; what is not finite leaves a gap."""
    values = np.asarray(y, np.float64)
    with house_style():
        axes.plot(np.asarray(x), np.where(np.isfinite(values), values, np.nan), label=literal(label), **line)
        if log and bool((values > 0).any()):
            axes.set_yscale("log", nonpositive="mask")
        axes.legend()


def some_of(count: int) -> list[int]:
    """Which entries of a long series a table shows: the first, the last, and a few between, evenly.

    >>> some_of(4), some_of(101)
    ([0, 1, 2, 3], [0, 20, 40, 60, 80, 100])
    """
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, SHOWN)).tolist()})


def html_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> str:
    """A table for a notebook; numbers in four digits, and no text is taken for HTML.

    >>> html_table(["policy", "loss"], [["<b>", 0.123456]])
    '<div><table><thead><tr><th>policy</th><th>loss</th></tr></thead><tbody><tr><td>&lt;b&gt;</td><td>0.1235</td></tr></tbody></table></div>'
    """
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    above = f"<p><b>{escape(title)}</b></p>" if title else ""
    top = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return f"<div>{above}<table>{top}<tbody>{body}</tbody></table></div>"


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
