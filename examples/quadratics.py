"""Every policy on the quadratics of Figure 1: a table of medians, and a plot with min–max bands."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import wellorder as wo
from wellorder.problems import quadratics

POLICIES = {
    "with replacement": wo.WithReplacement(),
    "random reshuffling": wo.RandomReshuffling(),
    "shuffle once": wo.ShuffleOnce(),
    "incremental": wo.IncrementalGradient(),
    "FlipFlop": wo.FlipFlop(),
    "nice permutation": wo.NicePermutation(),
    "arbitrary (rotation)": wo.Arbitrary(lambda epoch: np.roll(np.arange(1000), epoch)),
    "greedy": wo.Greedy(),
    "GraB-proto": wo.GraBProto(),
    "PairGraB-proto": wo.PairGraBProto(),
    "GraB": wo.GraB(),
    "GraB, reorders=2": wo.GraB(reorders=2),
    "PairGraB": wo.PairGraB(),
    "Herding": wo.Herding(passes=8),
    "Steering": wo.Steering(),
}
IN_THE_PLOT = ("random reshuffling", "shuffle once", "FlipFlop", "GraB", "PairGraB", "Herding")
PANELS = {"distance": "distance to the optimum, ‖x − x*‖", "order_error": "order error, φ̄"}


def curves(policy: wo.Policy, epochs: int, seeds: range, step_size: float) -> dict[str, np.ndarray]:
    """One row per seed. Entry q is measured before epoch q, so the state after the last takes one more."""
    setting = {"step_size": step_size, "epochs": epochs + 1}
    runs = [wo.sgd(quadratics(1000, seed=seed), policy, seed=seed, **setting) for seed in seeds]
    return {name: np.array([getattr(run, name) for run in runs]) for name in PANELS}


def plot(results: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        for label in IN_THE_PLOT:
            rows = results[label][name]
            epochs = np.arange(rows.shape[1])
            (line,) = axis.plot(epochs, np.median(rows, axis=0), label=label)
            axis.fill_between(epochs, rows.min(axis=0), rows.max(axis=0), color=line.get_color(), alpha=0.15)
        axis.set(yscale="log", xlim=(0, None), xlabel="epochs", title=title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(IN_THE_PLOT))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.stem}.part{path.suffix}")
    figure.savefig(beside, dpi=110)
    beside.replace(path)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--epochs", type=int, default=39)
    parse.add_argument("--seeds", type=int, default=10)
    parse.add_argument("--first-seed", type=int, default=0)
    parse.add_argument("--step-size", type=float, default=1e-3)
    parse.add_argument("--out", type=Path, default=Path("runs/quadratics.png"))
    args = parse.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    print(f"Medians of {args.seeds} seeds after {args.epochs} epochs, N=1000, step size {args.step_size:g}\n")
    print(f"{'policy':22}{'‖x − x*‖':>10}{'min … max':>20}{'φ̄':>8}{'min … max':>15}")
    results = {}
    for label, policy in POLICIES.items():
        results[label] = curves(policy, args.epochs, seeds, args.step_size)
        x, phi = (np.quantile(rows[:, -1], [0.5, 0, 1]) for rows in results[label].values())
        print(f"{label:22}{x[0]:10.1e}{x[1]:10.1e} … {x[2]:.1e}{phi[0]:7.1f}{phi[1]:8.1f} … {phi[2]:4.1f}")
    plot(results, args.out)
    print(f"\nOpen {args.out.resolve()}")


if __name__ == "__main__":
    main()
