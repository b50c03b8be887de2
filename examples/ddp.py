"""DDP in a better order than DistributedSampler's: every rank takes its part of every global batch.

torchrun --standalone --nproc-per-node 2 examples/ddp.py [--epochs 5] [--examples 4000] [--out run]

Without torchrun it trains in one process: the same program, the same global batches for half the ranks and
twice the batch size. Each rank saves its own state; kill a rank and start again, and it goes on exactly.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from wellorder.torch import ordered


def pictures(n: int) -> TensorDataset:
    """Ten noisy patterns of 28×28 pixels, sorted by class."""
    gen = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 1, 28, 28, generator=gen)
    labels = torch.arange(n) * 10 // n
    return TensorDataset(patterns[labels] + 6.0 * torch.randn(n, 1, 28, 28, generator=gen), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path("run"))
    options = parser.parse_args()

    many = "RANK" in os.environ  # torchrun tells every process its number
    if many:
        dist.init_process_group("gloo")  # "nccl" on GPUs
    rank = dist.get_rank() if many else 0

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(model) if many else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(pictures(options.examples), batch_size=32, shuffle=True)  # no DistributedSampler
    loader = ordered(loader, model)  # the line that is new

    options.out.mkdir(exist_ok=True)
    own = options.out / f"rank{rank}.pt"
    if own.exists():
        saved = torch.load(own, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    while loader.epoch < options.epochs:
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in parts.items()}, own)
        if rank == 0:
            told = loader.metrics()
            better = told["order/error_vs_shuffle"]
            print(f"epoch {loader.epoch}: the next order strays {better:.2f} times as far as a shuffle")
    if rank == 0:
        print(loader.report())
        print(f"wrote {options.out}")
    if many:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
