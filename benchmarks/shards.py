"""Data stored in shards: a full shuffle, shuffle buffers, CorgiPile, and ordered shards with steering.

``python benchmarks/shards.py run DATA [--device cuda] [--part i/k] --out FILE`` trains a part of the settings
and appends one JSON line a run; DATA is the folder of the official files. ``… table FILE…`` prints Markdown.
``… small DATA`` is a form for a CPU (a minute; Fashion-MNIST), and so is ``… text DATA [WIKITEXT]`` (some
minutes; Shakespeare by role and, if its files are given, WikiText-2 by article; a small recurrent network).
``… windows DATA`` compares the order error that a survey
foretells with that of the examples, without training. The data lie on the device, and orders
are made by the library before training: this compares orders, not reading. Scores are taken at the quarters
of the epochs that are shown.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_models import LM, ResNet

from wellorder import balanced_stream, features, rng
from wellorder._datasets import files
from wellorder._datasets.networks import cnn, lenet, logistic
from wellorder._measure import error_vs_shuffle
from wellorder.federated import dirichlet, iid, label_shards
from wellorder.federated import shakespeare as roles
from wellorder.shards import Survey, expected_error, ordered_shards, suggested_window, survey

EPOCHS = (1, 2, 3, 5, 10)
METHODS = ("full shuffle", "shuffle buffer", "CorgiPile", "ours", "ours, no survey")
STORED = ("by class", "half by class", "Dirichlet .3", "at random")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD .03": partial(torch.optim.SGD, lr=0.03),
    "momentum .003": partial(torch.optim.SGD, lr=0.003, momentum=0.9),
    "AdamW 1e-3": partial(torch.optim.AdamW, lr=1e-3),
}
MODELS: dict[str, Callable[[Data], nn.Module]] = {
    "logistic": lambda data: logistic(*data.shape, data.classes),
    "LeNet": lambda data: lenet(*data.shape, data.classes),
    "CNN": lambda data: cnn(*data.shape, data.classes),
    "ResNet": lambda data: ResNet((1, 1, 1), classes=data.classes, first=32),
    "LM": lambda data: LM(data.classes, 64, 4, 2, data.x.shape[1] - 1),
    "GRU": lambda data: Recurrent(data.classes),
}
TEXT = ("LM", "GRU")
TEXTS = ("shakespeare", "wikitext2")


class Recurrent(nn.Module):
    """A small network that predicts the next character, or word, from all before it."""

    def __init__(self, kinds: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(kinds, width), nn.Linear(width, kinds)
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0])


@dataclass(frozen=True)
class Run:
    """One model, trained once: what, on which storage, in which orders."""

    data: str
    model: str
    optimizer: str
    stored: str
    method: str
    seed: int


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Examples on the device, their rows and owners on the host; images with labels, or texts without."""

    x: Tensor
    y: Tensor | None
    test_x: Tensor
    test_y: Tensor | None
    rows: np.ndarray
    labels: np.ndarray
    classes: int
    inputs: np.ndarray | None = None
    """What a survey sees of the examples, on the host; None where rows are given."""

    @property
    def shape(self) -> tuple[int, int]:
        """Channels, and pixels on a side."""
        return self.x.shape[1], self.x.shape[2]

    def loss(self, model: nn.Module, units: Tensor) -> Tensor:
        x = self.x[units]
        if self.y is None:
            return functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        return functional.cross_entropy(model(x), self.y[units])

    @torch.no_grad()
    def score(self, model: nn.Module) -> Tensor:
        """Test accuracy in percent; of a text the test loss. It stays on the device, so nobody waits."""
        parts = self.test_x.split(2000)
        if self.test_y is None:
            losses = [
                functional.cross_entropy(model(p[:, :-1]).flatten(0, 1), p[:, 1:].flatten()) for p in parts
            ]
            return torch.stack([v * len(p) for v, p in zip(losses, parts, strict=True)]).sum() / len(
                self.test_x
            )
        guesses = torch.cat([model(part).argmax(1) for part in parts])
        return 100 * (guesses == self.test_y).float().mean()


def images(name: str, options: argparse.Namespace) -> Data:
    """Scaled images; rows are label ⊗ projections of pooled pixels."""
    found = getattr(files, name)(options.data, verify=not options.own_files)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (found.mean, found.std))
    kept = slice(None, options.examples)
    x, test = (
        (torch.tensor(i).float() / 255 - mean) / std for i in (found.train_images[kept], found.test_images)
    )
    labels = found.train_labels[kept]
    rows = features(functional.adaptive_avg_pool2d(x, 8), labels)
    y, test_y, inputs = torch.tensor(labels), torch.tensor(found.test_labels), x.numpy()
    x, y, test, test_y = (part.to(options.device) for part in (x, y, test, test_y))
    return Data(x, y, test, test_y, rows, labels, found.classes, inputs)


def shakespeare(options: argparse.Namespace, length: int = 64) -> Data:
    """Stretches of characters by role; rows are projected counts of (character, next character).

    Such a pair is an input and its label, so that the counts carry labels. "by class" is by role here.
    """
    text = roles(options.data, width=length + 1, stride=length + 1)
    some = partial(rng(0, 0, "benchmark").choice, replace=False)
    kept = np.sort(some(len(text.train), min(options.examples, len(text.train))))
    test = np.sort(some(len(text.test), min(2000, len(text.test))))
    letters = np.unique(list(text.alphabet.lower()), return_inverse=True)[1]
    few, kinds = letters[text.train[kept]], letters.max() + 1
    counts = np.zeros((len(kept), kinds**2), np.float32)
    np.add.at(counts, (np.arange(len(kept))[:, None], few[:, :-1] * kinds + few[:, 1:]), 1)
    rows = features(counts, y=False, progress=False)
    x, test_x = (torch.tensor(part).to(options.device) for part in (text.train[kept], text.test[test]))
    return Data(x, None, test_x, None, rows, text.owners[kept], text.classes)


def wikitext2(options: argparse.Namespace, length: int = 32, words: int = 2000) -> Data:
    """Stretches of words by article, of as many long articles as there are shards; "by class" is by article.

    The commonest words; all others are one. Rows are projected counts of words: all but the first of a
    stretch are labels.
    """
    train, test = (wikitext_articles(part, options.folders) for part in ("train", "test"))
    names, counts = np.unique(np.concatenate(train), return_counts=True)
    known = np.sort(names[np.argsort(-counts, kind="stable")[: words - 1]])

    def stretches(article: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(known, article), len(known) - 1)
        numbers = np.where(known[place] == article, place, words - 1)
        return numbers[: len(numbers) // (length + 1) * (length + 1)].reshape(-1, length + 1)

    each = -(-options.examples // options.shards)
    long = [article for article in map(stretches, train) if len(article) >= each]
    draw = rng(0, 0, "benchmark")
    kept = np.sort(draw.choice(len(long), options.shards, replace=False))
    x = np.concatenate([long[at][:each] for at in kept])
    counted = np.zeros((len(x), words), np.float32)
    np.add.at(counted, (np.arange(len(x))[:, None], x), 1)
    rows = features(counted, y=False, progress=False)
    rest = np.concatenate(list(map(stretches, test)))
    rest = rest[np.sort(draw.choice(len(rest), 2000, replace=False))]
    x_test = torch.tensor(rest).to(options.device)
    owners = np.repeat(np.arange(options.shards), each)
    return Data(torch.tensor(x).to(options.device), None, x_test, None, rows, owners, words)


def wikitext_articles(part: str, folders: tuple[str, ...]) -> list[np.ndarray]:
    """The words of each article; one begins with a line such as " = Title = "."""
    found = [path for folder in folders for path in sorted(Path(folder).glob(f"wiki.{part}*.tokens"))]
    if not found:
        sys.exit(f"no wiki.{part}.tokens in {', '.join(folders)}: pass the folder of WikiText-2's files")
    articles = re.split(r"^ = [^=\n]+ = \n", found[0].read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [np.array(article.split()) for article in articles if article.strip()]


@dataclass(frozen=True, eq=False)
class Stored:
    """Shards with the examples of each as they lie there, and what the library's survey says of them."""

    data: Data
    shards: list[np.ndarray]

    @cached_property
    def survey(self) -> Survey:
        if self.data.inputs is None:
            return survey(range(len(self.shards)), self.shards.__getitem__, row=self.data.rows.__getitem__)
        return survey(range(len(self.shards)), lambda shard: self.pairs(self.shards[shard]))

    @cached_property
    def rows(self) -> np.ndarray:
        """The survey's row of every example: made once, where a stream would make them as it goes."""
        if self.data.inputs is None:
            return self.data.rows
        return self.survey.row.many(self.pairs(np.arange(len(self.data.labels))))

    def pairs(self, units: np.ndarray) -> list[tuple[np.ndarray, int]]:
        return list(zip(self.data.inputs[units], self.data.labels[units].tolist(), strict=True))


def stored(data: Data, how: str, count: int, seed: int) -> Stored:
    """The data cut into shards."""
    labels = data.labels
    if how == "Dirichlet .3":
        parts = dirichlet(labels, count, 0.3, seed=seed)
    elif how == "by class":
        parts = label_shards(labels, count)
    elif how == "half by class":  # of every shard, one half is of a class and the other of all
        mixed = rng(seed, 0, "half").permutation(len(labels))
        first, second = np.sort(mixed[: len(mixed) // 2]), mixed[len(mixed) // 2 :]
        first = first[label_shards(labels[first], count).examples]
        halves = zip(np.array_split(first, count), np.array_split(second, count), strict=True)
        return Stored(data, [np.concatenate(pair) for pair in halves])
    else:
        parts = iid(labels, count, seed=seed)
    return Stored(data, [parts.of(i) for i in range(count)])


def shuffle_buffer(stream: np.ndarray, size: int, draw: np.random.Generator) -> np.ndarray:
    """What leaves a buffer: at each step a random member, whose place the next of the stream takes."""
    held, out = stream[:size].copy(), []
    for unit, at in zip(
        stream[size:], draw.integers(len(held), size=max(0, len(stream) - size)), strict=True
    ):
        out.append(held[at])
        held[at] = unit
    return np.concatenate([np.array(out, stream.dtype), draw.permutation(held)])


def corgipile(shards: list[np.ndarray], size: int, draw: np.random.Generator) -> np.ndarray:
    """Random shards fill a buffer, which is shuffled, emptied and filled anew (Xu et al., 2022)."""
    out, held = [], []
    for at in draw.permutation(len(shards)):
        held.append(shards[at])
        if sum(map(len, held)) >= size:
            out.append(draw.permutation(np.concatenate(held)))
            held = []
    return np.concatenate([*out, *([draw.permutation(np.concatenate(held))] if held else [])])


def order_of(method: str, store: Stored, window: int, seed: int, epoch: int) -> np.ndarray:
    """One epoch's order of the examples."""
    draw, rows, shards = rng(seed, epoch, "benchmark"), store.data.rows, store.shards
    if method == "full shuffle":
        return draw.permutation(len(rows))
    if method == "CorgiPile":
        return corgipile(shards, window, draw)
    mean, visits = None, draw.permutation(len(shards))
    if method == "ours":
        rows, mean = store.rows, store.survey.mean
        visits = ordered_shards(store.survey, seed=seed, epoch=epoch)
    stream = np.concatenate([shards[at] for at in visits])
    if method == "shuffle buffer":
        return shuffle_buffer(stream, window, draw)
    steered = balanced_stream(
        stream.tolist(), rows.__getitem__, window=window, seed=seed, epoch=epoch, mean=mean
    )
    return np.fromiter(steered, np.int64, len(stream))


class Training:
    """A model with all its orders on the device; on CUDA a step is one recorded graph, on its own stream."""

    def __init__(self, run: Run, options: argparse.Namespace) -> None:
        self.run, self.data, self.batch = run, data_of(run.data, options), options.batch
        store = store_of(run.data, run.stored, run.seed, options)
        if run.method == "ours":
            _ = store.rows  # the survey is made once, whatever the number of epochs
        self.window = options.window or suggested_window(store.survey)
        start = time.perf_counter()
        orders = [
            order_of(run.method, store, self.window, run.seed, epoch) for epoch in range(options.epochs)
        ]
        self.seconds = time.perf_counter() - start
        self.order_error = error_vs_shuffle(self.data.rows, orders[0], every=self.batch)
        self.steps = len(orders[0]) // self.batch
        whole = np.concatenate([order[: self.steps * self.batch] for order in orders])
        device = self.data.x.device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        with self.at_work():
            self.order, self.at = (
                torch.tensor(whole, device=device),
                torch.zeros(1, dtype=torch.int64, device=device),
            )
            self.lanes = torch.arange(self.batch, device=device)
            torch.manual_seed(run.seed)
            self.model = MODELS[run.model](self.data).to(device)
            more = {"capturable": self.stream is not None} if run.optimizer.startswith("Adam") else {}
            self.optimizer = OPTIMIZERS[run.optimizer](self.model.parameters(), **more)
        self.step: Callable[[], None] = self.one_step
        if self.stream is not None and not options.eager:
            try:
                self.step = self.recorded()
            except RuntimeError as error:
                print(f"no CUDA graph, step by step instead: {error}", file=sys.stderr)
                self.begin_again()
        self.scores: list[list[Tensor]] = []

    def at_work(self) -> Any:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def one_step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.data.loss(self.model, self.order[self.at + self.lanes]).backward()
        self.optimizer.step()
        self.at += self.batch

    def recorded(self) -> Callable[[], None]:
        """The step as a CUDA graph; the steps that warm it up are undone."""
        graph = torch.cuda.CUDAGraph()
        with self.at_work():
            self.before = [p.detach().clone() for p in self.model.parameters()]
            for _ in range(3):
                self.one_step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            self.one_step()
        self.begin_again()
        return graph.replay

    def begin_again(self) -> None:
        """Undo the steps made so far."""
        with self.at_work(), torch.no_grad():
            for p, old in zip(self.model.parameters(), self.before, strict=True):
                p.copy_(old)
            for kept in self.optimizer.state.values():  # momentum that begins at 0 is that of a first step
                for value in kept.values():
                    if torch.is_tensor(value):
                        value.zero_()
            self.at.zero_()

    def result(self, options: argparse.Namespace) -> dict[str, Any]:
        scores = [[round(float(v), 4) for v in epoch] for epoch in self.scores]
        measure = "test loss" if self.data.y is None else "test accuracy"
        return {
            **asdict(self.run), "examples": len(self.data.rows), "shards": options.shards,
            "window": options.window, "held": self.window, "measure": measure,
            "epochs": [e for e in EPOCHS if e <= options.epochs], "scores": scores,
            "order_error": round(self.order_error, 3), "orders_s": round(self.seconds / options.epochs, 3),
        }  # fmt: skip


def train(together: list[Training], options: argparse.Namespace) -> None:
    """Train a few models side by side, a step of each in turn."""
    shown = [epoch for epoch in EPOCHS if epoch <= options.epochs]
    for epoch in range(1, options.epochs + 1):
        steps = max(t.steps for t in together)
        looks = {t: {round(t.steps * q / 4) for q in (1, 2, 3, 4)} for t in together}
        if epoch in shown:
            for t in together:
                t.scores.append([])
        for step in range(1, steps + 1):
            for t in together:
                if step > t.steps:
                    continue
                with t.at_work():
                    t.step()
                    if epoch in shown and step in looks[t]:
                        t.scores[-1].append(t.data.score(t.model))
    for t in together:
        if t.stream is not None:
            t.stream.synchronize()  # who reads the scores does not wait for it


@cache
def _data(
    name: str, folders: tuple[str, ...], own_files: bool, examples: int, shards: int, device: str
) -> Data:
    given = argparse.Namespace(
        data=folders[0], folders=folders, own_files=own_files, examples=examples, shards=shards, device=device
    )
    return {"shakespeare": shakespeare, "wikitext2": wikitext2}.get(name, partial(images, name))(given)


def data_of(name: str, options: argparse.Namespace) -> Data:
    """A data set, loaded once a process."""
    given = options.own_files, options.examples, options.shards, options.device
    return _data(name, tuple(options.paths), *given)


@lru_cache(maxsize=8)
def _store(data: Data, how: str, count: int, seed: int) -> Stored:
    return stored(data, how, count, seed)


def store_of(name: str, how: str, seed: int, options: argparse.Namespace) -> Stored:
    return _store(data_of(name, options), how, options.shards, seed)


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All settings; a full shuffle does not see how data are stored, and is trained once."""
    runs = []
    for name, model, optimizer, seed in product(
        options.sets, options.models, options.optimizers, range(options.seed_from, options.seeds)
    ):
        if (name in TEXTS) != (model in TEXT) or (model in TEXT) != (optimizer == "AdamW 1e-3"):
            continue
        kinds = [how for how in options.stored if name not in TEXTS or how in ("by class", "at random")]
        pairs = [("any", METHODS[0]), *product(kinds, METHODS[1:])]
        runs += [Run(name, model, optimizer, *pair, seed) for pair in pairs if pair[1] in options.methods]
    return runs


def work(options: argparse.Namespace) -> None:
    """Train this process's part of the settings, and write each run as it ends."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    part, parts = map(int, options.part.split("/"))
    mine = runs_of(options)[part::parts]
    for at in range(0, len(mine), options.streams):
        if time.time() - BEGUN > 60 * options.minutes:
            print(f"out of time: {len(mine) - at} of {len(mine)} runs left", file=sys.stderr)
            return
        start = time.perf_counter()
        together = [Training(run, options) for run in mine[at : at + options.streams]]
        train(together, options)
        found = [t.result(options) for t in together]
        with Path(options.out).open("a") as out:
            for each in found:
                each["seconds"] = round((time.perf_counter() - start) / len(found), 2)
                out.write(json.dumps(each) + "\n")


def table(paths: list[str], inside: bool) -> Iterator[str]:
    """Markdown: one table for each data set, model and optimizer; mean ± spread over seeds."""
    rows = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    of = lambda row, *keys: tuple(row[key] for key in keys)  # noqa: E731
    misses: list[str] = []
    keys = ("data", "model", "optimizer", "window")
    for group in dict.fromkeys(of(row, *keys) for row in sorted(rows, key=str)):
        here = [row for row in rows if of(row, *keys) == group]
        epochs, text = here[0]["epochs"], here[0]["measure"] == "test loss"
        when = "mean over the quarters of" if inside else "after"
        first = here[0]
        held = sorted({row.get("held", row["window"]) for row in here if row["stored"] != "any"})
        buffers = " or ".join(f"{size:,}" for size in held)
        yield (
            f"\n**{', '.join(group[:3])}**: {first['measure']} {when} epochs {' · '.join(map(str, epochs))}; "
            f"{first['examples']:,} examples in {first['shards']} shards, buffers of {buffers}\n"
        )
        yield "| stored | order | " + " | ".join(map(str, epochs)) + " | order error | seeds |"
        yield "|---" * (len(epochs) + 4) + "|"
        kinds = [how for how in ("any", *STORED) if any(row["stored"] == how for row in here)]
        cells = {}
        for how, method in product(kinds, METHODS):
            runs = [row for row in here if of(row, "stored", "method") == (how, method)]
            if not runs:
                continue
            scores = np.array([[np.mean(e) if inside else e[-1] for e in row["scores"]] for row in runs])
            middle, spread = (
                scores.mean(axis=0),
                scores.std(axis=0, ddof=1) if len(runs) > 1 else 0 * scores[0],
            )
            cells[how, method] = middle
            shown = [
                f"{m:.3f} ± {s:.3f}" if text else f"{m:.1f} ± {s:.1f}"
                for m, s in zip(middle, spread, strict=True)
            ]
            error = np.mean([row["order_error"] for row in runs])
            yield f"| {how} | {method} | {' | '.join(shown)} | {error:.2f} | {len(runs)} |"
        sign = -100 if text else 1  # a loss: hundredths of a nat, and less is better
        for how in kinds:
            for rival, room in (("full shuffle", 0.5), ("shuffle buffer", 0.0)):
                base = cells.get(("any" if rival == "full shuffle" else how, rival))
                if base is None or (how, "ours") not in cells:
                    continue
                gap = sign * (cells[how, "ours"] - base)
                bad = [f"epoch {e}: {g:+.1f}" for e, g in zip(epochs, gap, strict=True) if g < -room]
                if bad:
                    misses.append(f"- {', '.join(group[:3])}, {how}, ours against {rival}: {'; '.join(bad)}")
    yield "\nOurs below the full shuffle by more than half a point, or below the shuffle buffer:\n"
    yield "\n".join(misses) if misses else "- nowhere"


def windows(options: argparse.Namespace) -> Iterator[str]:
    """Markdown: the order error that a survey foretells of a window, and that of the examples themselves."""
    yield "| data | stored | window | order error, foretold | measured |\n|---|---|---|---|---|"
    for name, how in product([n for n in options.sets if n not in TEXTS], options.stored):
        store = store_of(name, how, 0, options)
        for window in sorted({options.window, suggested_window(store.survey)}):
            order = order_of("ours", store, window, 0, 0)
            foretold = expected_error(store.survey, window)
            measured = error_vs_shuffle(store.rows, order, every=options.batch)
            yield f"| {name} | {how} | {window:,} | {foretold:.2f} | {measured:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["run", "small", "text", "table", "windows"])
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="the folders of the data; for table, result files"
    )
    parser.add_argument("--out", default="shards.jsonl", help="where runs are appended, as JSON lines")
    parser.add_argument("--part", default="0/1", help="i/k: this process trains runs i, i + k, i + 2k, …")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=1, help="models trained side by side (CUDA)")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after this")
    parser.add_argument("--sets", nargs="+", default=["cifar10", "cifar100"],
                        choices=["cifar10", "cifar100", "fashion_mnist", *TEXTS])  # fmt: skip
    parser.add_argument("--models", nargs="+", default=["CNN", "ResNet", "LM"], choices=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    parser.add_argument("--stored", nargs="+", default=list(STORED), choices=list(STORED))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed-from", type=int, default=0, help="the first of them")
    parser.add_argument("--epochs", type=int, default=max(EPOCHS))
    parser.add_argument("--examples", type=int, default=25_000)
    parser.add_argument("--shards", type=int, default=250)
    parser.add_argument("--window", type=int, default=1000,
                        help="examples in every buffer; 0: as many as the survey suggests")  # fmt: skip
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--own-files", action="store_true", help="files of the same format, not the official")
    parser.add_argument("--inside", action="store_true", help="table: means over quarters instead of ends")
    options = parser.parse_args()
    if options.mode == "table":
        print("\n".join(table(options.paths, options.inside)))
        return
    if options.mode == "windows":
        print("\n".join(windows(options)))
        return
    if options.mode == "small":
        options.sets, options.models, options.optimizers = ["fashion_mnist"], ["logistic"], ["SGD .03"]
        options.examples, options.shards, options.epochs, options.seeds = 6000, 60, 3, 2
    if options.mode == "text":
        options.sets = ["shakespeare", *(["wikitext2"] if len(options.paths) > 1 else [])]
        options.models, options.optimizers = ["GRU"], ["AdamW 1e-3"]
        options.methods = ["full shuffle", "shuffle buffer", "ours"]
        options.examples, options.shards, options.epochs, options.seeds = 4000, 40, 2, 2
        options.window = 500
    if options.mode in ("small", "text"):
        options.out = str(Path(tempfile.mkdtemp()) / "small.jsonl")
    work(options)
    if options.mode in ("small", "text"):
        print("\n".join(table([options.out], options.inside)))


BEGUN = time.time()

if __name__ == "__main__":
    main()
