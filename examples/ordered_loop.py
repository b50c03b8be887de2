"""A plain PyTorch loop, twice: with shuffle=True, and with one more line. Handwritten digits, a small CNN.

python examples/ordered_loop.py [--epochs 12] [--seeds 3] [--batch 16] [--lr 0.05]
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder.torch import ordered


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(data: TensorDataset, options: argparse.Namespace, seed: int, *, order: bool) -> list[float]:
    """Loss on all of the data after each epoch."""
    torch.manual_seed(seed)  # the same first weights for both
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    shuffle = torch.Generator().manual_seed(seed)
    loader: DataLoader = DataLoader(data, batch_size=options.batch, shuffle=True, generator=shuffle)
    if order:
        loader = ordered(loader, model, seed=seed)  # the line that is new
    losses = []
    for _ in range(options.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            x, y = data.tensors
            losses.append(functional.cross_entropy(model(x), y).item())
    if order and not seed:
        print(loader.report(), end="\n\n")
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()

    digits = load_digits()
    images = torch.tensor(digits.images / 16 - 0.3, dtype=torch.float32).unsqueeze(1)
    data = TensorDataset(images, torch.tensor(digits.target))
    seeds = range(options.seeds)
    plain, better = (
        np.median([train(data, options, seed, order=order) for seed in seeds], axis=0)
        for order in (False, True)
    )
    print(f"Training loss after each epoch, medians of {options.seeds} seeds\n")
    print("epoch  shuffle=True   ordered   ratio")
    for epoch, (a, b) in enumerate(zip(plain, better, strict=True)):
        print(f"{epoch:5}{a:14.4f}{b:10.4f}{b / a:8.2f}")


if __name__ == "__main__":
    main()
