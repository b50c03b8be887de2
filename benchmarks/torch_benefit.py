"""What ordering brings: RR, SO, FlipFlop, GraB, PairGraB and Herding; same network, data and first order.

``python benchmarks/torch_benefit.py TASK DATA [--device cuda] [--minutes 8]`` with TASK one of cifar10,
cifar10-cnn, fashion-mnist, fashion-mnist-logistic, and DATA the folder of the official files. First one
process alone times the epochs of each policy, interleaved; then the step size is tuned on RR (one seed, a
quarter of the epochs); then all policies and seeds train at once, each in its own process, until they are
done or the minutes are over. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from wellorder import FlipFlop, GraB, Herding, PairGraB, RandomReshuffling, ShuffleOnce
from wellorder._datasets import files
from wellorder.experiments._tasks.networks import (
    RECIPES,
    LabelledData,
    loader_of,
    one_epoch,
    optimizer_of,
    train,
)
from wellorder.torch import ordered

POLICIES = {
    "RR": RandomReshuffling(),
    "SO": ShuffleOnce(),
    "FlipFlop": FlipFlop(),
    "GraB": GraB(),
    "PairGraB": PairGraB(),
    "Herding": Herding(),
}

TIMED = 4096
"""Examples in the epochs that are timed."""


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def split_from(options: argparse.Namespace) -> LabelledData:
    """The task's data, scaled, on the device."""
    read = files.fashion_mnist if options.task.startswith("fashion") else files.cifar10
    data = read(options.data)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    x, test = ((torch.tensor(i).float() / 255 - mean) / std for i in (data.train_images, data.test_images))
    labels = (torch.tensor(data.train_labels), torch.tensor(data.test_labels))
    return LabelledData(x, labels[0], test, labels[1]).to(options.device, options.examples)


def job(options: argparse.Namespace, name: str, seed: int, step: float, epochs: int, results: Any) -> None:
    """Train one policy with one seed, and send every row home."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    recipe = replace(RECIPES[options.task], step_size=step)
    for row in train(recipe, split_from(options), POLICIES[name], seed=seed, epochs=epochs):
        results.put({"policy": name, "seed": seed, "step_size": step, **row})


def together(
    options: argparse.Namespace, jobs: list[tuple[str, int, float, int]], until: float
) -> list[dict[str, Any]]:
    """Run jobs at once, at most ``options.jobs`` of them; their rows so far when the time is over."""
    context = multiprocessing.get_context("spawn")
    results, rows, waiting, running = context.Queue(), [], list(jobs), []
    while (waiting or running) and time.time() < until:
        running = [p for p in running if p.is_alive()]
        while waiting and len(running) < options.jobs:
            arguments = waiting.pop(0)
            running.append(context.Process(target=job, args=(options, *arguments, results), daemon=True))
            running[-1].start()
        try:
            rows.append(results.get(timeout=0.5))
            if options.rows:
                say(**rows[-1])
        except queue.Empty:
            pass
    for process in running:
        process.terminate()
    while True:
        try:
            rows.append(results.get(timeout=0.2))
        except queue.Empty:
            return rows


def tune(options: argparse.Namespace, until: float) -> float:
    """RR's best step size on a grid around the task's own, by training loss after a quarter of the epochs."""
    own = RECIPES[options.task].step_size
    grid = [own * 10 ** (power / 2) for power in range(-2, 3)]
    epochs = max(1, options.epochs // 4)
    rows = together(options, [("RR", 100, step, epochs) for step in grid], until)
    reached = {step: [r for r in rows if r["step_size"] == step] for step in grid}
    common = min((max(r["epoch"] for r in found) for found in reached.values() if found), default=0)
    losses = {
        s: next((r["loss"] for r in f if r["epoch"] == common), float("inf")) for s, f in reached.items()
    }
    say(tuned_on="RR", epoch=common, losses={f"{s:.4g}": loss for s, loss in losses.items()})
    return min(losses, key=lambda s: losses[s])


def summary(rows: list[dict[str, Any]], seconds: dict[str, float]) -> None:
    """Epochs and seconds to RR's best training loss, last loss and accuracy, mean order error; by policy."""
    reached = {(r["policy"], r["seed"]): 0 for r in rows}
    for r in rows:
        reached[r["policy"], r["seed"]] = max(reached[r["policy"], r["seed"]], int(r["epoch"]))
    whole = [
        seed for seed in {seed for _, seed in reached} if all((name, seed) in reached for name in POLICIES)
    ]
    last = min((epoch for (_, seed), epoch in reached.items() if seed in whole), default=0)
    most = max(reached.values(), default=0)
    seeds = sorted(s for s in whole if min(reached[name, s] for name in POLICIES) == most) or sorted(whole)
    last = most if seeds and min(reached[name, s] for name in POLICIES for s in seeds) == most else last
    for name in POLICIES:
        runs = [sorted((r for r in rows if (r["policy"], r["seed"]) == (name, s) and r["epoch"] <= last),
                       key=lambda r: r["epoch"]) for s in seeds]  # fmt: skip
        if not all(runs):
            continue
        epochs = []
        for run, seed in zip(runs, seeds, strict=True):
            goal = min(
                r["loss"] for r in rows if (r["policy"], r["seed"]) == ("RR", seed) and r["epoch"] <= last
            )
            epochs.append(next((r["epoch"] for r in run if r["loss"] <= goal), float("inf")))
        tail = [r for run in runs for r in run if r["epoch"] > last - 5]
        reach = float(np.median(epochs))
        say(policy=name, epochs=last, seeds=len(seeds), epochs_to_rr_best=reach,
            seconds_to_rr_best=round(reach * seconds[name], 2),
            train_loss=round(float(np.mean([r["loss"] for r in tail])), 4),
            train_loss_by_seed=[round(run[-1]["loss"], 4) for run in runs],
            test_accuracy=round(100 * float(np.mean([r["test_accuracy"] for r in tail])), 2),
            order_error=round(float(np.mean([r["order_error"] for r in tail])), 3))  # fmt: skip


def epoch_seconds(options: argparse.Namespace, step: float) -> dict[str, float]:
    """Each policy's seconds for an epoch, alone on the machine, from epochs of a part of the data.

    Policies that look at no signals are timed without any, as `ordered` runs them by default.
    """
    torch.set_num_threads(1)
    split = split_from(options)
    part = replace(split, x=split.x[:TIMED], y=split.y[:TIMED])
    recipe = replace(RECIPES[options.task], step_size=step)
    runs = {}
    for name, policy in POLICIES.items():
        torch.manual_seed(0)
        model = recipe.model().to(options.device)
        loader = ordered(loader_of(recipe, part), model, policy)
        runs[name] = (model, loader, optimizer_of(recipe, model))
    plain = recipe.model().to(options.device)
    runs["shuffle=True"] = (plain, loader_of(recipe, part), optimizer_of(recipe, plain))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(4):
        for name, run in runs.items():
            times[name].append(one_epoch(*run))
    found = {name: float(np.median(t[1:])) * len(split.x) / len(part.x) for name, t in times.items()}
    say(seconds_per_epoch=found, ratio={name: t / found["shuffle=True"] for name, t in found.items()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=list(RECIPES))
    parser.add_argument("data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--step-size", type=float, default=None)
    parser.add_argument("--rows", action="store_true", help="print every epoch of every run")
    options = parser.parse_args()
    end = time.time() + 60 * options.minutes
    seconds = epoch_seconds(options, options.step_size or RECIPES[options.task].step_size)
    step = options.step_size or tune(options, time.time() + 12 * options.minutes)
    jobs = [(name, seed, step, options.epochs) for seed in range(options.seeds) for name in POLICIES]
    say(task=options.task, step_size=step, runs=len(jobs))
    summary(together(options, jobs, end), seconds)


if __name__ == "__main__":
    main()
