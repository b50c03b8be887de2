"""What ordering brings, in epochs and in seconds: same network, data, first weights and step size.

``python benchmarks/torch_benefit.py SETTING… DATA [--device cuda] [--minutes 8]`` with DATA the folder of the
official files (for ``lm-adamw`` WikiText-2's ``wiki.train*.tokens`` and ``wiki.test.tokens``, there or in a
subfolder). First one process alone times an epoch of each kind (plain, observed, not observed), in turns;
then all orders and seeds train at once, each in a process of its own. The training loss is taken at the
quarters of every epoch. Seconds to a loss are the epochs to it, each at its kind's own time. JSON.

With ``--rows FILE`` times and epochs are kept in a file as they come. What it holds is not done again: the
same command goes on, and with ``--minutes 0`` only prints what there is (after timing what has no time yet).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import multiprocessing
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from torch_models import LM, LabelledData, ResNet, mlp

from wellorder import FlipFlop, GraB, Herding, PairGraB, RandomReshuffling, ShuffleOnce, Steering, features
from wellorder._datasets import files
from wellorder._datasets.networks import cnn, lenet, logistic
from wellorder.experiments._tasks.official import Recipe
from wellorder.torch import Sketch, ordered
from wellorder.torch._schedule import schedule_of

FEW = ("RR", "features", "Steering auto", "PairGraB")


@dataclass(frozen=True)
class Setting:
    """A network on a data set, and how it is trained; unless the command line says otherwise."""

    recipe: Recipe
    data: str = "cifar10"
    adam: bool = False
    cosine: bool = False
    """The step size rises for a twentieth of the run, and falls to 0 by a cosine; else it is constant."""
    augmented: bool = False
    """Images are cropped and flipped at random."""
    bf16: bool = False
    """On a GPU the network runs in bfloat16."""
    epochs: int = 40
    examples: int = 24_992
    seeds: int = 3
    looked_at: int | None = None
    orders: tuple[str, ...] = ()
    """All unless given."""
    words: tuple[int, int] = (4000, 64)
    """Of a language model: different words, and words in an example."""


LENET = Recipe(lenet, 1e-3, momentum=0.9, weight_decay=0.01)
RESNET = Recipe(partial(ResNet, (1, 1, 1, 1), nn.BatchNorm2d), 0.1, 128, weight_decay=5e-4)
SMALL_LM = Recipe(partial(LM, 4000, 128, 4, 4, 64), 1e-3, 32, weight_decay=0.1)
SETTINGS = {
    "lenet-b16-1e-3": Setting(LENET),
    "lenet-b64-5e-3": Setting(replace(LENET, step_size=5e-3, batch=64)),
    "lenet-b64-1e-2": Setting(replace(LENET, step_size=1e-2, batch=64)),
    "lenet-b64-adam": Setting(replace(LENET, step_size=1e-3, batch=64, weight_decay=0.0), adam=True),
    "cnn-b32": Setting(Recipe(cnn, 2e-2, batch=32, momentum=0.0)),
    "fashion-lenet-b16": Setting(Recipe(partial(lenet, 1, 28), 1e-3), "fashion_mnist"),
    "fashion-logistic-b16": Setting(Recipe(logistic, 3.2e-2, momentum=0.0), "fashion_mnist"),
    "fashion-logistic-adam": Setting(Recipe(logistic, 1e-3, momentum=0.0), "fashion_mnist", adam=True),
    "fashion-mlp-b16": Setting(
        Recipe(partial(mlp, 784, 100, 10), 5e-2, momentum=0.0), "fashion_mnist", epochs=15, examples=10_000
    ),
    "resnet-recipe": Setting(
        RESNET, cosine=True, augmented=True, bf16=True, epochs=20, examples=50_000, seeds=2, looked_at=5000,
        orders=FEW,
    ),
    "resnet-recipe-small": Setting(
        replace(RESNET, model=partial(ResNet, (1, 1, 1), nn.BatchNorm2d, first=16)), cosine=True,
        augmented=True, epochs=12, examples=5000, seeds=2, looked_at=1000, orders=FEW,
    ),
    "lm-adamw": Setting(
        SMALL_LM, "text", adam=True, cosine=True, epochs=10, examples=50_000, seeds=2, looked_at=5000,
        orders=FEW,
    ),
    "lm-adamw-small": Setting(
        replace(SMALL_LM, model=partial(LM, 1000, 64, 4, 2, 32)), "text", adam=True, cosine=True, epochs=8,
        examples=6400, seeds=2, looked_at=400, orders=FEW, words=(1000, 32),
    ),
}  # fmt: skip


def at_powers_of_four(epoch: int) -> bool:
    """Epochs 1, 4, 16, …: half as many as `"auto"` observes."""
    return epoch in {4**power for power in range(epoch.bit_length())}


def every_other(epoch: int) -> bool:
    """Epochs 0, 2, 8, 32, …: every other one that `"auto"` observes."""
    return epoch == 0 or epoch in {2 * 4**power for power in range(epoch.bit_length())}


def at_once_and_at_powers_of_four(epoch: int) -> bool:
    """Epochs 0, 1, 4, 16, …: at once, and then half as often as `"auto"`."""
    return epoch == 0 or at_powers_of_four(epoch)


ORDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "RR": (RandomReshuffling(), {}),
    "RR, other shuffles": (RandomReshuffling(), {"other_shuffles": True}),
    "RR, 2 batches a step": (RandomReshuffling(), {"batches": 2}),
    "RR, 8 batches a step": (RandomReshuffling(), {"batches": 8}),
    "Steering, rows of now": (Steering(), {"rows": "now"}),
    "SO": (ShuffleOnce(), {}),
    "FlipFlop": (FlipFlop(), {}),
    "stratified": (Steering(), {"rows": "labels"}),
    "features": (Steering(), {"rows": "features"}),
    "features, Herding": (Herding(), {"rows": "features"}),
    "GraB": (GraB(), {"signals": "sketch"}),
    "PairGraB": (PairGraB(), {"signals": "sketch"}),
    "Herding auto": (Herding(), {}),
    "Herding always": (Herding(), {"observe": "always"}),
    "Steering auto": (Steering(), {}),
    "Steering always": (Steering(), {"observe": "always"}),
    "Steering auto, lengths 0": (Steering(lengths=0), {}),
    "Steering at 1, 4, 16": (Steering(), {"observe": at_powers_of_four}),
    "Steering at 0, 1, 4, 16": (Steering(), {"observe": at_once_and_at_powers_of_four}),
    "Steering at 0, 2, 8, 32": (Steering(), {"observe": every_other}),
    "features and Steering": (Steering(), {"rows": "features", "model": True}),
    "Steering, 1 layer": (Steering(), {"signals": Sketch(layers=1)}),
    "Steering, 2 layers": (Steering(), {"signals": Sketch(layers=2)}),
    "Steering, 3 layers": (Steering(), {"signals": Sketch(layers=3)}),
    "Steering, 2,048 numbers": (Steering(), {"signals": Sketch(size=2048, height=32, filters=16)}),
}
TIMED_AS = {
    "RR, other shuffles": "RR", "SO": "RR", "FlipFlop": "RR",
    "RR, 2 batches a step": "RR", "RR, 8 batches a step": "RR", "Steering, rows of now": "RR",
    "stratified": "features", "features, Herding": "features",
    "GraB": "PairGraB",
    "Herding auto": "Steering auto", "Herding always": "Steering auto", "Steering always": "Steering auto",
    "Steering at 1, 4, 16": "Steering auto", "Steering at 0, 1, 4, 16": "Steering auto",
    "Steering at 0, 2, 8, 32": "Steering auto",
}  # fmt: skip
"""Orders whose epochs do the same beside the training as another's: these are timed in its name.

So are bounds that are no way to train: what several times the batches would bring at the price of one, and
orders by the gradients that all examples have when the epoch begins.
"""


def timed_as(order: str) -> str:
    """The order whose epochs, observed and others, take what this one's do."""
    return TIMED_AS.get(order, order)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def chosen(options: argparse.Namespace, name: str) -> Setting:
    """A setting, with what the command line says about it."""
    setting = SETTINGS[name]
    keys = ("epochs", "examples", "seeds", "looked_at")
    known = {key: getattr(options, key) for key in keys if getattr(options, key)}
    orders = tuple(options.orders or setting.orders or ORDERS)
    if setting.data == "text":  # an example has no label
        orders = tuple(order for order in orders if order != "stratified")
    return replace(setting, orders=orders, **known)


def data_of(options: argparse.Namespace, setting: Setting) -> LabelledData:
    """The data, scaled, on the device."""
    kept = slice(None, options.examples or setting.examples)
    if setting.data == "text":
        train, test = stretches(Path(options.data), *setting.words)
        parts = [part[:, words] for part in (train[kept], test) for words in (slice(-1), slice(1, None))]
        return LabelledData(*parts, looked_at=setting.looked_at).to(options.device)
    data = getattr(files, setting.data)(options.data, verify=not options.own_files)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    x, test = (
        (torch.tensor(i).float() / 255 - mean) / std for i in (data.train_images[kept], data.test_images)
    )
    labels = torch.tensor(data.train_labels[kept]), torch.tensor(data.test_labels)
    return LabelledData(x, labels[0], test, labels[1], setting.looked_at).to(options.device)


def stretches(folder: Path, different: int, length: int) -> tuple[Tensor, Tensor]:
    """WikiText-2 to train and to test on, in stretches of ``length`` words and the one after them.

    The most frequent words have numbers of their own; all others are 0, as "<unk>" is.
    """
    texts = []
    for name in ("wiki.train*.tokens", "wiki.test.tokens"):
        found = sorted(folder.rglob(name))
        if not found:
            raise SystemExit(f"{folder}: no {name} in it; unpack WikiText-2 there")
        texts.append(found[0].read_text(encoding="utf-8").replace("\n", " <eos> ").split())
    frequent = [word for word, _ in Counter(texts[0]).most_common(different) if word != "<unk>"]
    numbers = {word: number for number, word in enumerate(frequent[: different - 1], 1)}
    parts = []
    for words in texts:
        ids = torch.tensor([numbers.get(word, 0) for word in words])
        parts.append(ids.unfold(0, length + 1, length).contiguous())
    return parts[0], parts[1]


def known_before(data: LabelledData, what: str) -> Any:
    """Rows that are known before training: by labels alone, or by small images, or by the counts of words."""
    if data.y.ndim > 1:
        words = data.x.cpu()
        counts = torch.zeros(len(words), int(words.max()) + 1, dtype=torch.uint8)
        counts.scatter_add_(1, words, torch.ones_like(words, dtype=torch.uint8))
        return features(counts, False, progress=False)
    return features(None if what == "labels" else functional.adaptive_avg_pool2d(data.x, 8), data.y)


def cropped_and_flipped(x: Tensor, draw: torch.Generator) -> Tensor:
    """Each image moved by up to 4 pixels, zeros where it was not, and half of them mirrored."""
    n, _, high, wide = x.shape
    moved = torch.randint(9, (2, n), device=x.device, generator=draw)
    mirrored = torch.rand(n, device=x.device, generator=draw) < 0.5
    rows = moved[0, :, None] + torch.arange(high, device=x.device)
    columns = torch.arange(wide, device=x.device).expand(n, wide)
    columns = moved[1, :, None] + torch.where(mirrored[:, None], columns.flip(1), columns)
    each = torch.arange(n, device=x.device)[:, None, None]
    padded = functional.pad(x, (4, 4, 4, 4))
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


class Training:
    """One order, one seed: a model, its optimizer and its loader."""

    def __init__(self, setting: Setting, data: LabelledData, order: str, seed: int) -> None:
        policy, how = ORDERS[order]
        torch.manual_seed(seed)
        recipe, self.setting, self.data, self.seed, self.done = setting.recipe, setting, data, seed, 0
        self.model = recipe.model().to(data.x.device)
        kind: Any = torch.optim.AdamW if setting.adam else partial(torch.optim.SGD, momentum=recipe.momentum)
        self.optimizer = kind(self.model.parameters(), lr=recipe.step_size, weight_decay=recipe.weight_decay)
        how = dict(how)
        shuffled_by = seed + 1000 if how.pop("other_shuffles", False) else seed
        batches = how.pop("batches", 1)
        model: nn.Module | None = self.model
        loader = data.loader(batches * recipe.batch)
        if how.get("rows") == "now":
            self.loader: Any = OrderedByRowsOfNow(self, loader)
        else:
            if "rows" in how:
                model = self.model if how.pop("model", False) else None
                how["rows"] = known_before(data, how["rows"])
            self.loader = ordered(loader, model, policy, seed=shuffled_by, **how)
        if batches > 1:
            self.loader = SeveralEpochs(self.loader, batches)
        steps = setting.epochs * len(self.loader)
        part = partial(warm_cosine, steps=steps) if setting.cosine else lambda _: 1.0
        self.step_size = torch.optim.lr_scheduler.LambdaLR(self.optimizer, part)
        # What images become is drawn apart from everything else, and anew in every epoch.
        self.draw = torch.Generator(data.x.device)

    def epoch(self, looks: int = 0) -> list[dict[str, float]]:
        """Train for an epoch; look at the loss so many times, evenly, the last time at its end."""
        found, steps = [], len(self.loader)
        at = {round(steps * (i + 1) / looks) for i in range(looks)}
        self.draw.manual_seed(self.seed_of_epoch())
        for step, (x, y) in enumerate(self.loader, 1):
            inputs = cropped_and_flipped(x, self.draw) if self.setting.augmented else x
            self.optimizer.zero_grad()
            self.loss(self.model, inputs, y).backward()
            self.optimizer.step()
            self.step_size.step()
            if step in at:
                with self.precision():
                    found.append(self.data.look(self.model))
        self.done += 1
        return found

    def seed_of_epoch(self) -> int:
        """A seed for what is drawn anew in every epoch."""
        return int(np.random.SeedSequence((self.seed, self.done)).generate_state(1)[0])

    def loss(self, model: nn.Module, inputs: Tensor, y: Tensor) -> Tensor:
        with self.precision():
            return functional.cross_entropy(model(inputs).flatten(0, -2), y.flatten())

    def precision(self) -> Any:
        kind = self.data.x.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.setting.bf16 and kind == "cuda")


class SeveralEpochs:
    """Some epochs of a loader as if they were one."""

    def __init__(self, loader: Any, times: int) -> None:
        self.loader, self.times = loader, times

    def __len__(self) -> int:
        return self.times * len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.times):
            yield from self.loader


class OrderedByRowsOfNow:
    """Epochs ordered by the gradients that all examples have as each begins, shown by a copy of the model."""

    def __init__(self, training: Training, loader: Any) -> None:
        self.training, self.given = training, loader
        self.copy = copy.deepcopy(training.model)
        self.shown = ordered(loader, self.copy, observe="always", seed=training.seed)

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        training = self.training
        self.copy.load_state_dict(training.model.state_dict())
        rows = rows_shown(training, self.copy, self.shown)
        yield from ordered(self.given, rows=rows, seed=training.seed_of_epoch())


def rows_shown(training: Training, model: nn.Module, loader: Any) -> npt.NDArray[np.float32]:
    """The rows of all examples that a model, which stays as it is, shows to its ordered loader."""
    for x, y in loader:
        model.zero_grad()
        training.loss(model, x, y).backward()
    rows: npt.NDArray[np.float32] = loader._observer.state.rows
    return rows


def warm_cosine(step: int, steps: int) -> float:
    """Part of the step size: up for a twentieth of the steps, then down to 0 by a cosine."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm)))


def job(options: argparse.Namespace, name: str, order: str, seed: int, results: Any) -> None:
    """Train one order with one seed, and send every epoch home."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    setting = chosen(options, name)
    training = Training(setting, data_of(options, setting), order, seed)
    for epoch in range(setting.epochs):
        looks = training.epoch(4)
        results.put({"setting": name, "order": order, "seed": seed, "epoch": epoch,
                     "loss": [each["loss"] for each in looks],
                     "test_loss": [each["test_loss"] for each in looks],
                     "accuracy": [each["test_accuracy"] for each in looks]})  # fmt: skip


def together(
    options: argparse.Namespace, jobs: list[tuple[str, str, int]], until: float
) -> list[dict[str, Any]]:
    """Run jobs at once, at most ``options.jobs`` of them; their epochs so far when the time is over."""
    context = multiprocessing.get_context("spawn")
    results, waiting, running = context.Queue(), list(jobs), []
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        put_by(options, row)

    while (waiting or running) and time.time() < until:
        running = [p for p in running if p.is_alive()]
        while waiting and len(running) < options.jobs:
            running.append(context.Process(target=job, args=(options, *waiting.pop(0), results), daemon=True))
            running[-1].start()
        with contextlib.suppress(queue.Empty):
            keep(results.get(timeout=0.5))
    for process in running:
        process.terminate()
    while True:
        try:
            keep(results.get(timeout=0.2))
        except queue.Empty:
            return rows


def put_by(options: argparse.Namespace, row: dict[str, Any]) -> None:
    """Append a row to the file, if there is one."""
    if options.rows:
        with Path(options.rows).open("a") as out:
            out.write(json.dumps(row) + "\n")


def kept_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the file of rows holds so far."""
    path = Path(options.rows) if options.rows else None
    return [json.loads(line) for line in path.open()] if path is not None and path.exists() else []


def seconds_of_epochs(options: argparse.Namespace, name: str) -> dict[str, dict[str, float]]:
    """Seconds of an epoch, alone on the machine: shuffle=True, and orders' observed and other epochs.

    Some of each (``turns``) in turns, the first of which is not counted; medians. The end of an observed
    epoch, where its order is made, and the wait for an order that was made ahead are inside. Those of a part
    of the data (``timed``) are scaled up, and with them what an end costs whatever the epoch's length.
    """
    torch.set_num_threads(1)
    setting = chosen(options, name)
    data = data_of(options, setting)
    part = replace(data, x=data.x[: options.timed], y=data.y[: options.timed])
    named = dict.fromkeys(map(timed_as, ("RR", *setting.orders)))
    runs: dict[str, Any] = {order: Training(setting, part, order, 0) for order in named}
    plain = Training(setting, part, "RR", 0)
    plain.loader = part.loader(setting.recipe.batch)
    times: dict[str, dict[str, list[float]]] = {}
    for turn in range(options.turns):
        for order, run in (("shuffle=True", plain), *runs.items()):
            kind = "observed" if getattr(run.loader, "observing", False) else "plain"
            if options.device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            run.epoch()
            if options.device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first compiles and allocates
                times.setdefault(order, {}).setdefault(kind, []).append(time.perf_counter() - start)
    factor = len(data.x) / len(part.x)
    return {o: {k: factor * float(np.median(t)) for k, t in kinds.items()} for o, kinds in times.items()}


def observed_epochs(order: str, epochs: int) -> list[bool]:
    """Which epochs of an order are observed."""
    policy, how = ORDERS[order]
    if not policy.needs.at_visits() or ("rows" in how and not how.get("model")):
        return [False] * epochs
    observes = schedule_of(how.get("observe", "auto"), policy)
    return [observes(epoch) for epoch in range(epochs)]


def summary(options: argparse.Namespace, name: str, rows: list[dict[str, Any]], times: Any) -> None:
    """Loss and accuracy of the last epochs, and epochs and seconds to RR's best loss; by order."""
    setting = chosen(options, name)
    epochs = setting.epochs
    runs: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["order"], row["seed"]), {})[row["epoch"]] = row
    whole = {key: run for key, run in runs.items() if len(run) == epochs}
    say(setting=name, whole_runs=len(whole), of=len(setting.orders) * setting.seeds)
    base = {seed: _quarters(run) for (order, seed), run in whole.items() if order == "RR"}
    for order in setting.orders:
        seeds = [seed for (o, seed) in whole if o == order and seed in base]
        if not seeds:
            continue
        own = {seed: _quarters(whole[order, seed]) for seed in seeds}
        # A running mean over an epoch's four looks: one lucky look is no result.
        smooth = {s: _running(own[s]) for s in seeds}
        goals = {s: _running(base[s]).min() for s in seeds}
        reached = [_first(smooth[s], goals[s]) for s in seeds]
        half = [_first(smooth[s], _running(base[s])[: 2 * epochs].min()) for s in seeds]
        ends = [own[s][3::4] for s in seeds]
        reached_end = [_first(end, base[s][3::4].min()) for s, end in zip(seeds, ends, strict=True)]
        costs = np.cumsum([_cost(times, order, seen) for seen in observed_epochs(order, epochs)])
        plain = np.cumsum([_cost(times, "RR", False)] * epochs)
        rr = [_first(_running(base[s]), goals[s]) for s in seeds]
        ratio = [None if q is None else float(np.interp(q / 4, np.arange(1, epochs + 1), costs)
                 / np.interp(r / 4, np.arange(1, epochs + 1), plain))
                 for q, r in zip(reached, rr, strict=True)]  # fmt: skip
        last = range(max(0, epochs - 5), epochs)
        accuracy = [[a for e in last for a in whole[order, s][e]["accuracy"]] for s in seeds]
        end = [whole[order, s][epochs - 1] for s in seeds]
        whole_run = costs[-1] / (epochs * times["shuffle=True"]["plain"])
        say(
            setting=name,
            order=order,
            seeds=len(seeds),
            loss_quarters=_mean_std([own[s][-20:].mean() for s in seeds]),
            loss_ends=_mean_std([end[-5:].mean() for end in ends]),
            accuracy=_mean_std([100 * np.mean(a) for a in accuracy]),
            loss_at_the_end=_mean_std([row["loss"][-1] for row in end]),
            test_loss_at_the_end=_mean_std([row["test_loss"][-1] for row in end]),
            accuracy_at_the_end=_mean_std([100 * row["accuracy"][-1] for row in end]),
            epochs_to_rr_best_of_half=[None if q is None else q / 4 for q in half],
            epochs_to_rr_best=[None if q is None else q / 4 for q in reached],
            epochs_to_rr_best_at_ends=reached_end,
            seconds_to_rr_best_vs_rr=[None if r is None else round(r, 3) for r in ratio],
            run_vs_shuffle=round(float(whole_run), 3),
        )


def _quarters(run: dict[int, dict[str, Any]]) -> np.ndarray:
    return np.array([value for epoch in sorted(run) for value in run[epoch]["loss"]])


def _first(values: np.ndarray, goal: float) -> Any:
    """How many values it takes to reach the goal; None if none does."""
    return next((count for count, value in enumerate(values, 1) if value <= goal), None)


def _running(values: np.ndarray) -> np.ndarray:
    """Mean of the last four looks; of fewer at the start, where nothing is judged."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    return np.array([(sums[i + 1] - sums[max(0, i - 3)]) / min(4, i + 1) for i in range(len(values))])


def _cost(times: Any, order: str, observed: bool) -> float:
    kinds = times[timed_as(order)]
    return float(kinds["observed" if observed else "plain"] if len(kinds) > 1 else next(iter(kinds.values())))


def _mean_std(values: list[float]) -> list[float]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return [round(float(np.mean(values)), 4), round(spread, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="+", choices=list(SETTINGS), metavar="SETTING")
    parser.add_argument("data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=8.0)
    for name in ("--epochs", "--seeds", "--examples", "--looked-at"):
        parser.add_argument(name, type=int, help="the setting's unless given")
    parser.add_argument("--timed", type=int, help="examples in the epochs that are timed; all unless given")
    parser.add_argument("--turns", type=int, default=8, help="epochs that are timed; all but the first count")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--orders", nargs="+", choices=list(ORDERS), help="the setting's unless given")
    parser.add_argument("--rows", help="keep times and epochs here, and go on from them")
    parser.add_argument("--own-files", action="store_true", help="files of the same format, not the official")
    options = parser.parse_args()
    if options.turns < 5:
        parser.error(f"--turns {options.turns}: five at least, so that epochs of each kind are among them")
    until = time.time() + 60 * options.minutes
    known = kept_rows(options)
    times = {row["setting"]: row["seconds_of_an_epoch"] for row in known if "order" not in row}
    for name in options.settings:
        wanted = {timed_as(order) for order in chosen(options, name).orders}
        if not wanted <= {*times.get(name, ())}:  # all anew: they are compared
            times[name] = seconds_of_epochs(options, name)
            put_by(options, {"setting": name, "seconds_of_an_epoch": times[name]})
        say(setting=name, seconds_of_an_epoch=times[name])
    rows = [row for row in known if "order" in row]
    epochs = {(row["setting"], row["order"], row["seed"], row["epoch"]) for row in rows}
    done = Counter((name, order, seed) for name, order, seed, _ in epochs)
    jobs = [(name, order, seed) for name in options.settings for seed in range(chosen(options, name).seeds)
            for order in chosen(options, name).orders]  # fmt: skip
    jobs = [key for key in jobs if done[key] < chosen(options, key[0]).epochs]
    rows += together(options, jobs, until)
    for name in options.settings:
        summary(options, name, [row for row in rows if row["setting"] == name], times[name])


if __name__ == "__main__":
    main()
