"""Watch a loader or take an order, and say how it compares with a full shuffle of the same examples."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, shown, whole_number
from wellorder._audit.judging import (
    Straying,
    labels_along,
    most_by_chance,
    norms_along,
    norms_of,
    resemblance,
    shard_parts,
    straying,
    visits,
)
from wellorder._audit.result import Audit
from wellorder._audit.watching import XY, Epoch, Reader, left_alone, watch
from wellorder._kernels.features import features, on_host
from wellorder._kernels.signals import dense
from wellorder._order import Rows

SIZE = 128
"""Numbers in a row, where rows are made here."""
WITHOUT_LABELS = (
    "no labels were found, and rows without the label can mislead: a bad order may look good here. Pass xy=, "
    "a function from a batch to (inputs, labels); labels of False say that there are none."
)


def audit(
    order: Any,
    rows: Any = None,
    *,
    labels: Any = None,
    shards: Any = None,
    epochs: int | None = None,
    every: int | None = None,
    xy: XY | None = None,
    key: Callable[[Any], Any] | None = None,
    before_epoch: Callable[[int], object] | None = None,
    most: int = 1_000_000,
    shuffles: int = 8,
    seed: int = 0,
) -> Audit:
    """Say how the order of a loader compares with a full shuffle of the same examples.

    The order error at the ends of batches, relative to that of full shuffles: 1 is as good as a shuffle, less
    is better. Beside it: does every epoch have the same order, do examples come twice or never, do labels or
    norms drift along the epoch. A loader is iterated as training would, so that an epoch costs its reading;
    nothing is trained. Every global random state, and those of torch generators, are put back afterwards.
    About 0.8 kB are kept of an example.

    Parameters
    ----------
    order
        A loader: anything that can be iterated over and gives batches or examples, as pairs, dictionaries or
        arrays; or a function that makes one, called for every epoch. Or an order: an array of unit numbers,
        or several for several epochs.
    rows
        Of an order: the units' rows (n, k), e.g. `features(x, y)`. Of a loader: a function from a batch to
        the rows of its examples; left out, they are made by `features` from inputs and labels.
    labels
        Of an order: the units' labels. Rows are made of them if none are given.
    shards
        Which shard each example lies in: of an order, one name or number a unit; of a loader, a function
        from a batch. WebDataset's ``__url__`` is found without it.
    epochs
        How many epochs of a loader to watch; 2 unless given, 1 of an iterator.
    every
        Measure at multiples of this many examples; by default where the loader's batches end, or at every
        step of an order.
    xy
        From a batch to its inputs and labels, where they are not found: ``lambda b: (b["image"], b["cls"])``.
        None for the inputs goes by labels alone; False for the labels says that there are none.
    key
        From a batch to a name or number of each example, by which it is recognised; inputs are compared
        unless given. Needed where inputs are augmented at random.
    before_epoch
        Called with 0, 1, … before the epochs, as training does: ``loader.sampler.set_epoch``.
    most
        Stop an epoch after so many examples.
    shuffles
        How many shuffles to compare with.
    seed
        Decides these shuffles.

    >>> import numpy as np
    >>> print(audit(np.arange(1000), labels=np.arange(1000) // 100))   # stored by class, never shuffled
    9.1 times a full shuffle's order error: a poor order (1 epoch of 1,000 examples).
    Labels drift along the epoch: ...
    """
    seed_of(seed)
    for name, value in (("every", every), ("epochs", epochs)):
        if value is not None:
            whole_number(name, value, least=1)
    whole_number("most", most, least=2)
    whole_number("shuffles", shuffles, least=2, cure="pass some to compare with")
    for name, call in (("xy", xy), ("key", key), ("before_epoch", before_epoch)):
        if call is not None and not callable(call):
            raise ValueError(f"{name}={shown(call)}: pass a function")
    start = time.perf_counter()
    known: int | None = None
    notes: list[str] = []
    if labels is not None or (rows is not None and not callable(rows)) or _is_order(order):
        watched, known = _taken(order, rows, labels, shards, every)
    else:
        reader = Reader(xy, key, _function("shards", shards), _function("rows", rows))
        watched = _watched(order, reader, epochs, before_epoch, most, seed)
        known = _length(order)
        first = watched[0]
        if reader.rows is None and first.labels is None and not first.unlabelled:
            notes.append(WITHOUT_LABELS)
            warnings.warn(f"audit: {WITHOUT_LABELS}", UserWarning, stacklevel=2)
        if every is not None:
            watched = [_cut(epoch, every) for epoch in watched]
    return _judged(watched, known, notes, (seed, shuffles), start)


def _taken(order: Any, rows: Any, labels: Any, shards: Any, every: int | None) -> tuple[list[Epoch], int]:
    """An order, or several, of units whose rows are known."""
    if callable(rows) or callable(labels) or callable(shards):
        raise ValueError("rows, labels and shards of an order are arrays, one entry a unit; pass those")
    marks = None if labels is None else on_host(labels, "labels")
    if rows is None and marks is None:
        raise ValueError("order without rows: pass rows=features(x, y), or labels=, or a loader")
    array = features(None, marks) if rows is None else on_host(rows, "rows")
    if array.ndim != 2 or not array.size:
        raise ValueError(f"rows of shape {array.shape}: pass a 2-D array (n, k), one row for each unit")
    n = len(array)
    table = dense(array, n, "rows").astype(np.float32)
    where = None if shards is None else on_host(shards, "shards")
    for name, column in (("labels", marks), ("shards", where)):
        if column is not None and (
            column.ndim == 0 or len(column) != n or (column.ndim > 1 and name == "shards")
        ):
            raise ValueError(f"{name} of shape {column.shape}: pass one for each of the {n} rows")
    found = []
    for steps in _orders(order):
        if steps.min() < 0 or steps.max() >= n:
            raise ValueError(f"order holds units outside 0..{n - 1}: there are {n} rows; pass one row a unit")
        sizes = _sizes(len(steps), every or 1)
        epoch = Epoch(
            sizes,
            steps,
            labels=None if marks is None else marks[steps],
            rows=table[steps],
            shards=None if where is None else where[steps],
            named=True,
        )
        found.append(epoch)
    return found, n


def _watched(
    loader: Any,
    reader: Reader,
    epochs: int | None,
    before_epoch: Callable[[int], object] | None,
    most: int,
    seed: int,
) -> list[Epoch]:
    """Iterate over a loader, and leave it as it was."""
    makes = callable(loader) and not isinstance(loader, Iterable)
    if not makes:
        _iterable(loader)
    once = not makes and iter(loader) is loader if hasattr(loader, "__next__") else False
    if once and (epochs or 1) > 1:
        raise ValueError(
            f"epochs={epochs}: an iterator, as this order is, gives one; pass what it was made from, "
            "or a function that makes it anew"
        )
    found: list[Epoch] = []
    projections: dict[str, Rows] = {}
    with left_alone(loader):
        for epoch in range(epochs or (1 if once else 2)):
            if before_epoch is not None:
                before_epoch(epoch)
            seen = watch(_iterable(loader()) if makes else loader, reader, projections, most, seed)
            if len(seen.marks) < 2:
                raise ValueError(
                    f"order: its epoch {epoch} has {len(seen.marks)} examples; pass a loader of two or more; "
                    "an iterator that is used up gives none: pass epochs=1, or a function that makes it"
                )
            found.append(seen)
    return found


def _judged(
    epochs: list[Epoch],
    known: int | None,
    notes: list[str],
    draws: tuple[int, int],
    start: float,
) -> Audit:
    seed, shuffles = draws
    errors: list[Straying] = []
    by_label, parts, norms, mixes = [], [], [], []
    chance = {"norms": 0.0, "labels": 0.0}
    for at, epoch in enumerate(epochs):
        rows = rows_of(epoch)
        how = {"seed": seed + at, "shuffles": shuffles}
        errors.append(straying(rows, epoch.sizes, **how))
        lengths = norms_of(rows)
        norms.append(norms_along(lengths))
        chance["norms"] = max(chance["norms"], most_by_chance(_norm_drift, lengths, **how))
        places = _places(epoch.labels)
        if places is not None:
            by_label.append(straying(features(None, places, size=SIZE), epoch.sizes, **how).ratio)
            mixes.append(labels_along(places))
            chance["labels"] = max(chance["labels"], most_by_chance(_label_drift, places, **how))
        if epoch.shards is not None:
            middle = float(errors[-1].shuffles.mean()) or 1.0
            split = [
                straying(part, epoch.sizes, seed=seed, shuffles=2).own
                for part in shard_parts(rows, epoch.shards)
            ]
            parts.append([part / middle for part in split])
    marks = [epoch.marks for epoch in epochs]
    whole, named = all(epoch.whole for epoch in epochs), epochs[0].named
    twice, never = visits(marks, known if whole else None, named=named)
    if not whole:  # who did not come may come later
        never = [0] * len(never)
    alike = [resemblance(*pair) for pair in pairwise(marks)]
    same = bool(alike) and all(np.array_equal(marks[0], other) for other in marks[1:])
    if alike and not alike[0][0]:  # nobody was recognised; labels are, as they come
        same = _repeated_labels([_places(epoch.labels) for epoch in epochs])
    return Audit(
        ratio=float(np.mean([each.ratio for each in errors])),
        ratios=tuple(each.ratio for each in errors),
        shuffle_span=(min(e.span[0] for e in errors), max(e.span[1] for e in errors)),
        examples=tuple(len(each) for each in marks),
        batch=float(np.mean(np.concatenate([epoch.sizes for epoch in epochs]))),
        label_ratio=float(np.mean(by_label)) if by_label else None,
        shard_order=float(np.mean([p[0] for p in parts])) if parts else None,
        inside_shards=float(np.mean([p[1] for p in parts])) if parts else None,
        same_order=same,
        recognised=float(np.mean([share for share, _ in alike])) if alike else None,
        resemblance=float(np.mean([value for _, value in alike])) if alike else None,
        twice=tuple(twice),
        never=tuple(never),
        norm_drift=float(max(_away(each) for each in norms)),
        norm_drift_by_chance=chance["norms"],
        label_drift=float(max(each.max() for each in mixes)) if mixes else None,
        label_drift_by_chance=chance["labels"] if mixes else None,
        curves=tuple(tuple((each.curve / (each.shuffles.mean() or 1.0)).tolist()) for each in errors),
        shuffle_curve=tuple((errors[0].shuffle_curve / (errors[0].shuffles.mean() or 1.0)).tolist()),
        norms=tuple(tuple(each.tolist()) for each in norms),
        named=named,
        whole=whole,
        notes=tuple(notes),
        seconds=time.perf_counter() - start,
    )


def rows_of(epoch: Epoch) -> Rows:
    """The rows of an epoch's visits: those given, or label ⊗ projected inputs."""
    if epoch.rows is not None:
        if not np.isfinite(epoch.rows).all():
            raise ValueError("rows hold NaN or infinity; fill them, or leave those examples out")
        return epoch.rows
    y = False if epoch.labels is None else epoch.labels
    return features(epoch.sides, y, size=SIZE, progress=False)


def _places(labels: npt.NDArray[Any] | None) -> npt.NDArray[np.int64] | None:
    """Labels as numbers from 0; None where they are no classes."""
    if labels is None or labels.ndim != 1 or (labels.dtype.kind == "f" and (labels % 1).any()):
        return None
    names, places = np.unique(labels, return_inverse=True)
    return places if len(names) <= max(2, len(labels) // 2) else None


def _repeated_labels(epochs: Sequence[npt.NDArray[np.int64] | None]) -> bool:
    """Whether all epochs have more than one label, and the same labels in the same order."""
    first = epochs[0]
    if first is None or not first.max():
        return False
    return all(other is not None and np.array_equal(first, other) for other in epochs[1:])


def _norm_drift(norms: npt.NDArray[np.float64]) -> float:
    return _away(norms_along(norms))


def _label_drift(places: npt.NDArray[np.int64]) -> float:
    return float(labels_along(places).max())


def _away(values: npt.NDArray[np.float64]) -> float:
    return float(np.abs(values - 1).max())


def _sizes(n: int, every: int) -> npt.NDArray[np.int64]:
    sizes = np.full(-(-n // every), every, np.int64)
    sizes[-1] = n - every * (len(sizes) - 1)
    return sizes


def _cut(epoch: Epoch, every: int) -> Epoch:
    return replace(epoch, sizes=_sizes(len(epoch.marks), every))


def _is_order(order: Any) -> bool:
    """Whether this is an array of unit numbers, or a list of such."""
    if isinstance(order, list | tuple) and len(order) and isinstance(order[0], int | np.integer):
        return True
    return isinstance(order, np.ndarray) and order.dtype.kind in "iu" and order.ndim == 1


def _orders(order: Any) -> list[npt.NDArray[np.int64]]:
    several = isinstance(order, Sequence) and len(order) and not isinstance(order[0], int | np.integer)
    array = [on_host(each, "order") for each in order] if several else on_host(order, "order")
    found = array if isinstance(array, list) else list(array) if array.ndim == 2 else [array]
    for steps in found:
        if steps.ndim != 1 or steps.dtype.kind not in "iu" or len(steps) < 2:
            raise ValueError(
                f"order of shape {steps.shape} and dtype {steps.dtype}: pass a 1-D array of two or more unit "
                "numbers, or several of them; rows and labels belong to orders, not to loaders"
            )
    if not found:
        raise ValueError("order=[]: pass at least one order")
    return [steps.astype(np.int64) for steps in found]


def _iterable(loader: Any) -> Any:
    """Take what can be iterated over; a text is no loader, though it can."""
    several = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if isinstance(loader, str | bytes | type) or not several or getattr(loader, "ndim", 1) == 0:
        raise ValueError(
            f"order={type(loader).__name__}: pass a loader that can be iterated over, a function that makes "
            "one, or an order with rows="
        )
    return loader


def _function(name: str, value: Any) -> Callable[[Any], Any] | None:
    if value is not None and not callable(value):
        raise ValueError(f"{name}={type(value).__name__}: of a loader, pass a function from a batch")
    found: Callable[[Any], Any] | None = value
    return found


def _length(loader: Any) -> int | None:
    """How many examples an epoch should have, if the loader's sampler or data can tell."""
    for owner in ("sampler", "dataset"):
        try:
            return len(getattr(loader, owner))
        except (AttributeError, TypeError, NotImplementedError):
            continue
    return None
