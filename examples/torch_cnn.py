"""LeNet on CIFAR-10 (or on made-up images), shuffled and ordered; with autocast and clipping as usual.

python examples/torch_cnn.py [--data FOLDER] [--examples 5000] [--epochs 5]

FOLDER holds the official binary files in cifar-10-batches-bin; without it the images are made up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder import Herding, RandomReshuffling
from wellorder.federated import cifar10, network
from wellorder.torch import ordered


def images(folder: Path | None, n: int) -> TensorDataset:
    """The first n training images, scaled; or n noisy patterns."""
    if folder is not None:
        data = cifar10(folder)
        x = torch.tensor(data.train_images[:n]).float().div(255).sub(0.5).div(0.25)
        return TensorDataset(x, torch.tensor(data.train_labels[:n]))
    gen = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (n,), generator=gen)
    noise = 2.0 * torch.randn(n, 3, 32, 32, generator=gen)
    return TensorDataset(torch.randn(10, 3, 32, 32, generator=gen)[labels] + noise, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()

    data = images(options.data, options.examples)
    for policy in (RandomReshuffling(), Herding()):
        torch.manual_seed(0)
        model = network("lenet", channels=3, size=32, classes=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        loader = DataLoader(data, batch_size=32, shuffle=True)
        loader = ordered(
            loader, model, policy, signals="sketch"
        )  # sketched in both runs, to compare order errors
        for _ in range(options.epochs):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = functional.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                total += loss.item() / len(loader)
            error = loader.report().order_error[-1]
            print(
                f"{type(policy).__name__:17} epoch {loader.epoch}: loss {total:.4f}, order error {error:.3g}"
            )
        loader.remove()


if __name__ == "__main__":
    main()
