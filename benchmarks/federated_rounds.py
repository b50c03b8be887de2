"""Rounds to a given accuracy: ordered clients against cohorts drawn anew each round (Flower's default).

python benchmarks/federated_rounds.py run SETTING… --data DIR [--device cuda] [--part 1/3] >> rounds.jsonl
python benchmarks/federated_rounds.py measure SETTING… --data DIR    only how much its clients differ
python benchmarks/federated_rounds.py table FILE…      Markdown: rounds to each target, and saved, by seed

``run`` takes ``--seed-from 2 --seeds 1`` (only the third seed), ``--availability dropout``,
``--server-step 1.5`` (at each epoch's end), ``--step-sizes .02 .05`` (``table`` shows each method at its
best; with ``--each-step`` at all of them) and ``--to-end`` (go on when all targets are reached). ``table``
merges files, the last word counts; ``--stretch 100`` adds the mean accuracy in every 100 rounds.

All methods and seeds of a setting train side by side from the same first weights, and are measured every
``--every`` rounds, inside epochs too; a target is reached when the mean of three looks in a row is at or
above it. Every setting also prints how much its clients differ, from two epochs' updates. DIR holds the
official files (mnist/, fashion_mnist/, cifar-10-batches-bin/, cifar-100-binary/, clients/). Without names of
settings all are run but the paper's Figure 2 (fig2-…: 1,000 clients, 20,000 rounds). JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from wellorder import BalancedCohorts, Herding, PairGraB, RandomCohorts, RandomReshuffling, ShuffleOnce
from wellorder.federated import (
    Always,
    ClientData,
    Config,
    Dataset,
    Diurnal,
    DropOut,
    Partition,
    by_client,
    cifar10,
    cifar100,
    dirichlet,
    fashion_mnist,
    federate,
    heterogeneity,
    iid,
    label_shards,
    mnist,
    mnist_writers,
    network,
    shakespeare,
)
from wellorder.federated._simulate import Runs, precision_of

COHORT, SKETCH = 10, 512
METHODS: dict[str, tuple[Any, int]] = {
    "default": (RandomCohorts(COHORT), 0),
    "FL-RR": (RandomReshuffling(), 0),
    "FL-GraB": (PairGraB(), 0),
    "Herding": (Herding(), SKETCH),
    "BalancedCohorts": (BalancedCohorts(COHORT), SKETCH),
    "FL-OP": (ShuffleOnce(), 0),
}
"""A policy, and the length of its sketches (0: whole updates)."""
USUAL = [name for name in METHODS if name != "FL-OP"]
SPLITS: dict[str, Callable[[Any, int], Partition]] = {
    "one": label_shards,
    "two": lambda labels, clients: label_shards(labels, clients, each=2),
    "dir.1": lambda labels, clients: dirichlet(labels, clients, 0.1),
    "dir.5": lambda labels, clients: dirichlet(labels, clients, 0.5),
    "iid": iid,
}
AVAILABILITY = {
    "always": Always(),
    "diurnal": Diurnal(groups=4, period=100, awake=0.5),
    "dropout": DropOut(0.3),
}
SHORTER = 4
"""So many times more epochs are allowed where clients are missed."""
LOOKS = 3
"""A target counts as reached when the mean of so many looks reaches it: one lucky look is no result."""


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def reader(seed: int, characters: int) -> nn.Module:
    """The next character from the last 32, by an embedding and two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(characters, 8),
        nn.Flatten(),
        nn.Linear(32 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, characters),
    )


@dataclass(frozen=True)
class Setting:
    """A task, how it is trained, how long, and the accuracies that are looked for."""

    data: str
    split: str
    clients: int
    step_size: float
    rounds: int
    targets: tuple[float, ...]
    every: int = 25

    @property
    def images(self) -> bool:
        return self.data.startswith("cifar")


FASHION, TEN, HUNDRED = (0.75, 0.8, 0.83), (0.5, 0.6, 0.7), (0.1, 0.2, 0.3)
SETTINGS = {
    **{f"fashion-{s}": Setting("fashion_mnist", s, 100, 0.05, 1000, FASHION, 5) for s in SPLITS},
    "mnist-writers": Setting("mnist", "writers", 539, 0.05, 1500, (0.94, 0.96, 0.97), 18),
    "shakespeare-roles": Setting("shakespeare", "roles", 0, 0.5, 2000, (0.3, 0.35, 0.4), 25),
    "cifar10-one": Setting("cifar10", "one", 500, 0.1, 4500, TEN),
    "cifar10-two": Setting("cifar10", "two", 500, 0.1, 3500, TEN),
    "cifar10-dir.1": Setting("cifar10", "dir.1", 500, 0.1, 3500, TEN),
    "cifar10-dir.5": Setting("cifar10", "dir.5", 500, 0.1, 2500, TEN),
    "cifar100-one": Setting("cifar100", "one", 500, 0.1, 5000, HUNDRED),
    "cifar100-two": Setting("cifar100", "two", 500, 0.1, 4000, HUNDRED),
    "cifar100-dir.1": Setting("cifar100", "dir.1", 500, 0.1, 4000, HUNDRED),
    "cifar100-dir.5": Setting("cifar100", "dir.5", 500, 0.1, 3000, HUNDRED),
    "fig2-cifar10": Setting("cifar10", "one", 1000, 0.1, 20000, (0.5, 0.6, 0.7, 0.8), 100),
    "fig2-cifar100": Setting("cifar100", "one", 1000, 0.1, 20000, (0.1, 0.2, 0.3, 0.4), 100),
}
"""CIFAR: 50 images a client, so 500 clients hold half of the data (``--clients 1000`` takes all)."""


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def task(setting: Setting, options: argparse.Namespace) -> tuple[ClientData, Callable[[int], nn.Module]]:
    """The clients' data, and a network for each seed."""
    folder, clients = options.data, options.clients or setting.clients
    if setting.data == "shakespeare":
        text = shakespeare(folder, width=32, stride=16)
        data = federate(text)
        kept = np.random.default_rng(0).permutation(len(text.test))[:10_000]
        data = replace(data, test_inputs=text.test[kept], test_labels=text.test_labels[kept])
        return data, lambda seed: reader(seed, text.classes)
    if setting.data == "mnist":
        found = mnist(folder)
        return federate(found, by_client(mnist_writers(folder))), mlp
    if setting.data == "fashion_mnist":
        found = fashion_mnist(folder)
        return federate(found, SPLITS[setting.split](found.train_labels, clients)), mlp
    load = {"cifar10": cifar10, "cifar100": cifar100}[setting.data]
    found = first(load(folder, verify=not options.own_files), 50 * clients)
    data = federate(found, SPLITS[setting.split](found.train_labels, clients))
    return data, lambda seed: network("cnn", channels=3, size=32, classes=found.classes, seed=seed)


def first(found: Dataset, count: int) -> Dataset:
    """The first ``count`` training images."""
    return replace(found, train_images=found.train_images[:count], train_labels=found.train_labels[:count])


def config_of(setting: Setting, clients: int, options: argparse.Namespace) -> Config:
    """The settings that all runs share."""
    each = -(-clients // COHORT)
    rounds = options.rounds or setting.rounds
    epochs = max(1, rounds // each)
    if options.availability != "always":  # epochs that miss clients are shorter: rounds end the run
        epochs *= SHORTER
    return Config(
        setting.step_size, epochs, cohort=COHORT, clip=10.0, augment=setting.images,
        train_sample=500, looks=max(1, round(each / (options.every or setting.every))),
        server_step=options.server_step, availability=AVAILABILITY[options.availability],
        device=options.device, precision=options.precision,
    )  # fmt: skip


def differ(data: ClientData, make: Callable[[int], nn.Module], config: Config) -> float:
    """How much clients differ, from the updates of the first two epochs."""
    short = replace(
        config, epochs=2, evaluate=0, looks=1, sketch=SKETCH, server_step=1.0, availability=Always()
    )
    runs = Runs(make(0), data, [(Herding(), short)])
    seen: list[Any] = []

    def keep(_: int, __: Any) -> None:
        seen.append(runs.loop.runs[0].queue.state.rows.copy())

    with precision_of(short.precision):
        runs.train(keep)
    return heterogeneity(seen[0], seen[1], cohort=COHORT)


class Enough(Exception):  # noqa: N818
    """All targets are reached, or the time is over."""


def train(name: str, options: argparse.Namespace, until: float) -> None:
    """All methods, step sizes and seeds of a setting, side by side."""
    setting, began = SETTINGS[name], time.time()
    data, make = task(setting, options)
    shared = config_of(setting, data.partition.n, options)
    clients, most = data.partition.n, options.rounds or setting.rounds
    every = options.every or setting.every
    if not options.no_measure:
        say(setting=name, clients=clients, heterogeneity=round(differ(data, make, shared), 4),
            rounds=most, precision=shared.precision)  # fmt: skip
    if options.command == "measure":
        return
    gammas = options.step_sizes or [setting.step_size]
    label = {
        "setting": name, "availability": options.availability, "server_step": options.server_step,
        "targets": setting.targets, "clients": clients, "precision": shared.precision,
    }  # fmt: skip
    for seeds in options.together:
        keys = [(m, g, s) for m in options.methods for g in gammas for s in seeds]
        jobs = [
            (METHODS[m][0], replace(shared, step_size=g, seed=s, sketch=METHODS[m][1])) for m, g, s in keys
        ]
        runs = Runs(make(seeds[0]), data, jobs)
        for r, (_, _, seed) in enumerate(keys):  # the same first weights for all methods of a seed
            flat = runs.loop.layout.flat(dict(make(seed).named_parameters()))
            runs.loop.servers[r] = flat.to(runs.loop.servers)

        def stop(_: int, __: Any, runs: Runs = runs) -> None:
            curves = [list(curve(rows, most, every).values()) for rows in runs.rows]
            through = all(reached(c, setting.targets[-1]) is not None for c in curves)
            least = min(rows[-1]["round"] for rows in runs.rows)
            if time.time() > until or least >= most or (through and not options.to_end):
                raise Enough

        try:
            with precision_of(shared.precision):
                runs.train(stop)
        except Enough:
            pass
        for (method, gamma, seed), rows in zip(keys, runs.rows, strict=True):
            found = curve(rows, most, every)
            say(
                **label, method=method, step_size=gamma, seed=seed, round=list(found),
                accuracy=[round(value, 4) for value in found.values()],
                seconds=round(time.time() - began, 1),
            )  # fmt: skip


def curve(rows: Sequence[dict[str, float]], most: float, every: int) -> dict[int, float]:
    """Test accuracy by round, up to ``most`` rounds, about ``every`` so many.

    Of runs side by side those whose epoch is over are looked at again until the others' is: the last counts.
    Where epochs are short, looks are too near each other: three in a row must be as long for all methods.
    """
    found: dict[int, float] = {}
    for row in rows:
        now, last = int(row["round"]), max(found, default=-every)
        if now <= most and (now == last or now - last >= 0.8 * every):
            found[now] = row["test_accuracy"]
    return found


def reached(accuracy: Sequence[float], target: float) -> int | None:
    """The first look from which on the mean of three in a row is at or above the target."""
    smooth = np.convolve(accuracy, np.ones(LOOKS) / LOOKS, "valid") if len(accuracy) >= LOOKS else np.zeros(0)
    found = np.flatnonzero(smooth >= target)
    return int(found[0]) + LOOKS - 1 if len(found) else None


def rounds_to(row: dict[str, Any], target: float) -> float:
    """Rounds to the target; infinite if it was not reached."""
    at = reached(row["accuracy"], target)
    return float(row["round"][at]) if at is not None else float("inf")


Kind = tuple[str, str, float, int, float]
"""What is compared: setting, availability, server step, number of clients, step size (0: each its best)."""


def tables(rows: Sequence[dict[str, Any]], each_step: bool = False, stretch: int = 0) -> Iterator[str]:
    """Markdown: for each setting and target each method's rounds, and what it saves against the default."""
    differs = {row["setting"]: row["heterogeneity"] for row in rows if "heterogeneity" in row}
    kinds: dict[Kind, list[dict[str, Any]]] = {}
    for row in (row for row in rows if "method" in row):
        step = float(row["step_size"]) if each_step else 0.0
        kind = row["setting"], row["availability"], float(row["server_step"]), row.get("clients", 0), step
        kinds.setdefault(kind, []).append(row)
    runs = [row for own in kinds.values() for row in own]
    methods = [m for m in METHODS if any(row["method"] == m for row in runs)]
    others = [m for m in methods if m != "default"] if "default" in methods else []
    heads = [
        "setting",
        "differ",
        "target",
        *(f"{m}, rounds" for m in methods),
        *(f"{m} saves" for m in others),
    ]
    yield line(heads)
    yield line(["---"] * len(heads))
    for kind, own in kinds.items():
        differ = f"{differs[kind[0]]:.2f}" if kind[0] in differs else "?"
        for target in own[0]["targets"]:
            found = {method: best(own, method, target) for method in methods}
            cells = [told(found[m]) for m in methods] + [saved(found["default"], found[m]) for m in others]
            yield line([title_of(kind), differ, f"{100 * target:g} %", *cells])
    if not stretch:
        return
    yield ""
    yield line(["setting", "rounds", *methods])
    yield line(["---"] * (2 + len(methods)))
    for kind, own in kinds.items():
        longest = max(row["round"][-1] for row in own)
        for first in range(0, int(longest / 0.97) // stretch * stretch, stretch):
            cells = [accuracy_in(own, m, first, first + stretch) for m in methods]
            yield line([title_of(kind), f"{first + 1} to {first + stretch}", *cells])


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def title_of(kind: Kind) -> str:
    """A setting and what is not usual about it."""
    name, availability, server_step, _, step = kind
    words = [name, *([availability] if availability != "always" else [])]
    words += [f"η={server_step:g}"] * (server_step != 1) + [f"γ={step:g}"] * (step > 0)
    return ", ".join(words)


def best(rows: Sequence[dict[str, Any]], method: str, target: float) -> dict[int, float]:
    """Rounds to the target by seed, at the method's own best step size."""
    by_step: dict[float, dict[int, float]] = {}
    for row in rows:
        if row["method"] == method:
            by_step.setdefault(row["step_size"], {})[row["seed"]] = rounds_to(row, target)

    def slow(seeds: dict[int, float]) -> tuple[int, float]:
        good = [rounds for rounds in seeds.values() if np.isfinite(rounds)]
        return len(seeds) - len(good), float(np.mean(good)) if good else 0.0

    return min(by_step.values(), key=slow, default={})


def accuracy_in(rows: Sequence[dict[str, Any]], method: str, first: int, last: int) -> str:
    """The mean test accuracy after rounds first+1..last, at the best step size; over seeds."""
    by_step: dict[float, dict[int, float]] = {}
    for row in rows:
        rounds, accuracy = np.array(row["round"]), np.array(row["accuracy"])
        seen = accuracy[(rounds > first) & (rounds <= last)]
        if row["method"] == method and len(seen) and rounds[-1] >= 0.97 * last:
            by_step.setdefault(row["step_size"], {})[row["seed"]] = 100 * float(seen.mean())
    each = (np.array(list(seeds.values())) for seeds in by_step.values())
    found = max(each, key=np.mean, default=np.zeros(0))
    if not len(found):
        return "–"
    return f"{found.mean():.1f}" + (f" ± {found.std(ddof=1):.1f}" if len(found) > 1 else "")


def told(seeds: dict[int, float]) -> str:
    """Mean and spread over seeds; how many reached it, where not all did."""
    values = np.array(list(seeds.values()))
    good = values[np.isfinite(values)]
    if not len(good):
        return "not reached"
    spread = f" ± {good.std(ddof=1):.0f}" if len(good) > 1 else ""
    return f"{good.mean():.0f}{spread}" + (
        f" ({len(good)} of {len(values)})" if len(good) < len(values) else ""
    )


def saved(default: dict[int, float], own: dict[int, float]) -> str:
    """Rounds saved in percent: mean, and in brackets seed by seed."""
    pairs = [(default[s], own[s]) for s in sorted(default.keys() & own.keys())]
    good = np.array([100 * (1 - b / a) for a, b in pairs if np.isfinite(a) and np.isfinite(b) and a])
    if not len(good) or len(good) < len(pairs):
        return "–"
    return f"{good.mean():.0f} %" + (f" ({', '.join(f'{g:.0f}' for g in good)})" if len(good) > 1 else "")


def parts(names: Sequence[str], part: str) -> list[str]:
    """The i-th of k parts of the settings, ``"i/k"``."""
    number, of = (int(word) for word in part.split("/"))
    return list(names)[number - 1 :: of]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("table")
    show.add_argument("files", nargs="+", type=Path)
    show.add_argument("--each-step", action="store_true", help="a row for each step size, not the best alone")
    show.add_argument("--stretch", type=int, default=0, help="also the mean accuracy in each so many rounds")
    run, measure = commands.add_parser("run"), commands.add_parser("measure")
    for command in (run, measure):
        settle(command)
    options = parser.parse_args()
    if options.command == "table":
        rows = [json.loads(line) for file in options.files for line in file.read_text().splitlines() if line]
        print("\n".join(tables(rows, options.each_step, options.stretch)))
        return
    unknown = [name for name in options.settings if name not in SETTINGS]
    if unknown:
        parser.error(f"no setting {unknown[0]}; choose from {', '.join(SETTINGS)}")
    torch.set_num_threads(1)
    options.precision = options.precision or ("bf16" if options.device.startswith("cuda") else "float32")
    size, end = options.at_once or options.seeds, options.seed_from + options.seeds
    options.together = [range(s, min(s + size, end)) for s in range(options.seed_from, end, size)]
    until = time.time() + 60 * options.minutes
    usual = [name for name in SETTINGS if not name.startswith("fig2")]
    for name in parts(options.settings or usual, options.part):
        if time.time() < until:
            train(name, options, until)


def settle(run: argparse.ArgumentParser) -> None:
    """The options of a run."""
    run.add_argument("settings", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    run.add_argument("--data", required=True)
    run.add_argument("--device", default="cpu")
    run.add_argument("--precision", help="float32; on CUDA bf16")
    run.add_argument("--part", default="1/1", help="2/3: the second of three parts of the settings")
    run.add_argument("--minutes", type=float, default=60.0, help="stop then, and print what there is")
    run.add_argument("--seeds", type=int, default=3, help="how many")
    run.add_argument("--seed-from", type=int, default=0, help="the first of them")
    run.add_argument("--at-once", type=int, default=0, help="seeds that share the device (0: all)")
    run.add_argument("--methods", nargs="+", default=USUAL, choices=list(METHODS))
    run.add_argument("--rounds", type=int, help="at most so many instead of the setting's")
    run.add_argument("--every", type=int, help="rounds between two looks")
    run.add_argument("--clients", type=int, help="instead of the setting's")
    run.add_argument(
        "--step-sizes", "--step-size", nargs="+", type=float, help="each method's best of these is shown"
    )
    run.add_argument("--server-step", type=float, default=1.0)
    run.add_argument("--availability", default="always", choices=list(AVAILABILITY))
    run.add_argument("--to-end", action="store_true", help="go on when all targets are reached")
    run.add_argument("--no-measure", action="store_true", help="not how much clients differ")
    run.add_argument("--own-files", action="store_true", help="files of the same format, not the official")


if __name__ == "__main__":
    main()
