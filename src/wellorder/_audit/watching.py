"""Watch a loader: which examples went by, in which batches, and what is to be seen of each."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._kernels.features import on_host
from wellorder._order import Rows, rng

SIDES = 64
"""Numbers that are kept of an input: random projections."""
BUCKETS = 256
"""Counts that are kept of a text: its tokens or words fall into so many."""
LABELS = ("label", "labels", "y", "target", "targets", "class", "cls", "fine_label")
IDENTITY, SHARD, TOKENS = "__key__", "__url__", "input_ids"
"""What WebDataset calls an example's name and its shard, and what tokenizers call a text."""

Array = npt.NDArray[Any]
Marks = npt.NDArray[np.int64]
XY = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Epoch:
    """One epoch as it went by: all arrays have one entry a visit, ``sizes`` one a batch."""

    sizes: npt.NDArray[np.int64]
    marks: Marks
    labels: Array | None = None
    sides: Rows | None = None
    rows: Rows | None = None
    shards: Array | None = None
    whole: bool = True
    """False if the watching stopped before the epoch did."""
    named: bool = False
    """Whether examples are known by their names, not by what they look like."""
    unlabelled: bool = False
    """Whether the user said that there are no labels."""


@dataclass(frozen=True)
class Batch:
    """A batch taken apart; ``inputs`` is (b, …) or None."""

    size: int
    inputs: Array | None
    labels: Array | None
    names: Array | None = None
    shards: Array | None = None
    texts: bool = False
    unlabelled: bool = False


@dataclass(frozen=True)
class Reader:
    """How to read a batch; what is None is found out."""

    xy: XY | None = None
    key: Callable[[Any], Any] | None = None
    shards: Callable[[Any], Any] | None = None
    rows: Callable[[Any], Any] | None = None

    def take_apart(self, batch: Any) -> Batch:
        """The inputs, labels, names and shards of a batch's examples, or of a single example."""
        pair = None
        if self.xy is not None:
            pair = self.xy(batch)
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"xy(batch) returned {type(pair).__name__}: return (inputs, labels)")
        part = parted(batch, pair)
        names = part.names if self.key is None else _column(self.key(batch), part.size, "names")
        shards = part.shards if self.shards is None else _column(self.shards(batch), part.size, "shards")
        return replace(part, names=names, shards=shards)


def watch(
    batches: Iterable[Any], reader: Reader, projections: dict[int, Rows], most: int, seed: int
) -> Epoch:
    """Iterate once over ``batches``, and keep a few numbers of each example; at most ``most`` of them."""
    sizes: list[int] = []
    kept: dict[str, list[Array]] = {"marks": [], "labels": [], "sides": [], "rows": [], "shards": []}
    seen, whole = 0, True
    named = unlabelled = False
    for number, batch in enumerate(batches):
        part = reader.take_apart(batch)
        if not part.size:
            continue
        kept["marks"].append(marks_of(part))
        named, unlabelled = part.names is not None, part.unlabelled
        if part.labels is not None:
            kept["labels"].append(part.labels)
        if part.shards is not None:
            kept["shards"].append(part.shards)
        if reader.rows is not None:
            kept["rows"].append(_given_rows(reader.rows(batch), part.size))
        elif part.inputs is not None:
            inputs = _counts(part.inputs) if part.texts else part.inputs
            kept["sides"].append(_projected(inputs, projections, seed))
        for name, parts in kept.items():
            if parts and len(parts) != len(sizes) + 1:
                raise ValueError(
                    f"batch {number} differs from those before: {name} are in some batches only; "
                    "pass xy=, a function from a batch to its inputs and labels"
                )
        sizes.append(part.size)
        seen += part.size
        if seen >= most:
            whole = False
            break
    columns = {name: _joined(parts, name) for name, parts in kept.items() if parts}
    marks = columns.pop("marks", np.zeros(0, np.int64))
    return Epoch(np.array(sizes, np.int64), marks, **columns, whole=whole, named=named, unlabelled=unlabelled)


def parted(batch: Any, pair: tuple[Any, Any] | None = None) -> Batch:
    """Take a batch apart: a pair, a dictionary, or inputs alone; of many examples, or of one.

    One example is told from a batch by its label: a single number or string.

    >>> parted((np.zeros((4, 2)), [0, 1, 0, 1])).size, parted({"x": [1.0, 2.0], "label": 3}).size
    (4, 1)
    """
    names = shards = tokens = None
    if pair is not None:
        x, y = pair
    elif isinstance(batch, Mapping):
        fields = dict(batch)
        names, shards = fields.pop(IDENTITY, None), fields.pop(SHARD, None)
        tokens = fields.get(TOKENS)
        label = next((name for name in fields if str(name).lower().split(".")[-1] in LABELS), None)
        y = fields.pop(label) if label is not None else None
        x = [value for value in fields.values() if value is not None] if tokens is None else tokens
        if tokens is not None and y is not None and _shape(y) == _shape(tokens):
            y = None  # the labels of a language model are its tokens
    elif isinstance(batch, list | tuple) and not _is_numbers(batch):
        if len(batch) > 2:
            raise ValueError(
                f"a batch of {len(batch)} parts: which are inputs, and which labels? Pass xy=, e.g. "
                "xy=lambda batch: (batch[0], batch[1])"
            )
        x, y = batch[0], batch[1] if len(batch) == 2 else None
    else:
        x, y = batch, None
    labels = None if y is None or y is False else on_host(y)
    single = labels is not None and labels.ndim == 0
    if single and labels is not None:
        labels = labels[None]
    inputs, texts = _inputs(x, single, None if labels is None else len(labels))
    if labels is not None and labels.ndim > 1:
        labels = labels.reshape(len(labels), -1)
        labels = labels[:, 0] if labels.shape[1] == 1 else labels
    size = len(labels) if labels is not None else len(inputs) if inputs is not None else 0
    if labels is None and inputs is None:
        raise ValueError(
            f"a batch of type {type(batch).__name__} holds neither numbers nor labels that audit knows; pass "
            "xy=, e.g. xy=lambda batch: (batch['image'], batch['label'])"
        )
    if inputs is not None and len(inputs) != size:
        raise ValueError(
            f"a batch with {len(inputs)} inputs and {size} labels; pass xy= to say which is which"
        )
    return Batch(
        size,
        inputs,
        labels,
        names=None if names is None else _column(names, size, "names"),
        shards=None if shards is None else _column(shards, size, "shards"),
        texts=texts or tokens is not None,
        unlabelled=y is False or tokens is not None,
    )


def marks_of(part: Batch) -> Marks:
    """64 bits that tell an example from others: of its name, or of its input and label."""
    if part.names is not None:
        return np.array([hash(name) for name in part.names.tolist()], np.int64)
    if part.inputs is None:
        return np.array([hash(label) for label in _list(part.labels)], np.int64)
    labels = _list(part.labels) if part.labels is not None else [None] * part.size
    if part.inputs.dtype.kind in "OU":
        return np.array([hash(pair) for pair in zip(part.inputs.tolist(), labels, strict=True)], np.int64)
    whole = np.ascontiguousarray(part.inputs)
    return np.array([hash((x.tobytes(), y)) for x, y in zip(whole, labels, strict=True)], np.int64)


@contextmanager
def left_alone(loader: Any) -> Iterator[None]:
    """Put back every random state that iterating ``loader`` may use, and the loader's own epoch if it can."""
    torch: Any = sys.modules.get("torch")
    ours = all(hasattr(loader, name) for name in ("state_dict", "load_state_dict", "epoch"))
    state = loader.state_dict() if ours else None
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    drawn = [(each, each.get_state()) for each in _generators(loader)]
    cpu = torch.get_rng_state() if torch is not None else None
    cuda = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for generator, before in drawn:
            generator.set_state(before)
        if torch is not None:
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
        if state is not None:
            loader.load_state_dict(state)


def _generators(loader: Any) -> list[Any]:
    """The torch generators of the loader, its samplers and its data."""
    owners = [loader]
    for name in ("sampler", "batch_sampler", "dataset"):
        owner = getattr(loader, name, None)
        owners += [owner, getattr(owner, "sampler", None)]
    found = {id(g): g for g in (getattr(owner, "generator", None) for owner in owners)}
    return [g for g in found.values() if hasattr(g, "get_state") and hasattr(g, "set_state")]


def _inputs(x: Any, single: bool, size: int | None) -> tuple[Array | None, bool]:
    """Inputs as (b, …) numbers or an array of texts; None if there is nothing to be seen of them."""
    values = x if isinstance(x, list | tuple) and not _is_numbers(x) else [x]
    if isinstance(x, list | tuple) and not single and size is not None and len(x) == size and size != 1:
        values = [_plain(x)]  # a list of the examples' inputs, not of fields
    found = []
    for value in values:
        array = _plain(value)
        if array is None or array.dtype.kind not in "fbiuU":
            continue
        array = array[None] if single else array
        if array.ndim and (size is None or len(array) == size):
            found.append(array)
    texts = [array for array in found if array.dtype.kind == "U"]
    if texts and len(texts) == len(found):
        return texts[0], True
    found = [array.reshape(len(array), -1) for array in found if array.dtype.kind != "U"]
    if not found or len({len(array) for array in found}) > 1:
        return None, False
    return (found[0] if len(found) == 1 else np.concatenate(found, axis=1)), False


def _projected(inputs: Array, projections: dict[int, Rows], seed: int) -> Rows:
    """A few numbers of each input: random projections, the same for all batches."""
    flat = inputs.reshape(len(inputs), -1).astype(np.float32)
    dim = flat.shape[1]
    if projections and dim not in projections:
        raise ValueError(
            f"inputs of {dim} numbers, where others had {next(iter(projections))}: pass xy=, a function from "
            "a batch to inputs of one size and labels; xy=lambda batch: (None, labels) goes by labels alone"
        )
    if dim not in projections:
        draw = rng(seed, 0, "audit.inputs").standard_normal((dim, SIDES), np.float32)
        projections[dim] = np.eye(dim, dtype=np.float32) if dim <= SIDES else draw
    return flat @ projections[dim]


def _counts(texts: Array) -> Rows:
    """How often words, or tokens, occur in each text."""
    counts = np.zeros((len(texts), BUCKETS), np.float32)
    for row, text in zip(counts, texts, strict=True):
        words = [zlib.crc32(word.encode()) for word in text.split()] if texts.dtype.kind == "U" else text
        np.add.at(row, np.asarray(words, np.int64) % BUCKETS, 1)
    return counts


def _plain(value: Any) -> Array | None:
    """An array of what was given; None if that makes none."""
    try:
        return on_host(value)
    except (ValueError, TypeError):  # a ragged list
        return None


def _shape(value: Any) -> tuple[int, ...] | None:
    array = _plain(value)
    return None if array is None else array.shape


def _is_numbers(values: Sequence[Any]) -> bool:
    return bool(len(values)) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _list(column: Array | None) -> list[Any]:
    if column is None:
        return []
    return column.tolist() if column.ndim == 1 else [row.tobytes() for row in column]


def _column(values: Any, size: int, name: str) -> Array:
    """One value an example."""
    column = on_host([values] if isinstance(values, str | bytes | int) else values)
    column = column[None] if column.ndim == 0 else column
    if column.ndim != 1 or len(column) != size:
        raise ValueError(f"{name} of shape {column.shape} for a batch of {size} examples: pass one for each")
    return column


def _given_rows(rows: Any, size: int) -> Rows:
    array = on_host(rows)
    if array.ndim != 2 or len(array) != size or array.dtype.kind not in "fbiu":
        raise ValueError(
            f"rows(batch) of shape {array.shape} and dtype {array.dtype} for a batch of {size} examples: "
            "return one row of numbers for each"
        )
    return array.astype(np.float32)


def _joined(parts: list[Array], name: str) -> Array:
    try:
        return np.concatenate(parts)
    except ValueError as error:
        raise ValueError(f"{name} of batches do not fit together: {error}") from error
