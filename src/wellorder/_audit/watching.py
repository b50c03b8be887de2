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
                raise ValueError(
                    f"xy(batch) returned {type(pair).__name__} for a {type(batch).__name__} of the order: "
                    "return (inputs, labels)"
                )
        part = parted(batch, pair)
        names = part.names if self.key is None else _column(self.key(batch), part.size, "key(batch)")
        shards = (
            part.shards if self.shards is None else _column(self.shards(batch), part.size, "shards(batch)")
        )
        return replace(part, names=names, shards=shards)


def watch(
    batches: Iterable[Any], reader: Reader, projections: dict[str, Rows], most: int, seed: int
) -> Epoch:
    """Iterate once over ``batches``, and keep a few numbers of each example; at most ``most`` of them."""
    sizes: list[int] = []
    kept: dict[str, list[Array]] = {"marks": [], "labels": [], "sides": [], "rows": [], "shards": []}
    seen, whole = 0, True
    named = unlabelled = False
    for number, batch in enumerate(batches):
        if seen >= most:
            whole = False
            break
        part = reader.take_apart(batch)
        if not part.size:
            continue
        kept["marks"].append(marks_of(part))
        named, unlabelled = part.names is not None, part.unlabelled
        if part.labels is not None:
            long = part.labels.ndim > 1 and part.labels.shape[1] > SIDES  # a mask, say
            kept["labels"].append(
                _projected(part.labels, "labels", projections, seed) if long else part.labels
            )
        if part.shards is not None:
            kept["shards"].append(part.shards)
        if reader.rows is not None:
            kept["rows"].append(_given_rows(reader.rows(batch), part.size))
        elif part.inputs is not None:
            inputs = _counts(part.inputs) if part.texts else part.inputs
            kept["sides"].append(_projected(inputs, "inputs", projections, seed))
        for name, parts in kept.items():
            if parts and len(parts) != len(sizes) + 1:
                raise ValueError(
                    f"batch {number} differs from those before: {name} are in some batches only; "
                    "pass xy=, a function from a batch to its inputs and labels"
                )
        sizes.append(part.size)
        seen += part.size
    columns = {name: _joined(parts, name) for name, parts in kept.items() if parts}
    marks = columns.pop("marks", np.zeros(0, np.int64))
    return Epoch(np.array(sizes, np.int64), marks, **columns, whole=whole, named=named, unlabelled=unlabelled)


def parted(batch: Any, pair: Any = None) -> Batch:
    """Take a batch apart: a pair, a dictionary, or inputs alone; of many examples, or of one.

    One example is told from a batch by its label, a single number or string, or by being a single text.

    >>> parted((np.zeros((4, 2)), [0, 1, 0, 1])).size, parted({"x": [1.0, 2.0], "label": 3}).size
    (4, 1)
    """
    names = shards = tokens = None
    if pair is not None:
        fields, y = [pair[0]], pair[1]
    elif isinstance(batch, Mapping):
        named = dict(batch)
        names, shards = named.pop(IDENTITY, None), named.pop(SHARD, None)
        label = next((name for name in named if str(name).lower().split(".")[-1] in LABELS), None)
        y = named.pop(label) if label is not None else None
        tokens = named.get(TOKENS)
        fields = list(named.values()) if tokens is None else [tokens]
    elif isinstance(batch, list | tuple) and not _is_numbers(batch):
        if len(batch) > 2:
            raise ValueError(
                f"a batch of {len(batch)} parts: which are inputs, and which labels? Pass xy=, e.g. "
                "xy=lambda batch: (batch[0], batch[1])"
            )
        fields, y = [batch[0]], batch[1] if len(batch) == 2 else None
    else:
        fields, y = [batch], None
    labels = None if y is None or y is False else on_host(y, "labels")
    arrays = [array for array in map(_plain, fields) if array is not None and array.dtype.kind in "fbiuU"]
    language = tokens is not None or (labels is not None and _are_tokens(arrays, labels))
    if language and labels is not None and labels.shape == arrays[0].shape:
        labels = None  # the labels of a language model are its tokens
    single = all(array.ndim == language for array in arrays) if labels is None else labels.ndim == 0
    if single:
        labels, arrays = None if labels is None else labels[None], [array[None] for array in arrays]
    inputs, texts = _joint(arrays, None if labels is None else len(labels))
    if labels is None and inputs is None:
        raise ValueError(
            f"a batch of type {type(batch).__name__} holds neither numbers nor labels that audit knows; pass "
            "xy=, e.g. xy=lambda batch: (batch['image'], batch['label'])"
        )
    if labels is not None and labels.ndim > 1:
        labels = labels.reshape(len(labels), -1)
        labels = labels[:, 0] if labels.shape[1] == 1 else labels
    size = len(labels) if labels is not None else 0 if inputs is None else len(inputs)
    return Batch(
        size,
        inputs,
        labels,
        names=None if names is None else _column(names, size, "names"),
        shards=None if shards is None else _column(shards, size, "shards"),
        texts=texts or language,
        unlabelled=y is False or language,
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
    """Put back every random state that iterating ``loader`` may use, and the epoch that it opens next."""
    torch: Any = sys.modules.get("torch")
    saves = all(hasattr(loader, name) for name in ("state_dict", "load_state_dict", "epoch"))
    ours = saves and not hasattr(loader, "set_epoch")
    both = [owner for owner in _owners(loader) if hasattr(owner, "set_epoch") and hasattr(owner, "epoch")]
    counted = [(owner, owner.epoch) for owner in both]
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
        for owner, epoch in counted:
            owner.set_epoch(epoch)
        if state is not None:
            loader.load_state_dict(state)


def _owners(loader: Any) -> list[Any]:
    """The loader, its samplers and its data, each once."""
    owners = [loader]
    for name in ("sampler", "batch_sampler", "dataset"):
        owner = getattr(loader, name, None)
        owners += [owner, getattr(owner, "sampler", None)]
    return list({id(owner): owner for owner in owners if owner is not None}.values())


def _generators(loader: Any) -> list[Any]:
    """Their torch generators."""
    found = {id(g): g for g in (getattr(owner, "generator", None) for owner in _owners(loader))}
    return [g for g in found.values() if hasattr(g, "get_state") and hasattr(g, "set_state")]


def _are_tokens(inputs: list[Array], labels: Array) -> bool:
    """Whether inputs and labels are whole numbers of the same shape, as texts and their next tokens are."""
    alike = len(inputs) == 1 and inputs[0].shape == labels.shape and labels.ndim == 2
    return alike and inputs[0].dtype.kind in "iu" and labels.dtype.kind in "iu"


def _joint(arrays: list[Array], size: int | None) -> tuple[Array | None, bool]:
    """All inputs as one array (b, …), and whether they are texts; None if there is nothing to be seen."""
    arrays = [array for array in arrays if array.ndim and (size is None or len(array) == size)]
    numbers = [array for array in arrays if array.dtype.kind != "U"]
    if not arrays or len({len(array) for array in numbers}) > 1:
        return None, False
    if not numbers:
        return max(arrays, key=lambda array: array.dtype.itemsize), True  # of several texts the longest
    if len(numbers) == 1:
        return numbers[0], False
    return np.concatenate([array.reshape(len(array), -1) for array in numbers], axis=1), False


def _projected(values: Array, what: str, projections: dict[str, Rows], seed: int) -> Rows:
    """A few numbers of each input: random projections, the same for all batches."""
    flat = values.reshape(len(values), -1).astype(np.float32)
    dim = flat.shape[1]
    if what not in projections:
        draw = rng(seed, 0, f"audit.{what}").standard_normal((dim, SIDES), np.float32)
        projections[what] = np.eye(dim, dtype=np.float32) if dim <= SIDES else draw
    if len(projections[what]) != dim:
        raise ValueError(
            f"{what} of {dim} numbers, where others had {len(projections[what])}: pass xy=, a function from "
            "a batch to inputs of one size and labels; xy=lambda batch: (None, labels) goes by labels alone"
        )
    return flat @ projections[what]


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


def _is_numbers(values: Sequence[Any]) -> bool:
    return bool(len(values)) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _list(column: Array | None) -> list[Any]:
    if column is None:
        return []
    return column.tolist() if column.ndim == 1 else [row.tobytes() for row in column]


def _column(values: Any, size: int, name: str) -> Array:
    """One value an example."""
    column = on_host([values] if isinstance(values, str | bytes | int) else values, name)
    column = column[None] if column.ndim == 0 else column
    if column.ndim != 1 or len(column) != size:
        raise ValueError(f"{name} of shape {column.shape} for a batch of {size} examples: pass one for each")
    return column


def _given_rows(rows: Any, size: int) -> Rows:
    array = on_host(rows, "rows(batch)")
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
        raise ValueError(f"{name} of batches do not fit together: {error}; make them alike") from error
