"""What a whole ordered run costs: 40 epochs of ``ordered(loader, model)`` against ``shuffle=True``, in turns.

``python benchmarks/torch_run.py [CASE …] [--device cuda] [--epochs 40] [--observe 0 2 8 32]
[--compile | --where]``. Both train the same model in one process, one epoch after the other in turns,
everything counted: hooks in observed epochs, their ends where the order is made, the wait for orders that
were made ahead. On a CPU one thread, and processor time of the whole process, so that the background thread
counts too; beside it the wall clock, which alone counts on a GPU. With ``--compile``, both models are
compiled, the plain one in a process of its own (the compiler gives equal models one graph); ratios are those
of epochs after the first five, in which graphs are made, and these are told apart. A second plain process
tells how far two such differ by themselves. With ``--where``, what an
observed epoch takes by part, in milliseconds of the wall clock. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))
from torch_models import LM, ResNet, mlp

from wellorder._datasets.networks import cnn, lenet
from wellorder._kernels.steer import Window
from wellorder.experiments._tasks.network_data import Gather, Places
from wellorder.policies import _latest_rows, _steering
from wellorder.torch import OrderedLoader, ordered
from wellorder.torch._hooks import LayerHooks
from wellorder.torch._observing import CopiesToHost, Observer
from wellorder.torch._schedule import NextState

IMAGE = (3, 32, 32)
FIRST = 5
"""Epochs of compiled models that do not count: all kinds of epochs are among them."""
CASES: dict[str, dict[str, tuple[Any, int, Any, int, str]]] = {
    # model, batch, shape or length, steps, precision
    "cpu": {
        "LeNet b16": (lenet, 16, IMAGE, 256, "float32"),
        "CNN b32": (cnn, 32, IMAGE, 8, "float32"),
        "ResNet-10 b16": (lambda: ResNet((1, 1, 1, 1)), 16, IMAGE, 3, "float32"),
        "LM b8x64": (lambda: LM(2000, 128, 4, 2, 64), 8, 64, 8, "float32"),
        "MLP b256": (lambda: mlp(784, 512, 512, 10), 256, (784,), 64, "float32"),
    },
    "cuda": {
        "LeNet b16": (lenet, 16, IMAGE, 256, "tf32"),
        "CNN b32": (cnn, 32, IMAGE, 195, "tf32"),
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

    def __init__(
        self,
        case: tuple[Any, int, Any, int, str],
        device: str,
        *,
        order: bool,
        observe: Any = "auto",
        compiled: bool = False,
    ) -> None:
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
        self.loader = ordered(loader, self.model, observe=observe) if order else loader
        self.run = torch.compile(self.model) if compiled else self.model

    def epoch(self) -> dict[str, float]:
        """Seconds of one epoch, by the clock on the wall and by the processor's."""
        clocks = {"wall": time.perf_counter, "processor": time.process_time}
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = {name: clock() for name, clock in clocks.items()}
        for x, y in self.loader:
            self.optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
                out = self.run(x)
                loss = functional.cross_entropy(out.flatten(0, -2), y.flatten())
            loss.backward()
            self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return {name: clock() - start[name] for name, clock in clocks.items()}


def measure(name: str, device: str, epochs: int, observe: Any = "auto") -> None:
    """Ratio of the whole runs, and of single epochs that are not observed."""
    case = CASES[device][name]
    set_precision(case)
    warm = [Training(case, device, order=order) for order in (False, True)]
    for run in warm:  # compiles kernels, fills caches
        run.epoch()
    plain, other = (Training(case, device, order=order, observe=observe) for order in (False, True))
    times: dict[str, list[dict[str, float]]] = {"plain": [], "observed": [], "not observed": []}
    for _ in range(epochs):
        times["plain"].append(plain.epoch())
        kind = "observed" if other.loader.observing else "not observed"
        times[kind].append(other.epoch())
    clock = "wall" if device == "cuda" else "processor"
    usual = statistics.median(each[clock] for each in times["plain"])
    say = {
        "case": name,
        "device": device,
        "epochs": epochs,
        "observed": len(times["observed"]),
        **ratios(times, clock),
        "ms_a_plain_step": round(1e3 * usual / case[3], 3),
    }
    if device == "cpu":
        say["wall"] = ratios(times, "wall")
    print(json.dumps(say), flush=True)


def measure_compiled(name: str, device: str, epochs: int, observe: Any = "auto") -> None:
    """The same of compiled models, and how many graphs were made by the end of some epochs."""
    case, context = CASES[device][name], multiprocessing.get_context("spawn")
    set_precision(case)
    processes, connections = [], []
    for _ in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=train_plainly, args=(name, device, there), daemon=True))
        processes[-1].start()
        connections.append(here)
    ordered_run = Training(case, device, order=True, observe=observe, compiled=True)
    first: dict[str, float] = {"ordered": 0.0, "plain": 0.0}
    times: dict[str, list[dict[str, float]]] = {"plain": [], "observed": [], "not observed": []}
    second_plain, graphs = [], []
    for epoch in range(epochs):
        kind = "observed" if ordered_run.loader.observing else "not observed"
        took = ordered_run.epoch()
        plain, second = (epoch_of(connection) for connection in connections)
        graphs.append(int(counters["stats"]["unique_graphs"]))
        if epoch < FIRST:
            first["ordered"] += took["wall"]
            first["plain"] += plain["wall"]
        else:
            times[kind].append(took)
            times["plain"].append(plain)
            second_plain.append(second)
    for process, connection in zip(processes, connections, strict=True):
        connection.send("")
        process.join()
    usual, again = (statistics.median(e["wall"] for e in found) for found in (times["plain"], second_plain))
    say = {
        "case": name,
        "device": device,
        "compiled": True,
        "epochs_that_count": epochs - FIRST,
        "observed": len(times["observed"]),
        **ratios(times, "wall"),
        "second_plain_ratio": round(again / usual, 4),
        "ms_a_plain_step": round(1e3 * usual / case[3], 3),
        f"seconds_of_the_first_{FIRST}_epochs": {kind: round(took, 2) for kind, took in first.items()},
        "graphs": {"first epoch": graphs[0], f"first {FIRST}": graphs[FIRST - 1], "all": graphs[-1]},
    }
    print(json.dumps(say), flush=True)


def train_plainly(name: str, device: str, connection: Any) -> None:
    """An epoch of ``shuffle=True`` whenever one is asked for."""
    torch.set_num_threads(1)
    set_precision(CASES[device][name])
    run = Training(CASES[device][name], device, order=False, compiled=True)
    while connection.recv():
        connection.send(run.epoch())


def epoch_of(connection: Any) -> dict[str, float]:
    """Seconds of an epoch that the process at the other end trains now."""
    connection.send("an epoch")
    seconds: dict[str, float] = connection.recv()
    return seconds


def set_precision(case: tuple[Any, int, Any, int, str]) -> None:
    torch.set_float32_matmul_precision("high" if case[-1] == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = case[-1] == "tf32"


def ratios(times: dict[str, list[dict[str, float]]], clock: str) -> dict[str, float]:
    """What the whole run and single epochs take by a plain one's, on one of the clocks."""
    by_kind = {kind: [each[clock] for each in found] for kind, found in times.items() if found}
    plain = by_kind.pop("plain")
    usual, medians = statistics.median(plain), {kind: statistics.median(t) for kind, t in by_kind.items()}
    found = {
        "run_ratio": sum(map(sum, by_kind.values())) / sum(plain),
        "run_ratio_of_medians": sum(medians[kind] * len(t) for kind, t in by_kind.items())
        / (usual * len(plain)),
        **{f"{kind.replace(' ', '_')}_ratio": median / usual for kind, median in medians.items()},
    }
    return {name: round(value, 4) for name, value in found.items()}


PARTS: list[tuple[Any, str, str]] = [
    (LayerHooks, "forward", "steps: hooks in forward"),
    (LayerHooks, "take_gradient", "steps: hooks in backward"),
    (OrderedLoader, "_take_in", "steps: rows made of what hooks kept"),
    (OrderedLoader, "_advance", "end: all of it"),
    (Observer, "flush", "end: of this, the last rows waited for and shown"),
    (NextState, "_part", "next epoch: waits for the order"),
    (CopiesToHost, "fetch", "beside: waits for the device, copies rows"),
    (_steering, "renew", "beside on a GPU: rows checked and stored"),
    (_latest_rows, "dense", "beside on a GPU: of this, checked"),
    (_steering, "known_part", "beside: mean of the rows"),
    (Window, "take_in", "beside: units chosen"),
]
"""Where an observed epoch's time goes: functions, and what they do."""


def where(name: str, device: str, epochs: int) -> None:
    """Milliseconds of an observed epoch by part, beside a plain epoch's."""
    case = CASES[device][name]
    set_precision(case)
    spent = dict.fromkeys((part for *_, part in PARTS), 0.0)

    def timed(function: Any, part: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - start

        return call

    plain, other = (Training(case, device, order=order) for order in (False, True))
    other.loader._schedule = lambda _: True
    others = {part: getattr(owner, method) for owner, method, part in PARTS}
    times: dict[str, list[float]] = {"plain": [], "observed": [], "observed and timed by part": []}
    parts: list[dict[str, float]] = []
    for epoch in range(epochs):
        times["plain"].append(plain.epoch()["wall"])
        times["observed"].append(other.epoch()["wall"])
        for owner, method, part in PARTS:
            setattr(owner, method, timed(others[part], part))
        spent.update(dict.fromkeys(spent, 0.0))
        times["observed and timed by part"].append(other.epoch()["wall"])
        parts.append(dict(spent))
        for owner, method, part in PARTS:
            setattr(owner, method, others[part])
        if epoch < 2:  # the first compile kernels and fill caches
            times, parts = {kind: [] for kind in times}, []
    say = {kind: statistics.median(found) for kind, found in times.items()}
    say |= {part: statistics.median(each[part] for each in parts) for part in spent}
    rounded = {part: round(1e3 * seconds, 2) for part, seconds in say.items()}
    print(json.dumps({"case": name, "device": device, "steps": case[3], **rounded}, indent=1), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--device", default="cpu", choices=list(CASES))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--where", action="store_true", help="what an observed epoch takes, by part")
    parser.add_argument("--compile", action="store_true", help="models that torch.compile compiled")
    parser.add_argument("--observe", type=int, nargs="+", help='these epochs instead of "auto"')
    options = parser.parse_args()
    torch.set_num_threads(1)
    observe = "auto" if options.observe is None else set(options.observe).__contains__
    for name in options.cases or CASES[options.device]:
        if options.compile:
            measure_compiled(name, options.device, options.epochs, observe)
        elif options.where:
            where(name, options.device, options.epochs)
        else:
            measure(name, options.device, options.epochs, observe)


if __name__ == "__main__":
    main()
