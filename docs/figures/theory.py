"""Draw docs/assets/theory-bound-vs-run.svg: what the theory promises beside what a run does.

Run it from anywhere: ``python docs/figures/theory.py [--out FILE]``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parents[1] / "assets" / "theory-bound-vs-run.svg"
    parser.add_argument("--out", type=Path, default=here)
    draw(parser.parse_args().out)
