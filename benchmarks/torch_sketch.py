"""How good orders from sketches are, against what the sketch costs: which layers, how many numbers, where.

``python benchmarks/torch_sketch.py DATA [MODEL …] [--n N] [--seeds S]`` with DATA the folder of the official
Fashion-MNIST and CIFAR-10 files and of WikiText-2's tokens (``wiki.train*.tokens``). Per model: train with
SGD; at the start of some epochs take every example's gradient and sketches of it, let `Herding` and
`PairGraB` order the sketches, and print the order error of those orders for the *true* gradients, relative
to reshuffling: at the same weights, and an epoch later, where the order is used. The cost is modelled:
multiplications of the sketch in per cent of three forward passes, and kernels to launch.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
from torch_models import LM, Block, mlp

from wellorder import Herding, PairGraB
from wellorder._datasets import files
from wellorder._datasets.networks import cnn, lenet
from wellorder._order import rng, shuffled
from wellorder.torch._per_example.layers import Layer, factors, survey
from wellorder.torch._sketch import Sketch, SketchSource

CHUNK = 128
Use = tuple[Layer, Tensor, Tensor]
Found = dict[tuple[str, str], list[np.ndarray]]


@dataclass(frozen=True)
class Variant:
    """What is sketched: ``size`` numbers, ``height`` of them by P; ``filters`` and ``side`` of convolutions.

    ``layers`` is all, last2 (the last two), spread4 (four, evenly spread), top2 (the two with most variance).
    ``tokens`` are the positions of a sequence; ``pool`` sums e over the positions that are skipped, and in a
    sequence takes the mean of a. P may be ``slack`` times lower or higher than ``height``, whichever makes
    P e and Q a cheapest. A convolution's channels are mixed to ``mix`` first, if they are more.
    """

    name: str
    layers: str = "all"
    size: int = 512
    height: int = 16
    filters: int = 4
    side: int = 12
    tokens: int = 1 << 30
    pool: bool = False
    slack: int = 2
    mix: int = 1 << 30


BASE = Variant("512, 16 layers, 4 filters, side 12", "spread16")
RICH = Variant("all layers and positions, 32 filters", filters=32, side=1 << 30)
POOL = Variant("pooled", height=64, slack=1, side=4, tokens=1, pool=True)
EIGHT = replace(POOL, layers="spread8")
VARIANTS = (
    BASE,
    RICH,
    *(replace(BASE, name=f"k={k}", size=k) for k in (128, 256, 1024)),
    *(replace(BASE, name=n, layers=n) for n in ("last1", "last4", "spread4", "spread8", "top4")),
    *(replace(BASE, name=f"height {h}", height=h, slack=1) for h in (8, 64, 128)),
    *(replace(BASE, name=f"side {s}", side=s) for s in (4, 8)),
    *(replace(BASE, name=f"filters {f}", filters=f) for f in (1, 8)),
    *(replace(BASE, name=f"filters 8, mixed to {m}", filters=8, mix=m) for m in (1, 4)),
    *(replace(BASE, name=f"tokens {t}", tokens=t) for t in (8, 32)),
    *(replace(POOL, name=f"pooled, height {h}", height=h) for h in (16, 64, 128)),
    *(replace(POOL, name=f"pooled, {n}", layers=n) for n in ("last4", "spread4", "spread8", "spread16")),
    *(replace(EIGHT, name=f"pooled, spread8, k={k}", size=k) for k in (128, 256, 1024)),
    *(replace(EIGHT, name=f"pooled, spread8, side {s}", side=s) for s in (2, 8)),
    *(replace(EIGHT, name=f"pooled, spread8, filters {f}", filters=f) for f in (1, 8)),
    replace(EIGHT, name="pooled, spread8, filters 8, mixed to 4", filters=8, mix=4),
    replace(EIGHT, name="pooled, spread8, 4 tokens", tokens=4),
)


def captured(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[slice, list[Use]]]:
    """Each use of a layer: its input, and its output's gradient; some examples at a time."""
    for at in range(0, len(x), CHUNK):
        some = slice(at, at + CHUNK)
        uses: list[Use] = []
        handles = [
            layer.module.register_forward_hook(
                lambda _, args, out, layer=layer, uses=uses: uses.append((layer, args[0].detach(), out))
            )
            for layer in survey(model)
        ]
        loss = functional.cross_entropy(model(x[some]).flatten(0, -2), y[some].flatten()) * len(x[some])
        gradients = torch.autograd.grad(loss, [out for *_, out in uses])
        for handle in handles:
            handle.remove()
        yield some, [(layer, a, e) for (layer, a, _), e in zip(uses, gradients, strict=True)]


def truth(model: nn.Module, x: Tensor, y: Tensor) -> tuple[np.ndarray, dict[str, float]]:
    """The centred Gram matrix of all examples' gradients, and the layers' shares of their variance.

    A linear layer that sees no sequence is kept as its factors, everything else is written out.
    """
    kept: dict[Any, list[tuple[Tensor, ...]]] = defaultdict(list)
    owners: dict[Any, set[str]] = defaultdict(set)
    for _, uses in captured(model, x, y):
        rows: dict[Any, Tensor] = {}
        for layer, a, e in uses:
            named = factors(layer.module, a, e, torch.float32)
            for name, factor in named:
                key = layer.parameters[name]
                owners[key].add(layer.name)
                if name == "weight" and isinstance(layer.module, nn.Linear) and a.ndim == 2:
                    kept[key].append((e, a))
                else:
                    rows[key] = factor.rows() + rows.get(key, 0.0)
        for key, values in rows.items():
            kept[key].append((values,))
    total, share = torch.zeros(len(x), len(x), dtype=torch.float64), Counter[str]()
    for key in list(kept):
        both = [torch.cat(parts) for parts in zip(*kept.pop(key), strict=True)]
        gram = math.prod(part @ part.T for part in both).double()
        gram = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
        total += gram
        share.update(dict.fromkeys(owners[key], float(gram.trace())))
    return total.numpy(), {name: v / float(total.trace()) for name, v in share.items()}


@dataclass(frozen=True)
class Part:
    """A layer's factors: e (b, T, o), and a (b, T, i) with a 1 for the bias, or the ids looked up (b, T)."""

    module: Any
    e: Tensor
    a: Tensor
    grid: tuple[int, ...]

    @property
    def inputs(self) -> int:
        return self.module.num_embeddings if self.a.ndim == 2 else self.a.shape[2]


def parts_of(uses: list[Use]) -> dict[str, Part]:
    """The layers that can be sketched."""
    found = {}
    for layer, given, e in uses:
        m: Any = layer.module
        if isinstance(m, nn.Embedding):
            found[layer.name] = Part(m, e, given, tuple(e.shape[1:-1]))
        elif isinstance(m, nn.Conv2d | nn.Linear):
            conv = isinstance(m, nn.Conv2d)
            a = functional.unfold(given, m.kernel_size, 1, m.padding, m.stride).mT if conv else given
            a, grid = a.reshape(len(e), -1, a.shape[-1]), e.shape[2:] if conv else e.shape[1:-1]
            a = a if m.bias is None else functional.pad(a, (0, 1), value=1.0)
            found[layer.name] = Part(
                m, e.flatten(2).mT if conv else e.reshape(*a.shape[:2], -1), a, tuple(grid)
            )
    return found


def chosen(word: str, layers: list[str], share: dict[str, float]) -> list[str]:
    """The layers that a variant sketches, out of those that can be."""
    if word == "all":
        return layers
    count = int("".join(c for c in word if c.isdigit()))
    if word.startswith("last"):
        return layers[-count:]
    if word.startswith("top"):
        return sorted(layers, key=lambda name: -share.get(name, 0.0))[:count]
    last, steps = len(layers) - 1, max(count - 1, 1)
    return layers if count > last else [layers[last - round(i * last / steps)] for i in range(count)]


def pooled(e: Tensor, grid: tuple[int, ...], side: int) -> Tensor:
    """Sums over blocks of positions, (b, T, o) → (b, T', o), T' at most ``side`` along each dimension."""
    whole = grid if len(grid) == 2 else (1, *grid)
    thin = [-(-s // side) for s in whole]
    blocks = functional.avg_pool2d(e.mT.unflatten(2, whole), thin, ceil_mode=True, divisor_override=1)
    return blocks.flatten(2).mT


class Mapping:
    """One variant's projections of one seed, and what they cost an example."""

    def __init__(self, variant: Variant, seed: int, parts: dict[str, Part], names: list[str]) -> None:
        self.variant, self.seed = variant, seed
        self.maps: dict[str, tuple[Tensor | None, Tensor, Tensor, int]] = {}
        self.start, self.cost, self.launches, self.skips = 0, 0, 0, False
        for name, part in parts.items():
            if name in names:
                self.maps[name] = self._drawn(part, name)

    def _drawn(self, part: Part, name: str) -> tuple[Tensor | None, Tensor, Tensor, int]:
        """P, Q, the positions, and where the layer's numbers begin."""
        v, m, inputs, outputs = self.variant, part.module, part.inputs, part.e.shape[2]
        conv, lookup = isinstance(m, nn.Conv2d), part.a.ndim == 2
        ideal = 2 ** round(math.log2(math.sqrt(v.size * (1 if lookup else inputs) / outputs)))
        height = min(outputs, min(max(ideal, v.height // v.slack), v.slack * v.height))
        width = min(inputs, max(1, v.size // height), v.filters if conv else inputs)
        draw = rng(self.seed, 0, f"benchmark.{name}")

        def signs(r: int, c: int) -> Tensor:
            return torch.tensor(draw.integers(0, 2, (r, c)) * 2.0 - 1, dtype=torch.float32) / r**0.5

        left = None if height == outputs else signs(height, outputs)
        right, read, once = signs(width, inputs), 0 if lookup else inputs, 0
        if conv and m.in_channels > v.mix:
            area, bias = math.prod(m.kernel_size), int(m.bias is not None)
            few = signs(width, v.mix * area).view(width, v.mix, area)
            right[:, : inputs - bias] = torch.einsum("wmk,mc->wck", few, signs(v.mix, m.in_channels)).flatten(
                1
            )
            read, once = v.mix * area, v.mix * m.in_channels * math.prod(part.grid) * math.prod(m.stride)
        thin = [1 if lookup else -(-s // (v.side if conv else v.tokens)) for s in part.grid]
        places = torch.arange(math.prod(part.grid)).view(part.grid)
        places = places[tuple(slice(None, None, t) for t in thin)].flatten()
        each = height * width + (left is not None) * height * outputs + width * read
        self.cost += len(places) * each + once
        skips = max(thin, default=1) > 1
        self.skips |= skips
        self.launches += 2 + (left is not None) + (once > 0) + skips * (1 + (v.pool and not conv))
        self.start = self.start if self.start + height * width <= v.size else 0
        self.start += height * width
        return left, right, places, self.start - height * width

    def add(self, rows: Tensor, part: Part, name: str) -> None:
        """Add a layer's sketch to its columns of ``rows``."""
        left, right, places, start = self.maps[name]
        v, e, a, scale = self.variant, part.e, part.a, math.prod(part.grid) / len(places)
        conv = isinstance(part.module, nn.Conv2d)
        if v.pool and scale > 1:
            e = pooled(e, part.grid, v.side if conv else v.tokens) / scale
            a = a[:, places] if conv else pooled(a, part.grid, v.tokens) / scale
        elif scale > 1:
            e, a = e[:, places], a[:, places]
        e = (e if left is None else e @ left.T) * scale
        q = functional.embedding(a, right.T) if a.ndim == 2 else a @ right.T
        rows[:, start : start + e.shape[2] * q.shape[2]] += (e.mT @ q).flatten(1)

    def key(self) -> tuple[Any, ...]:
        """What is the same for variants that do not differ on this model."""
        pooled = self.variant.pool and self.skips
        return (*self.maps, self.cost, self.launches, pooled, self.variant.size, self.seed)


def sketched(
    model: nn.Module, x: Tensor, y: Tensor, share: dict[str, float], seeds: int, variants: list[Variant]
) -> list[tuple[Mapping, Tensor]]:
    """The rows of each seed of each variant that differs from those before it on this model."""
    parts = parts_of(next(captured(model, x[:2], y[:2]))[1])
    found: dict[Any, tuple[Mapping, Tensor]] = {}
    for v in variants:
        for seed in range(seeds):
            m = Mapping(v, seed, parts, chosen(v.layers, list(parts), share))
            found.setdefault(m.key(), (m, torch.zeros(len(x), v.size)))
    for some, uses in captured(model, x, y):
        for name, part in parts_of(uses).items():
            for m, rows in found.values():
                if name in m.maps:
                    m.add(rows[some], part, name)
    return list(found.values())


def defaults(model: nn.Module, x: Tensor, y: Tensor, seeds: int) -> Iterator[tuple[str, int, np.ndarray]]:
    """The rows of the library's own `Sketch()`."""
    for seed in range(seeds):
        source, rows = SketchSource(Sketch(), model, seed), []
        for part, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            record = source.records.open(len(part))
            functional.cross_entropy(model(part).flatten(0, -2), labels.flatten()).backward()
            rows.append(source.signals(source.records.close(record)))
        source.remove()
        yield "the default, Sketch()", seed, torch.cat(rows).numpy()


def orders(
    gram: np.ndarray,
    ours: list[tuple[str, int, np.ndarray]],
    sketches: list[tuple[Mapping, Tensor]],
    seeds: int,
) -> Found:
    """One order for each seed, by what was ordered (the true gradients too) and how."""
    n = len(gram)
    root = np.linalg.cholesky(gram + 1e-6 * np.trace(gram) / n * np.eye(n)).astype(np.float32)
    given = [("true gradients", seed, root) for seed in range(seeds)]
    for seed in range(seeds):
        projection = rng(seed, 0, "benchmark").normal(size=(n, 512)).astype(np.float32)
        given.append(("dense projection to 512", seed, root @ projection))
    found: Found = defaultdict(list)
    for name, seed, rows in given + ours + [(m.variant.name, m.seed, rows.numpy()) for m, rows in sketches]:
        for how, policy in (("herding", Herding()), ("pair", PairGraB())):
            state: Any = policy.init(n, seed=seed)
            found[name, how].append(
                policy.advance(policy.observe(state, state.order, rows[state.order])).order
            )
    return found


def error_of(gram: np.ndarray, order: np.ndarray) -> float:
    """The order error, from centred inner products: ‖s_t‖² = ‖s_{t−1}‖² + 2⟨s_{t−1}, z_t⟩ + ‖z_t‖²."""
    along = gram[np.ix_(order, order)]
    return float(np.sqrt(np.cumsum(2 * np.tril(along, -1).sum(1) + np.diag(along)).max()))


def relative(gram: np.ndarray, found: Found) -> dict[tuple[str, str], float]:
    """Order errors over that of reshuffling."""
    chance = np.mean([error_of(gram, shuffled(len(gram), 1, t)) for t in range(12)])
    return {key: float(np.mean([error_of(gram, o) for o in each]) / chance) for key, each in found.items()}


def one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    total = 0.0
    for units in torch.randperm(len(x)).split(16):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[units]).flatten(0, -2), y[units].flatten())
        loss.backward()
        optimizer.step()
        total += loss.item() * len(units) / len(x)
    return total


def resnet(same: int) -> nn.Module:
    """Three stages of a block and ``same`` more, 16 to 64 wide, with GroupNorm."""
    sizes = [(16, 16, 1)] + [(16, 16, 1)] * same + [(16, 32, 2)] + [(32, 32, 1)] * same
    sizes += [(32, 64, 2)] + [(64, 64, 1)] * same
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stem, *(Block(*size, nn.GroupNorm) for size in sizes), *head)


TASKS: dict[str, tuple[Any, str, int, float]] = {
    "LeNet, Fashion-MNIST": (partial(lenet, 1, 28), "fashion", 2048, 3e-3),
    "LeNet, CIFAR-10": (lenet, "cifar", 2048, 3e-3),
    "MLP, Fashion-MNIST": (lambda: mlp(784, 1024, 256, 10), "fashion", 2048, 3e-3),
    "CNN, CIFAR-10": (cnn, "cifar", 1024, 3e-3),
    "ResNet, CIFAR-10": (lambda: resnet(1), "cifar", 1024, 1e-2),
    "deep ResNet, CIFAR-10": (lambda: resnet(2), "cifar", 1024, 1e-2),
    "LM, WikiText-2": (lambda: LM(1000, 64, 4, 3, 64), "text", 1024, 1e-1),
    "deep LM, WikiText-2": (lambda: LM(1000, 64, 4, 8, 64), "text", 1024, 1e-1),
}


def examples(kind: str, folder: str, n: int) -> tuple[Tensor, Tensor]:
    if kind == "text":
        words = next(Path(folder).glob("**/wiki.train*.tokens")).read_text().split()[: 65 * n]
        known = {w: i for i, (w, _) in enumerate(Counter(words).most_common(999))}
        ids = torch.tensor([known.get(w, 999) for w in words]).view(n, 65)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    data = (files.fashion_mnist if kind == "fashion" else files.cifar10)(folder)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (data.mean, data.std))
    images, labels = torch.tensor(data.train_images[:n]), torch.tensor(data.train_labels[:n])
    return (images.float() / 255 - mean) / std, labels


def measure(name: str, options: argparse.Namespace) -> None:
    """Print a model's table: means over the epochs looked at."""
    make, kind, n, step = TASKS[name]
    x, y = examples(kind, options.data, options.n or n)
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=step, momentum=0.9)
    results: dict[tuple[str, str], list[float]] = defaultdict(list)
    costs: dict[str, str] = {}
    parts = parts_of(next(captured(model, x[:2], y[:2]))[1]).values()
    forward = sum(math.prod(p.grid) * p.e.shape[2] * p.inputs for p in parts if p.a.ndim == 3)
    for epoch in range(max(options.epochs) + 1):
        found: Found = {}
        if epoch in options.epochs:
            gram, share = truth(model, x, y)
            variants = [v for v in VARIANTS if not options.only or v.name in options.only]
            sketches = sketched(model, x, y, share, options.seeds, variants)
            found = orders(gram, list(defaults(model, x, y, options.seeds)), sketches, options.seeds)
            for key, value in relative(gram, found).items():
                results[key].append(value)
            for m, _ in sketches:
                costs[m.variant.name] = f"{100 * m.cost / (3 * forward):6.2f} {m.launches:7} {len(m.maps):6}"
        loss = one_epoch(model, optimizer, x, y)
        if found:
            for (given, how), value in relative(truth(model, x, y)[0], found).items():
                results[given, how + " later"].append(value)
            shares = {layer: round(v, 2) for layer, v in share.items() if v > 0.01}
            print(f"{name}, n={len(x)}, epoch {epoch}, loss {loss:.3f}; shares of the variance {shares}")
    print(f"{'':38} cost % kernels layers  herding  later   pair  later")
    for variant in dict.fromkeys(given for given, _ in results):
        ways = ("herding", "herding later", "pair", "pair later")
        errors = "  ".join(f"{np.mean(results[variant, how]):5.3f}" for how in ways)
        print(f"{variant:38} {costs.get(variant, ''):21}    {errors}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("models", nargs="*", default=list(TASKS))
    parser.add_argument("--n", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--only", nargs="*", help="names of variants; all unless given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in TASKS:
        if any(name.startswith(part) for part in options.models):
            measure(name, options)


if __name__ == "__main__":
    main()
