"""What a whole ordered run costs: 40 epochs of ``ordered(loader, model)`` against ``shuffle=True``, in turns.

``python benchmarks/torch_run.py [CASE …] [--device cuda] [--epochs 40]``. Both train the same model in one
process, one epoch after the other in turns, everything counted: hooks in observed epochs, their ends where
the order is made, the wait for orders that were made ahead. On a CPU one thread, and processor time of the
whole process, so that the background thread counts too; on a GPU the wall clock. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))
from torch_models import LM, ResNet, mlp

from wellorder._datasets.networks import cnn, lenet
from wellorder.experiments._tasks.network_data import Gather, Places
from wellorder.torch import ordered

IMAGE = (3, 32, 32)
CASES: dict[str, dict[str, tuple[Any, int, Any, int, str]]] = {
    # model, batch, shape or length, steps, precision
    "cpu": {
        "LeNet b16": (lenet, 16, IMAGE, 32, "float32"),
        "CNN b32": (cnn, 32, IMAGE, 8, "float32"),
        "ResNet-10 b16": (lambda: ResNet((1, 1, 1, 1)), 16, IMAGE, 3, "float32"),
        "LM b8x64": (lambda: LM(2000, 128, 4, 2, 64), 8, 64, 8, "float32"),
        "MLP b256": (lambda: mlp(784, 512, 512, 10), 256, (784,), 16, "float32"),
    },
    "cuda": {
        "LeNet b16": (lenet, 16, IMAGE, 256, "tf32"),
        "ResNet-18 b512 bf16": (lambda: ResNet((2, 2, 2, 2), nn.BatchNorm2d), 512, IMAGE, 24, "bf16"),
        "GPT-2-small b16x512 bf16": (lambda: LM(50257, 768, 12, 12, 512), 16, 512, 10, "bf16"),
        "MLP 4x4096 b512": (lambda: mlp(*[4096] * 5, 10), 512, (4096,), 48, "float32"),
        "MLP 4x4096 b512 TF32": (lambda: mlp(*[4096] * 5, 10), 512, (4096,), 48, "tf32"),
    },
}


class Folded(Places):
    """More examples than are held: example i shows row i modulo their number."""

    def __init__(self, n: int, held: int) -> None:
        super().__init__(n)
        self.held = held

    def __getitems__(self, indices: list[int]) -> list[int]:
        return (np.array(indices) % self.held).tolist()


class Training:
    """A model, its optimizer and its loader."""

    def __init__(self, case: tuple[Any, int, Any, int, str], device: str, *, order: bool) -> None:
        make, batch, shape, steps, self.precision = case
        torch.manual_seed(0)
        self.device = device
        self.model: nn.Module = make().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
        if isinstance(shape, int):
            ids = torch.randint(0, 2000, (64, shape + 1), device=device)
            x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        else:
            x = torch.randn(1024, *shape, device=device)
            y = torch.randint(0, 10, (1024,), device=device)
        loader: Any = DataLoader(Folded(batch * steps, len(x)), batch, shuffle=True, collate_fn=Gather(x, y))
        self.loader = ordered(loader, self.model) if order else loader

    def epoch(self) -> float:
        """Seconds of one epoch."""
        clock = time.perf_counter if self.device == "cuda" else time.process_time
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = clock()
        for x, y in self.loader:
            self.optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
                out = self.model(x)
                loss = functional.cross_entropy(out.flatten(0, -2), y.flatten())
            loss.backward()
            self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return clock() - start


def measure(name: str, device: str, epochs: int) -> None:
    """Ratio of the whole runs, and of single epochs that are not observed."""
    case = CASES[device][name]
    torch.set_float32_matmul_precision("high" if case[-1] == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = case[-1] == "tf32"
    warm = [Training(case, device, order=order) for order in (False, True)]
    for run in warm:  # compiles kernels, fills caches
        run.epoch()
    plain, other = (Training(case, device, order=order) for order in (False, True))
    times: dict[str, list[float]] = {"plain": [], "observed": [], "not observed": []}
    for _ in range(epochs):
        times["plain"].append(plain.epoch())
        kind = "observed" if other.loader.observing else "not observed"
        times[kind].append(other.epoch())
    usual = statistics.median(times["plain"])
    ours = sum(times["observed"]) + sum(times["not observed"])
    say = {
        "case": name,
        "device": device,
        "epochs": epochs,
        "observed": len(times["observed"]),
        "run_ratio": round(ours / sum(times["plain"]), 4),
        "run_ratio_of_medians": round(
            sum(statistics.median(times[k]) * len(times[k]) for k in ("observed", "not observed") if times[k])
            / (usual * epochs), 4,
        ),
        "observed_ratio": round(statistics.median(times["observed"]) / usual, 4),
        "not_observed_ratio": round(statistics.median(times["not observed"]) / usual, 4),
        "ms_a_plain_step": round(1e3 * usual / case[3], 3),
    }  # fmt: skip
    print(json.dumps(say), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--device", default="cpu", choices=list(CASES))
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.cases or CASES[options.device]:
        measure(name, options.device, options.epochs)


if __name__ == "__main__":
    main()
