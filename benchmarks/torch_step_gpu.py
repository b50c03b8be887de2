"""What an ordered step costs on a GPU: ResNet-18 b512, GPT-2-small b16×512 (both bf16), an MLP 4×4096 b512.

``python benchmarks/torch_step_gpu.py [CASE …]``. CUDA events round blocks of steps, plain and ordered blocks
interleaved; ratio of the medians. The MLP runs in PyTorch's default float32 and in TF32, where the host is
the bottleneck. Beside it: the host's milliseconds to launch a step; the epoch's end, where the next order is
made, in microseconds an example; peak memory; and the order of a short run on the CPU and on the GPU, which
must be the same. Prints JSON lines.
"""

from __future__ import annotations

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
from torch_run import Folded

from wellorder import PairGraB, Steering
from wellorder.experiments._tasks.network_data import Gather, Places
from wellorder.torch import ordered

CASES: dict[str, tuple[Any, int, Any, torch.dtype]] = {
    "ResNet-18 b512 bf16": (lambda: ResNet((2, 2, 2, 2), nn.BatchNorm2d), 512, (3, 32, 32), torch.bfloat16),
    "GPT-2-small b16x512 bf16": (lambda: LM(50257, 768, 12, 12, 512), 16, 512, torch.bfloat16),
    "MLP 4x4096 b512": (lambda: mlp(*[4096] * 5, 10), 512, (4096,), torch.float32),
    "MLP 4x4096 b512 TF32": (lambda: mlp(*[4096] * 5, 10), 512, (4096,), torch.float32),
}
STEPS = 8


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


class Trainer:
    """Training that is advanced by blocks of steps; epochs are as long as the blocks need."""

    def __init__(self, case: str, signals: str | None, steps: int) -> None:
        make, self.batch, shape, self.dtype = CASES[case]
        torch.manual_seed(0)
        self.model: nn.Module = make().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
        n = self.batch * steps
        if isinstance(shape, int):
            ids = torch.randint(0, 50257, (64, shape + 1), device="cuda")
            x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        else:
            x, y = torch.randn(2048, *shape, device="cuda"), torch.randint(0, 10, (2048,), device="cuda")
        rows = Folded(n, len(x))
        loader: Any = DataLoader(rows, self.batch, shuffle=True, collate_fn=Gather(x, y))
        if signals:
            policy = PairGraB() if signals == "exact" else Steering()
            loader = ordered(loader, self.model, policy, signals=signals)
        self.loader, self._batches, self.host = loader, iter(loader), list[float]()

    def end(self) -> float:
        """Microseconds an example that the epoch's end takes."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        if next(self._batches, None) is not None:
            raise RuntimeError("the epoch is longer than the blocks of steps")
        return 1e6 * (time.perf_counter() - start) / len(self.loader) / self.batch

    def block(self, steps: int = STEPS) -> float:
        """Milliseconds a step, over a block of them."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        before = time.perf_counter()
        for _ in range(steps):
            x, y = next(self._batches)
            self.optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                out = self.model(x)
                loss = functional.cross_entropy(out.flatten(0, -2), y.flatten())
            loss.backward()
            self.optimizer.step()
        end.record()
        self.host.append(1e3 * (time.perf_counter() - before) / steps)
        torch.cuda.synchronize()
        return start.elapsed_time(end) / steps


def measure(case: str, kinds: list[str | None], blocks: int) -> None:
    times: dict[str, list[float]] = {}
    memory = {}
    for kind in kinds:  # peak memory, each kind alone
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            trainer = Trainer(case, kind, 3)
            trainer.block(3)
            trainer.end()  # compiles what it needs
            memory[str(kind)] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
        except Exception as error:  # one kind may not fit; the others still count
            say(case=case, signals=kind, failed=repr(error)[:300])
        trainer = None
    alive = [kind for kind in kinds if str(kind) in memory]
    trainers = {str(kind): Trainer(case, kind, STEPS * (blocks + 2)) for kind in alive}
    for turn in range(blocks + 2):
        for name, trainer in trainers.items():
            spent = trainer.block()
            if turn >= 2:
                times.setdefault(name, []).append(spent)
    plain = statistics.median(times["None"])
    for name, spent in times.items():
        trainer = trainers[name]
        step, end = statistics.median(spent), trainer.end()
        say(
            case=case,
            signals=name,
            ms=round(step, 3),
            ratio=round(step / plain, 4),
            ratio_with_the_epochs_end=round((step + 1e-3 * end * trainer.batch) / plain, 4),
            peak_mib=memory[name],
            host_ms=round(statistics.median(trainer.host), 3),
            end_us_per_example=round(end, 3),
        )


def agree() -> None:
    """The same short run in float64 on the CPU and on the GPU gives the same orders."""
    for kind in ("exact", "sketch", "batch"):
        orders = []
        for device in ("cpu", "cuda"):
            torch.manual_seed(0)
            model = mlp(20, 16, 3).double().to(device)
            x, y = torch.randn(60, 20).double().to(device), torch.randint(0, 3, (60,)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            plain: Any = DataLoader(Places(60), 8, collate_fn=Gather(x, y))
            loader = ordered(plain, model, PairGraB(), signals=kind)
            for _ in range(3):
                for a, b in loader:
                    optimizer.zero_grad()
                    functional.cross_entropy(model(a), b).backward()
                    optimizer.step()
            orders.append(loader.order)
        say(check="CPU and GPU orders agree", signals=kind, equal=bool(np.array_equal(*orders)))


def main() -> None:
    torch.backends.cudnn.benchmark = True
    say(device=torch.cuda.get_device_name(), torch=torch.__version__)
    agree()
    for case in [c for c in CASES if not sys.argv[1:] or any(word in c for word in sys.argv[1:])]:
        torch.backends.cuda.matmul.allow_tf32 = case.endswith("TF32")
        measure(case, [None, "sketch", "batch", "exact"], blocks=12)


if __name__ == "__main__":
    main()
