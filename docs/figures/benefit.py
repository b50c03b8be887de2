"""Draw the picture of the README, docs/assets/benefit-light.svg and -dark.svg.

``python docs/figures/benefit.py``. Its data lie beside it. loss.csv is made from what ``python
benchmarks/torch_benefit.py fashion-logistic-b16 DATA --examples 20000 --epochs 20 --orders RR features
"Steering auto" --rows FILE`` wrote (``--rows FILE`` here, too); shards.csv and rounds.csv are rows of the
tables in docs/shards.md and docs/federated.md, which name their commands.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
NAMES = {
    "RR": "shuffle=True",
    "features": "ordered, before training",
    "Steering auto": "ordered, by gradients",
}
INK = {
    "light": {
        "ink": "#24292f",
        "shuffled": "#6e7781",
        "ordered": "#0969a8",
        "before": "#c2410c",
        "page": "#ffffff",
    },
    "dark": {
        "ink": "#e6edf3",
        "shuffled": "#9198a1",
        "ordered": "#58b4f0",
        "before": "#ff9d5c",
        "page": "#11161c",
    },
}


def read(name: str) -> list[dict[str, str]]:
    """The rows of a table."""
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def keep(rows: Path) -> None:
    """Write loss.csv: every look of every run."""
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    found.sort(key=lambda row: (list(NAMES).index(row["order"]), row["seed"], row["epoch"]))
    with (HERE / "loss.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("order", "seed", "epoch", "loss"))
        for row in found:
            for quarter, loss in enumerate(row["loss"], 1):
                out.writerow((row["order"], row["seed"], row["epoch"] + quarter / 4, f"{loss:.4f}"))


def losses(axes: Axes, colours: dict[str, str]) -> None:
    """Training loss, mean of the seeds and their range; each value is the mean of an epoch's four looks."""
    rows = read("loss.csv")
    looks = ((colours["shuffled"], ":"), (colours["before"], "--"), (colours["ordered"], "-"))
    for (order, name), (colour, style) in zip(NAMES.items(), looks, strict=True):
        mine = [row for row in rows if row["order"] == order]
        seeds = sorted({row["seed"] for row in mine})
        runs = np.array([[float(row["loss"]) for row in mine if row["seed"] == seed] for seed in seeds])
        smooth = np.array([np.convolve(run, np.full(4, 0.25), "valid") for run in runs])
        epochs = np.arange(4, runs.shape[1] + 1) / 4
        axes.fill_between(epochs, smooth.min(axis=0), smooth.max(axis=0), color=colour, alpha=0.18, lw=0)
        axes.plot(epochs, smooth.mean(axis=0), style, color=colour, lw=2.2, label=name)
    axes.set(title="Examples: lower loss, sooner", xlabel="epochs", ylabel="training loss, 4 looks' mean")
    axes.legend(frameon=False, fontsize=9)


def shards(axes: Axes, colours: dict[str, str]) -> None:
    """Test accuracy by epoch, for data stored by class."""
    rows = read("shards.csv")
    orders = {
        "random files, shuffle buffer": ("shuffle buffer", colours["shuffled"], ":"),
        "full shuffle": ("full shuffle", colours["ink"], "--"),
        "ordered files, steered window": ("ordered files", colours["ordered"], "-"),
    }
    for order, (name, colour, style) in orders.items():
        mine = [row for row in rows if row["order"] == order]
        x, y = ([float(row[key]) for row in mine] for key in ("epoch", "accuracy"))
        axes.plot(x, y, style, marker="o", ms=4, color=colour, lw=2.2, label=name)
    axes.set(title="Files of one class: no full shuffle needed", xlabel="epochs", ylabel="test accuracy, %")
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def rounds(axes: Axes, colours: dict[str, str]) -> None:
    """Rounds to a test accuracy, relative to cohorts drawn anew each round."""
    rows = read("rounds.csv")[::-1]
    ratio = [100 * float(row["ordered"]) / float(row["default"]) for row in rows]
    axes.barh([row["clients"] for row in rows], ratio, color=colours["ordered"], height=0.62)
    axes.axvline(100, color=colours["shuffled"], lw=2.2, ls=":")
    for at, value in enumerate(ratio):
        axes.text(
            value - 2,
            at,
            f"{value:.0f} %",
            ha="right",
            va="center",
            color=colours["page"],
            fontsize=9,
            weight="bold",
        )
    axes.set(
        title="Clients: fewer rounds, if they differ",
        xlabel="rounds needed, Flower's default = 100 %",
        xlim=(0, 106),
    )


def draw(out: Path, ink: dict[str, str]) -> None:
    """All three, on nothing: the page's own colour shows through."""
    matplotlib.rcParams.update({
        "svg.hashsalt": "wellorder", "svg.fonttype": "path", "font.size": 10,
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 11, "axes.titleweight": "bold",
        "axes.edgecolor": ink["shuffled"],
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink["ink"]),
    })  # fmt: skip
    figure = Figure(figsize=(13, 3.7), layout="constrained")
    parts = figure.subplots(1, 3)
    for axes, part in zip(parts, (losses, shards, rounds), strict=True):
        part(axes, ink)
        axes.grid(alpha=0.18, color=ink["shuffled"])
        axes.set_axisbelow(True)
    figure.savefig(out, transparent=True, metadata={"Date": None})
    print(f"Drawn: {out}")


def main() -> None:
    """Draw the picture for light and for dark pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="what the benchmark wrote; becomes loss.csv")
    parser.add_argument("--out", type=Path, default=HERE.parent / "assets")
    given = parser.parse_args()
    if given.rows:
        keep(given.rows)
    for name, ink in INK.items():
        draw(given.out / f"benefit-{name}.svg", ink)


if __name__ == "__main__":
    main()
