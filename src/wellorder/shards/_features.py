"""Feature rows of examples that stream by: label ⊗ sketched input, settled after every shard was looked at.

`wellorder.features` sees all examples at once. Here the labels, and the means and spreads of the inputs, are
known only at the end of a survey; so each shard leaves sums, from which its mean row follows afterwards.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import shown
from wellorder._compiled import fast
from wellorder._kernels.signals import not_finite
from wellorder._kernels.sketch import random_signs
from wellorder._order import rng
from wellorder.shards._reading import SomeRows

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Label = int | str | bool
LARGEST = np.finfo(np.float32).max
MOST_SIDES = 63
"""Numbers that an input is sketched to, at most; odd, so that a picture's lines do not fall on each other."""


def pair(example: Any) -> tuple[Any, Any]:
    """Take an example that is a pair of input and label."""
    if isinstance(example, tuple | list) and len(example) == 2:
        return example[0], example[1]
    raise ValueError(
        f"an example of type {type(example).__name__} is no pair (input, label): pass xy=, a function from "
        "an example to its input and label, e.g. xy=lambda e: (e['image'], e['label']), or row="
    )


@dataclass(frozen=True)
class ByName:
    """Take an example's input and label by their names in it; None: there is none."""

    x: str | None
    y: str | None

    def __call__(self, example: Any) -> tuple[Any, Any]:
        try:
            return None if self.x is None else example[self.x], None if self.y is None else example[self.y]
        except (TypeError, LookupError) as error:
            raise ValueError(
                f"xy=({self.x!r}, {self.y!r}): an example of type {type(example).__name__} has no such parts "
                f"({type(error).__name__}: {error}); pass the names of the input and the label, or a function"
            ) from error


def taking(xy: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Take what finds an example's input and label: a function, or their two names."""
    if isinstance(xy, tuple | list) and len(xy) == 2 and all(isinstance(name, str | None) for name in xy):
        return ByName(*xy)
    if not callable(xy):
        raise ValueError(
            f"xy={shown(xy)}: pass a function from an example to its input and label, or the two names that "
            'these have in it, e.g. xy=("image", "label")'
        )
    return xy  # type: ignore[no-any-return]


def inputs_and_labels(
    examples: Sequence[Any], xy: Callable[[Any], tuple[Any, Any]] = pair
) -> tuple[Sequence[Any], list[Label]]:
    """Some examples' inputs, and labels that can be looked up; quick where all are alike, or are columns."""
    if isinstance(xy, ByName) and isinstance(examples, SomeRows):
        columns: dict[Any, Any] = {**examples.columns, None: [None] * len(examples)}
        if xy.x in columns and xy.y in columns:
            return columns[xy.x], _labels(columns[xy.y])
    pairs = examples if xy is pair else list(map(xy, examples))
    if set(map(type, pairs)) != {tuple} or set(map(len, pairs)) != {2}:
        pairs = list(map(pair, pairs))
    inputs, labels = zip(*pairs, strict=True) if pairs else ((), ())
    return inputs, _labels(labels)


def _labels(labels: Any) -> list[Label]:
    known: list[Label] = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    kinds = set(map(type, known))
    if kinds <= {int, str}:
        return known
    if len(kinds) == 1 and issubclass(kinds.pop(), np.integer):
        known = np.array(known).tolist()
        return known
    return list(map(_label, known))


@dataclass(frozen=True)
class InputSketch:
    """Inputs of ``dim`` numbers, as ``width`` sums with random signs, less those of one example."""

    seed: int
    dim: int
    width: int
    offset: Floats = field(repr=False)

    @staticmethod
    def like(x: Any, seed: int) -> InputSketch:
        """The sketch of inputs that look like ``x``."""
        if x is None:
            return InputSketch(seed, 0, 0, np.zeros(0, np.float32))
        dim = _numbers(x).size
        bare = InputSketch(seed, dim, min(dim, MOST_SIDES), np.zeros(min(dim, MOST_SIDES), np.float32))
        return InputSketch(seed, dim, bare.width, bare.of([x])[0])

    def __post_init__(self) -> None:
        signs = np.ones(self.dim, np.int8)
        if self.dim > MOST_SIDES:
            signs = random_signs(rng(self.seed, 0, "shards.inputs"), self.dim)
        object.__setattr__(self, "_signs", signs)

    def of(self, inputs: Sequence[Any] | npt.NDArray[Any]) -> Floats:
        """The sketches of some inputs, (b, width)."""
        out = np.zeros((len(inputs), self.width), np.float32)
        if not self.width:
            return out
        block = _block(inputs)
        if block.shape[1] != self.dim:
            raise ValueError(
                f"an input of {block.shape[1]} numbers, where the first had {self.dim}: rows need inputs "
                "of one size; pass xy=lambda e: (None, label) for labels alone, or row="
            )
        _sketch(block, self._signs, out)  # type: ignore[attr-defined]
        out -= self.offset
        return out


@dataclass(frozen=True)
class ShardSums:
    """What a shard leaves: for each of its labels, the mean of mark · [1, sketch] over all its examples."""

    labels: list[Label]
    sums: Floats
    squares: Floats

    def narrowed(self, width: int) -> ShardSums:
        """With fewer numbers of the sketch."""
        return ShardSums(self.labels, self.sums[:, : 1 + width].copy(), self.squares[:width].copy())


def sums_of(examples: Iterable[tuple[Any, Any]], sketch: InputSketch, at_once: int = 1024) -> ShardSums:
    """Sum up a shard whose examples are given as input and label (None: it has none)."""
    places: dict[Label, int] = {}
    total, squares, count = np.zeros((0, 1 + sketch.width)), np.zeros(sketch.width), 0
    for block in _blocks(examples, at_once):
        inputs, labels = inputs_and_labels(block)
        sides = sketch.of(inputs)
        if not np.isfinite(sides).all():
            bad = count + int(np.argmin(np.isfinite(sides).all(axis=1)))
            raise ValueError(f"the input of example {bad} holds NaN or infinity; fill it, or leave it out")
        marks = [places.setdefault(label, len(places)) for label in labels]
        total = np.concatenate([total, np.zeros((len(places) - len(total), total.shape[1]))])
        _add_by_place(np.array(marks, np.int64), sides, total)
        squares += np.square(sides, dtype=np.float64).sum(axis=0)
        count += len(block)
    weight = 1 / max(count, 1)
    return ShardSums(list(places), (total * weight).astype(np.float32), (squares * weight).astype(np.float32))


@dataclass(frozen=True)
class FeatureRows:
    """From an example to its row: one-hot label ⊗ [1, standardised sketch of the input].

    It is a function of one example, and ``many`` of a list of them. More labels than ``size`` share numbers,
    by random signs. An example whose label the survey did not meet has a row of zeros before it is centred.
    """

    sketch: InputSketch
    labels: tuple[Label, ...]
    """Labels in their places; empty where examples have none."""
    center: Floats = field(repr=False)
    scale: Floats = field(repr=False)
    size: int = 512
    xy: Callable[[Any], tuple[Any, Any]] = pair

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {label: at for at, label in enumerate(self.labels)})
        object.__setattr__(self, "_codes", {})

    @property
    def dim(self) -> int:
        """Numbers in a row."""
        if not self.labels:
            return len(self.center)
        return self.size if self.shared else len(self.labels) * (1 + len(self.center))

    @property
    def shared(self) -> bool:
        """Whether there are too many labels for each to have a place of its own."""
        return len(self.labels) > self.size

    @property
    def mean_square(self) -> float:
        """The mean squared length of a row: a mark counts 1, and so does each number of the sketch."""
        return 1.0 if self.shared else float(np.count_nonzero(self.scale) + bool(self.labels))

    def __call__(self, example: Any) -> Floats:
        return np.asarray(self.many([example])[0])

    @property
    def block_width(self) -> int | None:
        """Numbers of a row that are not zero by its label, if there are any others: see `blocks`."""
        return 1 + len(self.center) if self.labels and not self.shared else None

    def many(self, examples: Sequence[Any]) -> Floats:
        """The rows of some examples, (b, dim)."""
        if self.shared:
            labels = inputs_and_labels(examples, self.xy)[1]
            return np.array([self.code(label) for label in labels], np.float32).reshape(-1, self.size)
        blocks, places = self.blocks(examples)
        if not self.labels:
            return blocks
        rows = np.zeros((len(blocks), len(self.labels), blocks.shape[1]), np.float32)
        rows[np.arange(len(blocks)), places] = blocks
        return rows.reshape(len(blocks), -1)

    def blocks(self, examples: Sequence[Any]) -> tuple[Floats, Ints]:
        """Of each row what is not zero by its label, (b, block_width), and the labels' places."""
        inputs, labels = inputs_and_labels(examples, self.xy)
        places = np.zeros(len(labels), np.int64)
        if self.labels:
            places[:] = list(map(self._places.get, labels, itertools.repeat(-1)))  # type: ignore[attr-defined]
        sides = self.sketch.of(inputs) if len(self.center) else np.zeros((len(labels), 0), np.float32)
        made = np.zeros((len(labels), bool(self.labels) + len(self.center)), np.float32)
        bad = _standardise(places, sides, self.center, self.scale, bool(self.labels), made)
        if bad >= 0:
            raise ValueError(not_finite(bad, "row(example)"))
        return made, np.maximum(places, 0)

    def code(self, label: Label) -> Floats:
        """The random signs of one of very many labels."""
        found: Floats | None = self._codes.get(label)  # type: ignore[attr-defined]
        if found is None:
            if label not in self._places:  # type: ignore[attr-defined]
                return np.zeros(self.size, np.float32)
            found = label_signs(label, self.size, self.sketch.seed)
            self._codes[label] = found  # type: ignore[attr-defined]
        return found

    def mean_row(self, part: ShardSums) -> Floats:
        """The mean row of a shard, from its sums: rows are linear in marks and in the sketch."""
        row = np.zeros(self.dim, np.float32)
        width = len(self.center)
        for label, sums in zip(part.labels, part.sums, strict=True):
            if self.shared:
                row += sums[0] * self.code(label)
                continue
            sides = (sums[1 : 1 + width] - sums[0] * self.center) * self.scale
            if not self.labels:
                return np.asarray(sides)
            at = self._places[label] * (1 + width)  # type: ignore[attr-defined]
            row[at], row[at + 1 : at + 1 + width] = sums[0], sides
        return row


def settle(
    parts: Sequence[ShardSums],
    sizes: npt.NDArray[np.float64],
    sketch: InputSketch,
    size: int,
    xy: Callable[[Any], tuple[Any, Any]],
) -> FeatureRows:
    """Choose places for all labels that were met, and the inputs' means and spreads, weighed by sizes."""
    labels = sorted({label for part in parts for label in part.labels}, key=lambda y: (type(y).__name__, y))
    unlabelled = labels == [""]
    width = sides_for(len(labels), size, sketch.width, labelled=not unlabelled)
    first, second = np.zeros(width), np.zeros(width)
    for part, weight in zip(parts, sizes / max(sizes.sum(), 1), strict=True):
        first += weight * part.sums[:, 1 : 1 + width].sum(axis=0, dtype=np.float64)
        second += weight * part.squares[:width].astype(np.float64)
    spread = np.sqrt(np.maximum(second - first**2, 0))
    small = spread <= 1e-6 * np.maximum(np.sqrt(second), 1e-30)
    scale = np.where(small, 0.0, 1 / np.where(small, 1.0, spread))
    names = () if unlabelled else tuple(labels)
    return FeatureRows(sketch, names, first.astype(np.float32), scale.astype(np.float32), size, xy)


def sides_for(labels: int, size: int, width: int, *, labelled: bool) -> int:
    """How many numbers of an input's sketch fit into rows of ``size``, with so many labels."""
    return max(0, min(width, size // max(labels, 1) - labelled))


def label_signs(label: Label, size: int, seed: int) -> Floats:
    """Random signs that belong to a label, whatever other labels there are; of length 1."""
    draw = rng(seed, zlib.crc32(f"{type(label).__name__} {label}".encode()), "shards.labels")
    return np.asarray(random_signs(draw, size) / np.sqrt(size), np.float32)


def _label(y: Any) -> Label:
    if y is None:
        return ""
    if isinstance(y, np.generic) or (hasattr(y, "item") and np.prod(y.shape) == 1):
        y = y.item()
    if isinstance(y, bytes):
        y = y.decode("utf-8", "replace")
    if isinstance(y, bool | int | str):
        return int(y) if isinstance(y, bool) else y
    if isinstance(y, float) and y.is_integer():
        return int(y)
    raise ValueError(
        f"label {y!r}: pass an int, a string or a bool; cut real targets into a few classes "
        "(xy=lambda e: (x, int(y > middle))), or pass row= for rows of your own"
    )


def _numbers(x: Any) -> npt.NDArray[Any]:
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() and x.element_size() < 4 else x
    array = np.asarray(x)
    if array.dtype.kind not in "fbiu":
        raise ValueError(
            f"an input of dtype {array.dtype}: inputs must be arrays of numbers; pass "
            "xy=lambda e: (None, label) for labels alone, or row= for rows of your own"
        )
    if array.dtype in (np.float16, np.bool_):
        array = array.astype(np.float32)
    return np.ascontiguousarray(array).reshape(-1)


def _block(inputs: Any) -> npt.NDArray[Any]:
    """Some inputs of one size as the rows of one array."""
    if isinstance(inputs, np.ndarray):
        return _numbers(inputs).reshape(len(inputs), -1)
    first = inputs[0]
    if type(first) is np.ndarray and first.dtype != np.float16:
        try:
            return _numbers(np.array(inputs)).reshape(len(inputs), -1)  # np.stack takes twice as long
        except (TypeError, ValueError):  # not all alike: find out which
            pass
    arrays = [_numbers(x) for x in inputs]
    for each in arrays:
        if each.size != arrays[0].size:
            raise ValueError(
                f"an input of {each.size} numbers, where another had {arrays[0].size}: rows need inputs of "
                "one size; pass xy=lambda e: (None, label) for labels alone, or row="
            )
    return np.stack(arrays)


def _blocks(items: Iterable[Any], count: int) -> Iterable[list[Any]]:
    block = []
    for item in items:
        block.append(item)
        if len(block) == count:
            yield block
            block = []
    if block:
        yield block


@fast
def _sketch(block, signs, out):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    for i in range(len(block)):
        into, start = out[i], 0
        while start < block.shape[1]:
            run = min(width, block.shape[1] - start)
            numbers, sign = block[i, start : start + run], signs[start : start + run]
            for j in range(run):
                into[j] += np.float32(sign[j]) * np.float32(numbers[j])
            start += run


@fast
def _add_by_place(places, sides, total):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        into = total[places[i]]
        into[0] += 1.0
        for j in range(sides.shape[1]):
            into[1 + j] += np.float64(sides[i, j])


@fast
def _standardise(places, sides, center, scale, labelled, blocks):  # type: ignore[no-untyped-def]
    """Fill in the blocks; returns the first that holds NaN or infinity, or -1."""
    bad = -1
    for i in range(len(places) - 1, -1, -1):
        if places[i] >= 0:
            if labelled:
                blocks[i, 0] = np.float32(1.0)
            into, good = blocks[i, np.int64(labelled) :], True
            for j in range(len(center)):
                into[j] = (sides[i, j] - center[j]) * scale[j]
                good &= abs(into[j]) <= LARGEST  # never of NaN
            if not good:
                bad = i
    return bad
