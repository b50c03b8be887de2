"""scikit-learn's SGDClassifier in a better order: rows from inputs and labels, before anything is trained.

python examples/features_sklearn.py [--data noisy | digits] [--epochs 10] [--seeds 5] [--step-size 0.03]

One in ten of the noisy data's labels is random: the loss cannot fall far, steps of constant length jump about
its minimum, and a better order calms them. On the digits it falls in every epoch, and no order matters much.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

import wellorder as wo

Orders = Callable[[int], Iterator[np.ndarray]]


def shuffles(n: int, seed: int) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(seed)
    while True:
        yield draw.permutation(n)


def train(
    x: np.ndarray, y: np.ndarray, orders: Iterator[np.ndarray], options: argparse.Namespace
) -> list[float]:
    """Loss on all of the data after each epoch."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=options.step_size, shuffle=False)
    losses = []
    for _, order in zip(range(options.epochs), orders, strict=False):
        model.partial_fit(x[order], y[order], classes=np.unique(y))  # one by one, in this order
        losses.append(log_loss(y, model.predict_proba(x)))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", choices=["noisy", "digits"], default="noisy")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--step-size", type=float, default=0.03)
    options = parser.parse_args()

    if options.data == "noisy":
        x, y = make_classification(5000, 20, n_informative=10, flip_y=0.1, random_state=0)
    else:
        x, y = load_digits(return_X_y=True)
    x = StandardScaler().fit_transform(x)

    labels = wo.features(None, y)  # the label alone: stratified shuffling
    rows = wo.features(x, y)  # one-hot label ⊗ projected input
    ways: dict[str, Orders] = {
        "shuffle": lambda seed: shuffles(len(x), seed),
        "labels": lambda seed: wo.balanced(labels, seed=seed),
        "features": lambda seed: wo.balanced(rows, seed=seed),
    }
    losses = {}
    for name, orders in ways.items():
        runs = [train(x, y, orders(seed), options) for seed in range(options.seeds)]
        losses[name] = np.median(runs, axis=0)
    print(f"Training loss after each epoch, medians of {options.seeds} seeds\n")
    print("epoch" + "".join(f"{name:>10}" for name in losses))
    for epoch in range(options.epochs):
        print(f"{epoch:5}" + "".join(f"{values[epoch]:10.4f}" for values in losses.values()))


if __name__ == "__main__":
    main()
