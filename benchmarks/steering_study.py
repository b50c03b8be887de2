"""How to choose the next example: candidates, window, criterion, whole batches and the tail, by training.

``python benchmarks/steering_study.py SETTING… DATA [--orders …]`` with DATA the folder of the official files.
Every order trains the same network from the same first weights, through ``ordered(loader, model, policy)``
and its usual epochs of observation. Told are the training loss inside the last five epochs (at their first
three quarters) and at their ends, less RR's of the same seed; the order error by a shuffle's; how long the
rows of the epoch's first and last tenth are, and how large their losses, by the mean of all (1: no drift);
with ``--cost``, microseconds an example (512 numbers a row).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from torch_models import LabelledData

from wellorder import Herding, RandomReshuffling, Steering
from wellorder._compiled import jit
from wellorder._datasets import files
from wellorder._datasets.networks import lenet, logistic
from wellorder._order import frozen, rng, shuffled
from wellorder.experiments._tasks.official import Recipe
from wellorder.policies._latest_rows import LatestRows, known_part, renew
from wellorder.torch import ordered


@dataclass(frozen=True)
class Variant(Steering):
    """Steering by another rule, over rows that are all known.

    ``criterion``: "direction" ⟨z, s⟩/‖z‖, "product" ⟨z, s⟩, "length" ‖s + z‖. ``tail``: the last window is
    "steered" as all before it, "shuffled", "against all" (every member is a candidate), or "alone": it is
    steered, and nothing before it. ``together`` units are chosen at a time, by the direction of their sum.
    ``power``: rows less their mean are divided by so high a power of their lengths before all that.
    """

    criterion: str = "direction"
    tail: str = "steered"
    together: int = 1
    power: float = 0.0

    def advance(self, state: LatestRows) -> LatestRows:
        return self.open(state, state.epoch + 1)

    def open(self, state: LatestRows, epoch: int) -> LatestRows:
        order = shuffled(len(state.known), state.seed, epoch)
        part, mean = known_part(state, order)
        if len(part) == len(order):
            rows = state.rows[part] - mean.astype(np.float32)
            if self.power:
                norms = np.linalg.norm(rows, axis=1, keepdims=True) + np.float32(1e-30)
                rows /= norms**self.power
                rows -= rows.mean(axis=0)
            if self.lengths:
                norms = np.linalg.norm(rows, axis=1)
                beside = self.lengths * (norms - norms.mean())
                rows = np.concatenate([rows, beside[:, None]], axis=1).astype(np.float32)
            draws = rng(state.seed, epoch, "steering").integers(2**63, size=2)
            criterion = ("direction", "product", "length").index(self.criterion)
            tail = ("steered", "shuffled", "against all", "alone").index(self.tail)
            chosen = _chosen(rows, self.window, self.candidates, criterion, tail, self.together, draws[0])
            order = part[chosen]
        return replace(state, epoch=epoch, order=frozen(order), seen=0, observed=0)


@dataclass(frozen=True)
class Averaged(Steering):
    """Steering over running means of the rows of all observed epochs, in which the newest weigh a half."""

    def observe(self, state: LatestRows, units: npt.ArrayLike, signals: Any) -> LatestRows:
        return renew(state, units, signals, newest=0.5)


@jit
def _chosen(rows, window, candidates, criterion, tail, together, seed):  # type: ignore[no-untyped-def]
    """Places in the order in which they are chosen."""
    np.random.seed(seed % 2**32)  # noqa: NPY002 - compiled
    n, dim = rows.shape
    held = np.arange(min(window, n))
    filled, coming, out = len(held), len(held), np.empty(n, np.int64)
    norms = np.sqrt((rows * rows).sum(axis=1)) + np.float32(1e-30)
    total = np.zeros(dim, np.float32)
    best, tried = np.empty(together, np.int64), np.empty(together, np.int64)
    done = 0
    while done < n:
        count, draining = min(together, filled), coming >= n
        looks = filled if draining and tail == 2 else candidates
        if (draining and tail == 1) or (not draining and tail == 3):
            looks = 1
        least = np.inf
        for turn in range(looks):
            for i in range(count):
                while True:  # without replacement inside a batch
                    at = np.random.randint(filled)  # noqa: NPY002 - compiled
                    if looks == filled and count == 1:
                        at = turn
                    if not (tried[:i] == at).any():
                        break
                tried[i] = at
            if count == 1:
                z, norm = rows[held[tried[0]]], norms[held[tried[0]]]
            else:
                z = np.zeros(dim, np.float32)
                for i in range(count):
                    z += rows[held[tried[i]]]
                norm = np.sqrt((z * z).sum()) + np.float32(1e-30)
            value = np.dot(z, total)
            if criterion == 0:
                value /= norm
            elif criterion == 2:
                value = 2 * value + norm * norm
            if value < least:
                least = value
                best[:] = tried
        for at in -np.sort(-best[:count]):  # from behind, so that places stay valid
            total += rows[held[at]]
            out[done] = held[at]
            done += 1
            if coming < n:
                held[at] = coming
                coming += 1
            else:
                filled -= 1
                held[at] = held[filled]
    return out


ORDERS: dict[str, Any] = {
    "RR": RandomReshuffling(),
    "Herding": Herding(),
    **{f"Herding, passes {p}": Herding(passes=p) for p in (2, 4, 16)},
    **{f"candidates {m}": Steering(candidates=m) for m in (2, 4, 8, 16, 32)},
    **{f"window {w}": Steering(window=w) for w in (256, 4096)},
    **{f"lengths {c}": Steering(lengths=c) for c in (0, 1, 2)},
    "by product": Variant(criterion="product"),
    "by length (the trap)": Variant(criterion="length", lengths=0),
    **{f"divided by lengths to the {p}": Variant(power=p) for p in (0.5, 1.0)},
    "divided by lengths to the 0.5, lengths 0": Variant(power=0.5, lengths=0),
    "tail shuffled": Variant(tail="shuffled"),
    "tail against all": Variant(tail="against all"),
    "tail alone": Variant(tail="alone"),
    "whole batches": Variant(together=16),
    "rows averaged": Averaged(),
}
COSTS = (8192, 65536)
"""Rows of which an order is made when that is timed: 16 and 128 MiB of them."""
LOOKED_AT = 2048
"""Training examples that the loss is taken over."""


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


LENET = Recipe(lenet, 1e-3, momentum=0.9, weight_decay=0.01)
SETTINGS: dict[str, tuple[str, int, int, Recipe]] = {
    # data, examples, epochs, how it is trained
    "logistic-b16": ("fashion_mnist", 10_000, 20, Recipe(logistic, 3.2e-2, momentum=0.0)),
    "mlp-b16": ("fashion_mnist", 10_000, 15, Recipe(mlp, 5e-2, momentum=0.0)),
    "lenet-b64": ("cifar10", 5_000, 20, replace(LENET, step_size=1e-2, batch=64)),
    "lenet-b16": ("cifar10", 5_000, 15, LENET),
}


def data_of(folder: str, name: str, examples: int) -> LabelledData:
    data = getattr(files, name)(folder)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    images = (torch.tensor(data.train_images[:examples]).float() / 255 - mean) / std
    labels = torch.tensor(data.train_labels[:examples])
    return LabelledData(images, labels, images[:1], labels[:1])


def run(folder: str, job: tuple[str, str, int]) -> dict[str, Any]:
    """Train one order with one seed."""
    setting, order, seed = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    name, examples, epochs, recipe = SETTINGS[setting]
    data, model = data_of(folder, name, examples), recipe.model()
    looked_at = replace(data, x=data.x[:LOOKED_AT], y=data.y[:LOOKED_AT])
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.step_size, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    loader = ordered(data.loader(recipe.batch), model, ORDERS[order], seed=seed)
    losses: list[list[float]] = []
    start, steps = time.process_time(), len(loader)
    for epoch in range(epochs):
        found = []
        for step, (x, y) in enumerate(loader, 1):
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if epoch >= epochs - 5 and 4 * step // steps > 4 * (step - 1) // steps:
                found.append(looked_at.look(model)["loss"])
        losses.append(found)
    told: dict[str, Any] = {"setting": setting, "order": order, "seed": seed, "losses": losses[-5:]}
    told["cpu_seconds"] = round(time.process_time() - start, 1)
    state = loader._observer.state
    if getattr(state, "rows", np.zeros(0)).size:
        norms = np.linalg.norm(state.rows - state.rows.mean(0), axis=1)
        with torch.no_grad():
            own = functional.cross_entropy(model(data.x), data.y, reduction="none").numpy()
        for what, values in (("norms", norms[state.order]), ("losses", own[state.order])):
            tenth = len(values) // 10
            for where, part in (("first", values[:tenth]), ("last", values[-tenth:])):
                told[f"{what}_{where}"] = float(part.mean() / values.mean())
        told["error"] = loader.metrics()["order/error_vs_shuffle"]
    return told


def table(rows: list[dict[str, Any]]) -> None:
    """One line an order: means over the seeds, and the standard error of differences from RR."""
    by: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        by[row["setting"]][row["order"]][row["seed"]] = row
    for setting, orders in by.items():
        titles = f"{'inside':>9}{'less RR':>17}{'ends':>9}{'less RR':>17}{'error':>8}"
        titles += f"{'norms':>8}{'at end':>8}{'losses':>8}{'at end':>8}"
        print(f"\n{setting:22}{titles}")
        for order, runs in orders.items():
            line, plain = f"{order:22}", orders.get("RR", {})
            for at in (slice(3), slice(3, 4)):
                own, base = (
                    {seed: float(np.mean(np.array(run["losses"])[:, at])) for seed, run in those.items()}
                    for those in (runs, plain)
                )
                less = [loss - base[seed] for seed, loss in own.items() if seed in base]
                spread = np.std(less, ddof=1) / len(less) ** 0.5 if len(less) > 1 else 0.0
                line += f"{np.mean(list(own.values())):9.4f}"
                line += f"{np.mean(less):+9.4f} ±{spread:.4f}" if less else f"{'–':>17}"
            for name in ("error", "norms_first", "norms_last", "losses_first", "losses_last"):
                found = [r[name] for r in runs.values() if name in r]
                line += f"{np.mean(found):8.3f}" if found else f"{'–':>8}"
            print(line)


def cost(orders: list[str]) -> None:
    """Microseconds an example of making an order, of rows that fit into a cache and of more."""
    print(f"\n{'µs an example':22}" + "".join(f"{count:>9,} rows" for count in COSTS))
    for name in orders:
        policy = ORDERS[name]
        if isinstance(policy, (RandomReshuffling, Variant)):
            continue  # variants are not written for speed
        line = f"{name:22}"
        for count in COSTS:
            rows = np.random.default_rng(0).normal(size=(count, 512)).astype(np.float32)
            state = policy.init(count, seed=0, rows=rows)
            times = []
            for _ in range(5):
                start = time.process_time()
                state = policy.advance(state)
                times.append(time.process_time() - start)
            line += f"{1e6 * min(times) / count:14.2f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    parser.add_argument("data")
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=list(ORDERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cost", action="store_true", help="time the making of orders")
    parser.add_argument("--rows", type=Path, help="add every run to this file; those in it are not run again")
    options = parser.parse_args()
    jobs = [(s, o, seed) for s in options.settings for seed in range(options.seeds) for o in options.orders]
    rows: list[dict[str, Any]] = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    done = {(row["setting"], row["order"], row["seed"]) for row in rows}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        left = [job for job in jobs if job not in done]
        for row in pool.imap_unordered(partial(run, options.data), left):
            rows.append(row)
            if options.rows:
                with options.rows.open("a") as file:
                    print(json.dumps(row), file=file)
    place = {job: at for at, job in enumerate(jobs)}
    rows = [row for row in rows if (row["setting"], row["order"], row["seed"]) in place]
    table(sorted(rows, key=lambda row: place[row["setting"], row["order"], row["seed"]]))
    if options.cost:
        cost(options.orders)


if __name__ == "__main__":
    main()
