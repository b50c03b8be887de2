"""Many ranks: what coordination brings, simulated on one device, and what a run costs under torchrun.

``python benchmarks/torch_ranks.py benefit DATA [--device cuda] [--rows FILE]`` trains LeNet on CIFAR-10 at a
global batch of 64 that W = 4, 16, 64 ranks share: reshuffled; each rank ordering its own fixed part of the
data alone (Steering, PairGraB); and coordinated (one global order by Steering, CD-GraB). With ``--order`` and
``--workers`` it runs that one job in this process, so that many can be started at once; without, it starts
all, ``--jobs`` at a time. Every epoch is a JSON line: the training loss at its quarters. ``summary FILE``
makes the table of it.

``python benchmarks/torch_ranks.py cost [CASE …] [--epochs 40]`` launches two CPU processes that train the
same model by DDP in turns, an epoch each: a plain DataLoader with DistributedSampler, and one that is
ordered. Processor time of both processes, the wall clock, and the bytes that were sent; JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parent))
import torch_benefit
from torch_benefit import LENET, Setting, Training, data_of, say
from torch_models import mlp

from wellorder import CDGraB, Keeps, Needs, PairGraB, RandomReshuffling, Steering
from wellorder._datasets.networks import cnn
from wellorder.experiments._tasks.network_data import Gather, Places
from wellorder.torch import ordered


@dataclass(frozen=True)
class AloneState:
    """The states of all workers, and their orders in turns."""

    seed: int
    epoch: int
    order: Any
    each: tuple[Any, ...]


@dataclass(frozen=True)
class Alone:
    """Rank-local orders: unit u is worker u % workers's, and each worker orders its own, knowing no other."""

    workers: int
    rule: Any

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS

    @property
    def remembers(self) -> bool:
        """As the rule does."""
        return bool(getattr(self.rule, "remembers", False))

    def init(self, n: int, *, seed: int = 0) -> AloneState:
        sizes = [len(range(w, n, self.workers)) for w in range(self.workers)]
        return self._joined([self.rule.init(m, seed=seed * 1000 + w) for w, m in enumerate(sizes)], seed)

    def observe(self, state: AloneState, units: Any, signals: Any) -> AloneState:
        units, signals = np.asarray(units), np.asarray(signals)
        each = list(state.each)
        for w in range(self.workers):
            own = units % self.workers == w
            each[w] = self.rule.observe(each[w], units[own] // self.workers, signals[own])
        return replace(state, each=tuple(each))

    def advance(self, state: AloneState) -> AloneState:
        return self._joined([self.rule.advance(each) for each in state.each], state.seed)

    def _joined(self, each: list[Any], seed: int) -> AloneState:
        order = np.empty(sum(len(s.order) for s in each), np.int32)
        for w, state in enumerate(each):
            order[w :: self.workers] = state.order * self.workers + w
        return AloneState(seed, each[0].epoch, order, tuple(each))


ORDERS: dict[str, Any] = {
    "RR": lambda _: RandomReshuffling(),
    "alone, Steering": lambda workers: Alone(workers, Steering()),
    "alone, PairGraB": lambda workers: Alone(workers, PairGraB()),
    "coordinated, Steering": lambda _: Steering(),
    "coordinated, CD-GraB": CDGraB,
}
THE_SAME = ("RR", "coordinated, Steering")
"""Orders of global batches: the same on any number of ranks."""


def jobs(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Order, workers and seed of every run; where the number of workers changes nothing, one number."""
    for seed, order in product(range(options.seeds), ORDERS):
        for workers in options.workers[:1] if order in THE_SAME else options.workers:
            yield order, workers, seed


def one_run(options: argparse.Namespace) -> None:
    """Train one order with one seed, and write a line after every epoch."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    setting = Setting(replace(LENET, step_size=options.step_size, batch=options.batch))
    workers = options.workers[0]
    torch_benefit.ORDERS["this"] = (ORDERS[options.order](workers), {"signals": "sketch"})
    if options.order == "RR":
        torch_benefit.ORDERS["this"] = (RandomReshuffling(), {})
    training = Training(setting, data_of(options, setting), "this", options.seed)
    start = time.perf_counter()
    for epoch in range(options.epochs):
        looks = training.epoch(4)
        line = json.dumps({
            "order": options.order, "workers": workers, "seed": options.seed, "epoch": epoch,
            "step_size": options.step_size, "batch": options.batch,
            "loss": [each["loss"] for each in looks],
            "accuracy": [each["test_accuracy"] for each in looks],
            "seconds": round(time.perf_counter() - start, 2),
        })  # fmt: skip
        with open(options.rows, "a") as out:  # noqa: PTH123
            out.write(line + "\n")  # one short write: lines of many processes do not mix


def all_runs(options: argparse.Namespace) -> None:
    """Start every run as a process of its own, ``options.jobs`` at a time, until the time is over."""
    waiting, running = list(jobs(options)), list[Any]()
    until = time.time() + 60 * options.minutes
    while (waiting or running) and time.time() < until:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < options.jobs:
            order, workers, seed = waiting.pop(0)
            words = ["benefit", options.data, "--order", order, "--workers", workers, "--seed", seed,
                     "--device", options.device, "--epochs", options.epochs, "--examples", options.examples,
                     "--batch", options.batch, "--step-size", options.step_size, "--rows", options.rows,
                     *(["--own-files"] if options.own_files else [])]  # fmt: skip
            running.append(subprocess.Popen([sys.executable, __file__, *map(str, words)]))
        time.sleep(0.5)
    for process in running:
        process.terminate()
    summary(options)


def summary(options: argparse.Namespace) -> None:
    """Mean over seeds of the last five epochs, at their ends and at all quarters, by order and workers."""
    runs: dict[tuple[Any, ...], dict[int, dict[int, Any]]] = {}
    for text in Path(options.rows).read_text().splitlines():
        row = json.loads(text)
        key = (row["step_size"], row["order"], row["workers"])
        runs.setdefault(key, {}).setdefault(row["seed"], {})[row["epoch"]] = row
    for (step_size, order, workers), seeds in runs.items():
        most = max(max(run) for run in seeds.values()) + 1
        whole = [[run[e] for e in range(most)] for run in seeds.values() if len(run) == most]
        ends = [np.mean([row["loss"][-1] for row in run[-5:]]) for run in whole]
        quarters = [np.mean([row["loss"] for row in run[-5:]]) for run in whole]
        accuracy = [100 * np.mean([row["accuracy"] for row in run[-5:]]) for run in whole]
        at = {e: round(float(np.mean([run[e - 1]["loss"] for run in whole])), 4)
              for e in (1, 2, 3, 5, 10, 20, 30, 40) if e <= most}  # fmt: skip
        say(order=order, workers=None if order in THE_SAME else workers, step_size=step_size, epochs=most,
            seeds=len(whole), loss_quarters=_spread(quarters), loss_ends=_spread(ends),
            accuracy=_spread(accuracy), loss_in_epoch=at)  # fmt: skip


def _spread(values: list[Any]) -> list[float]:
    return [
        round(float(np.mean(values)), 4),
        round(float(np.std(values, ddof=1)), 4) if len(values) > 1 else 0.0,
    ]


# ---- cost, by two real processes ----

CASES: dict[str, tuple[Any, int, tuple[int, ...], int]] = {  # model, batch a rank, shape, steps an epoch
    "CNN b16": (cnn, 16, (3, 32, 32), 8),
    "MLP b128": (lambda: mlp(784, 512, 512, 10), 128, (784,), 16),
}


class RankTraining:
    """One rank's DDP model, optimizer and loader."""

    def __init__(self, case: str, *, order: bool) -> None:
        make, batch, shape, steps = CASES[case]
        torch.manual_seed(0)
        n = batch * steps * distributed.get_world_size()
        x, y = torch.randn(n, *shape), torch.randint(0, 10, (n,))
        self.model = DistributedDataParallel(make())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
        places: Any = Places(n)
        self.sampler = DistributedSampler(places)
        loader: Any = DataLoader(places, batch, sampler=self.sampler, collate_fn=Gather(x, y))
        self.loader = ordered(loader, self.model) if order else loader

    def epoch(self, number: int) -> tuple[float, float]:
        """Processor and wall-clock seconds of an epoch."""
        distributed.barrier()
        start, wall = time.process_time(), time.perf_counter()
        self.sampler.set_epoch(number)
        for x, y in self.loader:
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        spent = time.process_time() - start
        distributed.barrier()
        return spent, time.perf_counter() - wall


def rank_main(options: argparse.Namespace) -> None:
    """What each of the processes does."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for case in options.cases or CASES:
        for order in (False, True):  # compiles kernels, fills caches
            RankTraining(case, order=order).epoch(0)
        plain, other = (RankTraining(case, order=order) for order in (False, True))
        spent, seen = np.zeros((options.epochs, 2, 2)), np.zeros(options.epochs, bool)
        for epoch in range(options.epochs):
            seen[epoch] = other.loader.observing
            spent[epoch] = plain.epoch(epoch), other.epoch(epoch)
        every = torch.from_numpy(spent)
        distributed.all_reduce(every)
        usual, ours = every.sum(0).tolist()
        kinds = {name: np.median(spent[which, 1, 0] / spent[which, 0, 0])
                 for name, which in (("observed", seen), ("not_observed", ~seen)) if which.any()}  # fmt: skip
        if not distributed.get_rank():
            say(case=case, ranks=distributed.get_world_size(), epochs=options.epochs,
                **{f"{name}_ratio_processor": round(float(v), 4) for name, v in kinds.items()},
                run_ratio_processor=round(ours[0] / usual[0], 4), run_ratio_wall=round(ours[1] / usual[1], 4),
                ms_a_plain_step=round(1e3 * usual[1] / 2 / options.epochs / CASES[case][3], 2),
                bytes_sent_by_a_rank=other.loader.report().sent,
                bytes_of_gradients_a_rank=4 * options.epochs * CASES[case][3]
                * sum(p.numel() for p in plain.model.parameters()))  # fmt: skip
    distributed.destroy_process_group()


def cost(options: argparse.Namespace) -> None:
    """Launch the processes."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__,
             "rank", *options.cases, "--epochs", str(options.epochs)]  # fmt: skip
    raise SystemExit(subprocess.run(words, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    benefit = commands.add_parser("benefit")
    benefit.add_argument("data")
    benefit.add_argument("--order", choices=list(ORDERS), help="run this one order, in this process")
    benefit.add_argument("--workers", type=int, nargs="+", default=[4, 16, 64])
    benefit.add_argument("--seed", type=int, default=0, help="of one run")
    benefit.add_argument("--seeds", type=int, default=2, help="of all runs")
    benefit.add_argument("--device", default="cpu")
    benefit.add_argument("--epochs", type=int, default=40)
    benefit.add_argument("--examples", type=int, default=24_960)
    benefit.add_argument("--batch", type=int, default=64, help="the global batch")
    benefit.add_argument("--step-size", type=float, default=1e-2)
    benefit.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    benefit.add_argument("--minutes", type=float, default=9.0)
    benefit.add_argument("--rows", default="torch_ranks.jsonl", help="every epoch is added here as a line")
    benefit.add_argument(
        "--own-files", action="store_true", help="files of the same format, not the official"
    )
    commands.add_parser("summary").add_argument("rows")
    for name in ("cost", "rank"):
        costs = commands.add_parser(name)
        costs.add_argument("cases", nargs="*")
        costs.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    if options.command == "benefit":
        (one_run if options.order else all_runs)(options)
    else:
        {"summary": summary, "cost": cost, "rank": rank_main}[options.command](options)


if __name__ == "__main__":
    main()
