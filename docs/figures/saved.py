"""Draw docs/assets/saved.svg: rounds saved by how much clients differ, from the tables of docs/federated.md.

``python docs/figures/saved.py``. Nothing is typed twice: what each seed saved, and the measure, are read from
the page itself, which names their commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent.parent
POLICIES = {"FL-GraB": (4, "#0969a8", "o", 1), "BalancedCohorts": (6, "#c2410c", "D", -1)}
"""The column of the policy, its colour and its mark, and on which side of the measure it is drawn."""


def tables(page: str) -> tuple[dict[str, float], dict[str, dict[str, list[list[int]]]]]:
    """Each setting's measure; and what each policy saved there, by target and seed, in percent."""
    measures: dict[str, float] = {}
    saved: dict[str, dict[str, list[list[int]]]] = {policy: {} for policy in POLICIES}
    name = ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("| ") else []
        if len(cells) == 3 and re.fullmatch(r"\.\d+", cells[1]):
            measures[setting(cells[0])] = float(cells[1])
        elif len(cells) == 7:
            name = setting(cells[0]) or name
            for policy, (column, *_) in POLICIES.items():
                by_seed = re.search(r"\(([−\d, ]+) %\)", cells[column])
                if by_seed:
                    values = [int(each.replace("−", "-")) for each in by_seed[1].split(",")]
                    saved[policy].setdefault(name, []).append(values)
    return measures, saved


def setting(cell: str) -> str:
    """A setting's name without what is said only once."""
    return cell.removesuffix(" a client")


def draw(page: str, out: Path) -> None:
    """Means over targets and seeds, and from the least to the most."""
    measures, saved = tables(page)
    matplotlib.rcParams.update({"svg.hashsalt": "wellorder", "svg.fonttype": "path", "font.size": 9})
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    order = sorted(measures, key=lambda name: measures[name])
    for policy, (_, colour, mark, side) in POLICIES.items():
        values = [np.concatenate(saved[policy][name]) for name in order]
        mean = np.array([np.mean(each) for each in values])
        reach = [mean - [min(each) for each in values], [max(each) for each in values] - mean]
        y = np.arange(len(order)) + 0.15 * side
        axes.errorbar(mean, y, xerr=reach, fmt=mark, color=colour, ms=5, lw=1.2, capsize=2, label=policy)
    axes.axvline(0, color="#6e7781", lw=1)
    axes.set_yticks(np.arange(len(order)), [f"{name}   {measures[name]:.2f}" for name in order])
    axes.set(xlabel="rounds saved against cohorts drawn anew, %", ylabel="how much clients differ")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(out, metadata={"Date": None})
    print(f"Drawn: {out}")


if __name__ == "__main__":
    draw((DOCS / "federated.md").read_text(), DOCS / "assets" / "saved.svg")
