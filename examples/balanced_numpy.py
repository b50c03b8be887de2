"""Logistic regression in plain NumPy: the same loop in shuffled and in balanced order.

python examples/balanced_numpy.py [--epochs 10] [--seeds 5] [--examples 2000] [--step-size 0.04]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import wellorder as wo

BATCH = 4


def make_data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two clouds in ten dimensions that overlap."""
    draw = np.random.default_rng(seed)
    y = draw.integers(2, size=n)
    return draw.normal(size=(n, 10)) + 0.4 * (2 * y[:, None] - 1), y


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x @ w)) - y) @ x / len(x) + 0.01 * w


def shuffles(n: int, seed: int) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(seed)
    while True:
        yield draw.permutation(n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--step-size", type=float, default=0.04)
    options = parser.parse_args()

    distances: dict[str, list[list[float]]] = {"shuffled": [], "balanced": []}
    for seed in range(options.seeds):
        x, y = make_data(options.examples, seed)
        best = np.zeros(x.shape[1])
        for _ in range(3000):  # with whole gradients, to the minimum
            best -= gradient(best, x, y)
        rows = wo.features(x, y)
        for name, orders in ("shuffled", shuffles(len(x), seed)), ("balanced", wo.balanced(rows, seed=seed)):
            w, after = np.zeros_like(best), []
            for _, order in zip(range(options.epochs), orders, strict=False):
                for start in range(0, len(order), BATCH):
                    some = order[start : start + BATCH]
                    w -= options.step_size * gradient(w, x[some], y[some])
                after.append(float(np.linalg.norm(w - best)))
            distances[name].append(after)

    print(f"Distance to the minimum after each epoch, medians of {options.seeds} seeds\n")
    print("epoch  shuffled  balanced")
    for epoch, pair in enumerate(zip(*(np.median(runs, axis=0) for runs in distances.values()), strict=True)):
        print(f"{epoch:5}{pair[0]:10.4f}{pair[1]:10.4f}")


if __name__ == "__main__":
    main()
