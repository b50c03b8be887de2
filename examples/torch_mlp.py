"""An MLP on MNIST-shaped data, in a better order than shuffle=True; saves a checkpoint and goes on from it.

python examples/torch_mlp.py [--epochs 5] [--examples 4000] [--out run.pt]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder.torch import ordered


def pictures(n: int) -> TensorDataset:
    """Ten noisy patterns of 28×28 pixels, sorted by class: the worst order there is, and no harm done."""
    gen = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 1, 28, 28, generator=gen)
    labels = torch.arange(n) * 10 // n
    return TensorDataset(patterns[labels] + 6.0 * torch.randn(n, 1, 28, 28, generator=gen), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path("run.pt"))
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(pictures(options.examples), batch_size=64, shuffle=True)
    loader = ordered(loader, model)  # the line that is new

    if options.out.exists():
        saved = torch.load(options.out, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    while loader.epoch < options.epochs:
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item() / len(loader)
        print(f"epoch {loader.epoch}: loss {total:.4f}, order error {loader.report().order_error[-1]:.3g}")
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in parts.items()}, options.out)
    print(loader.report())
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
