"""Draw docs/assets/architecture.svg: the parts of wellorder, and who imports whom.

Rows are the layers of the import contract in ``pyproject.toml``; arrows are read from the sources. Two kinds
are left out: those that follow from others (where a leads to b and b to c, a may import c as well), and those
that end in the lowest row, whose tools know nothing of orders and serve everybody.

Run it from anywhere: ``python docs/figures/architecture.py [--out FILE]``.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "assets" / "architecture.svg"
WIDTH, ROW, BOX, MARGIN, GAP = 900, 62, 30, 24, 40

Arrow = tuple[str, str]
Place = str | tuple[str, str, int]
"""A part, or where the arrow from one part to another passes by a row."""
Links = dict[Place, list[Place]]


def layers() -> list[list[str]]:
    """The rows of the import contract, from the top; without the parts that are not there yet."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = [re.findall(r"\w+", row) for row in rows]
    return [[part for part in row if home(part).exists()] for row in named]


def home(part: str) -> Path:
    """The folder of a part, or its file."""
    folder = ROOT / "src" / "wellorder" / part
    return folder if folder.is_dir() else folder.with_suffix(".py")


def imports() -> set[Arrow]:
    """Which part imports which; the package's own ``__init__``, which only passes names on, is left out."""
    graph = grimp.build_graph("wellorder", cache_dir=None)
    found = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if "." in module and "." in imported:
                found.add((module.split(".")[1], imported.split(".")[1]))
    return {(a, b) for a, b in found if a != b}


def shown(arrows: set[Arrow], lowest: list[str]) -> set[Arrow]:
    """The arrows that are drawn: they do not follow from others, nor end in the lowest row."""
    below: dict[str, set[str]] = {a: {b for x, b in arrows if x == a} for a, _ in arrows}

    def reached(part: str) -> set[str]:
        return {part}.union(*(reached(b) for b in below.get(part, ())))

    indirect = {(a, b) for a, b in arrows if any(b in reached(c) for c in below[a] - {b})}
    return {(a, b) for a, b in arrows - indirect if b not in lowest}


def placed(rows: list[list[str]], arrows: set[Arrow]) -> dict[Place, float]:
    """The middle of every place: neighbours stand near each other, arrows run straight where they can."""
    level = {part: at for at, row in enumerate(rows) for part in row}
    full: list[list[Place]] = [list(row) for row in rows]
    links: Links = {}
    for a, b in sorted(arrows):
        passed: list[Place] = [(a, b, at) for at in range(level[a] + 1, level[b])]
        for at, place in enumerate(passed, level[a] + 1):
            full[at].append(place)
        for one, other in pairwise([a, *passed, b]):
            links.setdefault(one, []).append(other)
            links.setdefault(other, []).append(one)
    middle: dict[Place, float] = {}
    for row in full:
        spread(row, {place: WIDTH * (at + 1) / (len(row) + 1) for at, place in enumerate(row)}, middle)
    for sweep in range(
        60
    ):  # each place moves towards what it is linked to; at first it may pass its neighbours
        for row in full:
            wanted = {place: wish(place, links, middle) for place in row}
            if sweep < 30:
                row.sort(key=lambda place: (wanted[place], str(place)))
            spread(row, wanted, middle)
    linked = [part for part in level if part in links]
    sides = [f(middle[part] + sign * width(part) / 2 for part in linked) for f, sign in ((min, -1), (max, 1))]
    return {place: x + (WIDTH - sum(sides)) / 2 if place in links else x for place, x in middle.items()}


def wish(place: Place, links: Links, middle: dict[Place, float]) -> float:
    """Where a place would like to be: amid what it is linked to, an arrow's own line counting most."""
    near = [(middle[other], 1.0 if isinstance(other, str) else 3.0) for other in links.get(place, [])]
    near += [(WIDTH / 2, 0.2)] if near else [(middle[place], 1.0)]
    return sum(x * weight for x, weight in near) / sum(weight for _, weight in near)


def spread(row: list[Place], wanted: dict[Place, float], middle: dict[Place, float]) -> None:
    """Put a row's places where they want to be, as far as they leave each other room."""
    packed = [
        settled([(wanted[place] * side, width(place)) for place in row[::side]])[::side] for side in (1, -1)
    ]
    for place, one, other in zip(row, *packed, strict=True):
        middle[place] = (one - other) / 2  # from the left and from the right: neither side wins


def settled(wanted: list[tuple[float, float]]) -> list[float]:
    """Middles of boxes that want to be somewhere: each is moved on until it no longer overlaps the last."""
    found, edge = [], float("-inf")
    for x, wide in wanted:
        found.append(max(x, edge + GAP + wide / 2))
        edge = found[-1] + wide / 2
    return found


def width(place: Place) -> float:
    """How much room a box takes, or an arrow that passes by."""
    return 22.0 + 8.6 * len(label(place)) if isinstance(place, str) else 2.0


def label(part: str) -> str:
    """A part's name, as its folder or file is called."""
    return f"{part}/" if home(part).is_dir() else f"{part}.py"


def curve(points: list[tuple[float, float]]) -> str:
    """A line through the points that enters and leaves each of them upright."""
    (x, y), *rest = points
    path = f"M{x:.0f} {y:.0f}"
    for nx, ny in rest:
        bend = (ny - y) / 2
        path += f" C{x:.0f} {y + bend:.0f} {nx:.0f} {ny - bend:.0f} {nx:.0f} {ny:.0f}"
        x, y = nx, ny
    return path


def lines(rows: list[list[str]], arrows: set[Arrow]) -> Iterator[str]:
    """The SVG, line by line; it brings its own background, so it reads in light and in dark pages."""
    middle, height = placed(rows, arrows), ROW * len(rows) + MARGIN
    top = {part: MARGIN + ROW * at for at, row in enumerate(rows) for part in row}
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    yield '     aria-labelledby="title desc" font-family="ui-monospace, \'DejaVu Sans Mono\', monospace">'
    yield '  <title id="title">The parts of wellorder, and who imports whom</title>'
    yield '  <desc id="desc">Rows are the layers of the import contract; every arrow points down.</desc>'
    yield '  <defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6"'
    yield '    orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="#00695c"/></marker></defs>'
    yield f'  <rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="12" fill="#fafafa"/>'
    low = height - ROW - 8
    yield f'  <path d="M{MARGIN} {low} H{WIDTH - MARGIN}" stroke="#b2c8c4" stroke-dasharray="4 4"/>'
    yield '  <g fill="none" stroke="#00695c" stroke-width="1.3">'
    for a, b in sorted(arrows):
        passed = [place for place in middle if not isinstance(place, str) and place[:2] == (a, b)]
        beside = [(middle[place], MARGIN + ROW * place[2] + y) for place in passed for y in (0, BOX)]
        path = curve([(middle[a], top[a] + BOX), *beside, (middle[b], top[b])])
        yield f'    <path data-from="{a}" data-to="{b}" d="{path}" marker-end="url(#tip)"/>'
    yield '  </g>\n  <g font-size="14" text-anchor="middle">'
    for part in (part for row in rows for part in row):
        left, fill = middle[part] - width(part) / 2, "#ffffff" if part.startswith("_") else "#b2dfdb"
        box = f'x="{left:.0f}" y="{top[part]}" width="{width(part):.0f}" height="{BOX}" rx="7"'
        yield f'    <rect data-part="{part}" {box} fill="{fill}" stroke="#00695c"/>'
        yield f'    <text x="{middle[part]:.0f}" y="{top[part] + 20}" fill="#263238">{label(part)}</text>'
    yield "  </g>\n</svg>"


def drawing() -> str:
    """The whole file, the same at each call."""
    rows, arrows = layers(), imports()
    strangers = {part for arrow in arrows for part in arrow} - {part for row in rows for part in row}
    if strangers:
        raise ValueError(f"{', '.join(sorted(strangers))}: give it a row in pyproject.toml's import contract")
    return "\n".join(lines(rows, shown(arrows, rows[-1]))) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT.relative_to(ROOT)}")
    out = parser.parse_args().out
    out.write_text(drawing())
    print(f"Drawn: {out}")
