"""What an ordered step costs: CPU time of plain and ordered training steps, interleaved in one process.

``python benchmarks/torch_step.py [MODEL …] [--rounds N]``. Reported is the ratio of the median steps, one
thread; the median epoch's end, where the next order is made, is shared out over the epoch's 20 steps (the
first is left out: kernels are loaded there).
glibc's default allocator returns large blocks to the system after each step, which slows the plain step too
and flatters the ratio: the script starts itself again with the allocator told to keep them
(``--default-allocator`` measures without).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from torch_models import LM, ResNet, mlp

from wellorder import Herding, PairGraB
from wellorder._datasets.networks import cnn, lenet
from wellorder.torch import ordered

KEEP = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
    "OMP_NUM_THREADS": "1",
}

STEPS = 20
"""Steps in an epoch."""

CASES: dict[str, tuple[Any, int, tuple[int, ...], int]] = {
    "LeNet": (lenet, 64, (3, 32, 32), 10),
    "CNN": (cnn, 64, (3, 32, 32), 10),
    "ResNet-10": (lambda: ResNet((1, 1, 1, 1)), 32, (3, 32, 32), 10),
    "ResNet-18": (lambda: ResNet((2, 2, 2, 2)), 32, (3, 32, 32), 10),
    "LM": (lambda: LM(5000, 128, 4, 4, 64), 16, (64,), 5000),
    "MLP": (lambda: mlp(784, 1024, 256, 10), 64, (784,), 10),
}


def data(shape: tuple[int, ...], classes: int, n: int) -> TensorDataset:
    gen = torch.Generator().manual_seed(0)
    if len(shape) == 1 and classes > 10:
        ids = torch.randint(0, classes, (n, shape[0] + 1), generator=gen)
        return TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return TensorDataset(
        torch.randn(n, *shape, generator=gen), torch.randint(0, classes, (n,), generator=gen)
    )


class Trainer:
    """An endless training loop that is advanced one step at a time."""

    def __init__(self, make: Any, batch: int, rows: TensorDataset, signals: str | None) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.loader: Any = DataLoader(rows, batch_size=batch, shuffle=True)
        if signals is not None:
            policy = PairGraB() if signals == "exact" else Herding()
            self.loader = ordered(self.loader, self.model, policy, signals=signals)
        self._batches = iter(self.loader)
        self.ends: list[float] = []

    def step(self) -> float:
        """CPU seconds of one step, the loader's part included."""
        start = time.process_time()
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self.loader)
            self.ends.append(time.process_time() - start)
            start = time.process_time()
            batch = next(self._batches)
        x, y = batch
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(x).flatten(0, -2), y.flatten()).backward()
        self.optimizer.step()
        return time.process_time() - start


def measure(name: str, rounds: int) -> dict[str, float]:
    """Ratio of the median ordered step to the median plain step, for each kind of signals."""
    make, batch, shape, classes = CASES[name]
    rows = data(shape, classes, batch * STEPS)
    kinds: list[str | None] = [None, "sketch", "exact", "batch"]
    trainers = [Trainer(make, batch, rows, kind) for kind in kinds]
    times: list[list[float]] = [[] for _ in kinds]
    for turn in range(rounds + 3):
        for which in random.Random(turn).sample(
            range(len(kinds)), len(kinds)
        ):  # each after each other's caches
            seconds = trainers[which].step()
            if turn >= 3:
                times[which].append(seconds)
    medians = [
        statistics.median(spent) + statistics.median(trainer.ends[1:] or [0.0]) / STEPS
        for trainer, spent in zip(trainers, times, strict=True)
    ]
    result = {"plain ms": 1e3 * medians[0]}
    return result | {str(k): m / medians[0] for k, m in zip(kinds[1:], medians[1:], strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--default-allocator", action="store_true")
    options = parser.parse_args()
    if not options.default_allocator and any(os.environ.get(k) != v for k, v in KEEP.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP})
    torch.set_num_threads(1)
    print(f"{'':10} plain ms   sketch  exact   batch")
    for name in options.models:
        row = measure(name, options.rounds)
        ratios = "   ".join(f"{row[kind]:.3f}" for kind in ("sketch", "exact", "batch"))
        print(f"{name:10} {row['plain ms']:8.1f}   {ratios}")
        print(json.dumps({"model": name, **row}), file=sys.stderr)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
