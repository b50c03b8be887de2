"""Draw the two pictures of docs/theory.md.

theory-bound-vs-run.svg is what the theory promises beside what a run does; theory-pairs-in-rounds.svg is the
paper's figure with 24 vectors and rounds of 8. Run it from anywhere:
``python docs/figures/theory.py [--out FILE] [--rounds FILE]``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import wellorder
from wellorder import Arbitrary, GraB, PairGraB, RandomReshuffling
from wellorder.problems import quadratics
from wellorder.theory import METHODS, check_assumption, check_bound, estimate, max_step_size, method_of

UNITS, EPOCHS, SEEDS, DELTA = 1000, 400, 10, 1e-4
SHOWN = np.unique(np.geomspace(1, EPOCHS, 60).astype(int)) - 1
COLOURS = {"AP": "#888888", "RR": "#0072b2", "GraB": "#d55e00", "PairGraB": "#009e73"}


def policies(problem):
    """The worst order that we know (sorted), reshuffling, and the two balancing policies."""
    order = np.argsort(problem.b[:, 0])
    return [Arbitrary(lambda _: order), RandomReshuffling(), GraB(), PairGraB()]


def checks(seed):
    """Both checks of every policy, at its largest admissible step size."""
    problem = quadratics(UNITS, seed=seed, spread=0.0)
    for policy in policies(problem):
        name = method_of(policy)
        step = max_step_size(name, UNITS, delta=DELTA, **estimate(problem).known)
        run = wellorder.sgd(problem, policy, step_size=step, epochs=EPOCHS, seed=seed, p=METHODS[name].p)
        yield name, check_bound(run, delta=DELTA), check_assumption(run, delta=DELTA)


def band(axes, checks, colour, label):
    """Draw the runs' median and range, solid, and the median promise, dashed."""
    runs = np.array([check.left for check in checks])[:, SHOWN]
    promised = np.median([check.right for check in checks], axis=0)[SHOWN]
    axes.fill_between(SHOWN + 1, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.2, lw=0)
    axes.loglog(SHOWN + 1, np.median(runs, axis=0), color=colour, label=label)
    axes.loglog(SHOWN + 1, promised, "--", color=colour)


def last(checks, side):
    """The median over the seeds after the last epoch."""
    return np.median([getattr(check, side)[-1] for check in checks])


def draw(out):
    """Write the figure."""
    matplotlib.rcParams.update({"svg.hashsalt": "wellorder", "font.size": 9})
    found = [(name, bound, order) for seed in range(SEEDS) for name, bound, order in checks(seed)]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, colour in COLOURS.items():
        bounds = [bound for method, bound, _ in found if method == name]
        orders = [order for method, _, order in found if method == name]
        band(left, bounds, colour, name)
        band(right, orders, colour, name)
        print(
            f"{name:9s} bound {last(bounds, 'right'):.3g}, run {last(bounds, 'left'):.3g}; "
            f"assumption {last(orders, 'right'):.3g}, order error squared {last(orders, 'left'):.3g}"
        )
    left.set(title="min ‖∇f(x_q)‖²: run (solid), Theorem 1 (dashed)", xlabel="epochs Q", ylim=(1e-12, 1e3))
    right.set(title="order error φ̄²: run (solid), Assumption 1 (dashed)", xlabel="epoch")
    for axes in (left, right):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def draw_rounds(out):
    """Write the paper's figure: why signs of single vectors do not serve rounds, and signs of pairs do."""
    basic = np.where(np.isin(np.arange(24), [*range(7), *range(8, 13), *range(16, 21)]), 1, -1)
    first = np.array([1, -1, 1, 1, -1, 1, -1, -1, 1, 1, -1, 1])
    pairs = np.column_stack([first, -first]).ravel()
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    titles = (
        "BasicBR: the new first round is 0…6 and 8, whose sum no sum over old rounds tells",
        "PairBR: four plus in every old round, so that a new round is half of two old ones",
    )
    for axes, signs, title in zip(figure.subplots(2, 1), (basic, pairs), titles, strict=True):
        for row, order in enumerate((np.arange(24), wellorder.reorder(np.arange(24), signs))):
            for at, unit in enumerate(order):
                x, y = at + 0.6 * (at // 8), 1.4 * (1 - row)
                colour = "#9ecae1" if signs[unit] > 0 else "#fee391"
                axes.add_patch(Rectangle((x, y), 0.94, 1, facecolor=colour, edgecolor="#555555", lw=0.6))
                axes.text(x + 0.47, y + 0.5, str(unit), ha="center", va="center", fontsize=8)
            axes.text(-0.3, 1.4 * (1 - row) + 0.5, ("old order", "new order")[row], ha="right", va="center")
        axes.set(xlim=(-3, 26), ylim=(-0.2, 2.6), title=title)
        axes.axis("off")
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    assets = Path(__file__).resolve().parents[1] / "assets"
    parser.add_argument("--out", type=Path, default=assets / "theory-bound-vs-run.svg")
    parser.add_argument("--rounds", type=Path, default=assets / "theory-pairs-in-rounds.svg")
    given = parser.parse_args()
    draw(given.out)
    draw_rounds(given.rounds)
