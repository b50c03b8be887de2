"""Rows that are known before training: what an example is labelled, times what it looks like."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, flag, seed_of, shown, whole_number
from wellorder._order import Rows, rng

Floats = npt.NDArray[np.float32]
Say = Callable[[int, int], None]
AT_ONCE = 1 << 24
"""Numbers that are looked at together, of inputs or of a random matrix: 64 MB as float32."""
NUMBERS = "pass numbers, one example after the other; texts as token counts (a sparse matrix)"
NO_LABEL = "y holds NaN or infinity: pass a label for each example, or leave those examples out"
NAMES = (str, int, np.integer, np.bool_)
"""What a label of mixed kinds may be."""
SOME = 4096
"""Examples by which a column's offset and spread are judged."""
FAR, UNEVEN = 1e3, 1e3
"""A column's offset by its spread from which on it is taken off first; and its spread by other columns'."""
ROUNDING = 2.0**-20
"""A projection's spread by its size, at most, where inputs are all equal."""
LONG = 1 << 31
"""Products from which on progress is shown."""
WITHOUT_LABELS = (
    "features: no labels were given. Rows without the label can mislead: on data stored by class, orders by "
    "such rows trained worse than no ordering. Pass y if there is one; y=False if there is none."
)


def features(x: Any, y: Any = None, *, size: int = 512, seed: int = 0, progress: bool | None = None) -> Rows:
    """Make rows for `balanced` or ``ordered(loader, rows=…)`` from inputs and labels: no model needed.

    A gradient of the last layer is (prediction − label) ⊗ features; before training its directions are those
    of label ⊗ input. So a row is the one-hot label times [1, a few random projections of the input], all
    scaled to unit variance: orders made from it keep every stretch of an epoch balanced in labels, and in
    inputs within a label.

    Parameters
    ----------
    x
        Inputs: an array or tensor (n, …) of any shape, a scipy sparse matrix (token counts of texts), or None
        for labels alone (stratified shuffling).
    y
        Labels: n integers, strings or booleans; an (n, classes) array of 0 and 1 for several labels each, or
        a sparse matrix of them;
        real targets (n,) or (n, d); False to say that there are none. Left out, a warning tells what that
        costs.
    size
        Numbers in a row, at most; with many classes there are fewer projections, and classes may share
        numbers.
    seed
        Decides the projections.
    progress
        Whether to show progress on the terminal; by default where it takes long.

    Returns
    -------
    rows
        float32, (n, at most ``size``). Costs O(n·size) memory, and O(n·d·projections) time, chunk by chunk;
        beside it the d·projections numbers of a random matrix, drawn in parts where x is sparse.

    >>> import numpy as np
    >>> x, y = np.random.default_rng(0).normal(size=(6, 3, 2)), [0, 1, 0, 2, 1, 0]
    >>> features(x, y, size=12).shape, features(None, y).shape
    ((6, 12), (6, 3))
    """
    whole_number("size", size, least=1)
    seed_of(seed)
    if progress is not None:
        flag("progress", progress)
    if x is None and (y is None or y is False):
        raise ValueError("x=None, y=None: pass inputs, labels, or both")
    marks = None if y is None or y is False else _labels(y, size, seed)
    if x is None:
        return marks  # type: ignore[return-value]
    if y is None:
        warnings.warn(WITHOUT_LABELS, UserWarning, stacklevel=2)
    if hasattr(x, "tocsr") and (len(x.shape) != 2 or x.dtype.kind not in "fiub"):
        raise ValueError(
            f"x of shape {x.shape} and dtype {x.dtype}: pass a sparse matrix of numbers, a row an example"
        )
    x = x.tocsr() if hasattr(x, "tocsr") else _inputs(x)
    n = x.shape[0]
    if marks is not None and len(marks) != n:
        raise ValueError(f"y has {len(marks)} labels, x has {n} examples; pass one label for each")
    if not n:
        raise ValueError("x is empty: pass at least one example")
    labels = 1 if marks is None else marks.shape[1]
    wanted = max(1, size // labels)
    sides = _projected(x, n, wanted - (marks is not None), seed, progress)
    if marks is None:
        return sides
    sides = np.concatenate([np.ones((n, 1), np.float32), sides], axis=1)
    return (marks[:, :, None] * sides[:, None, :]).reshape(n, -1)


def _labels(y: Any, size: int, seed: int) -> Floats:
    """One-hot labels, several labels, or standardised targets, as (n, at most size) numbers."""
    if hasattr(y, "tocsr"):  # several labels of many
        if len(y.shape) > 1 and y.shape[1] > size:
            many = y.tocsr()
            if not np.isfinite(many.data).all():
                raise ValueError(NO_LABEL)
            return np.asarray(many @ _mix(y.shape[1], size, seed), np.float32)
        y = y.toarray()
    array = array_of("y", y, cure="pass integers, strings, 0/1 columns or real targets", kinds="fbiuUSO")
    if array.ndim == 0 or not array.size:
        raise ValueError(f"y={shown(y)}: pass one label for each example")
    if array.dtype.kind == "O" and not all(isinstance(label, NAMES) for label in array.ravel()):
        raise ValueError(f"y={shown(y)}: pass integers, strings, 0/1 columns or real targets")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(NO_LABEL)
    if array.ndim == 2 and array.shape[1] == 1:  # one column is one label for each
        array = array[:, 0]
    whole = array.dtype.kind == "f" and array.ndim == 1 and bool((array == np.round(array)).all())
    whole = whole and float(np.abs(array).max()) < 2**53  # beyond, every number is whole
    if array.ndim == 1 and (array.dtype.kind in "biuUSO" or (whole and len(np.unique(array)) <= 1000)):
        count, places = _numbered(array)
        if count > size:  # classes share numbers: each has a few random signs instead of a place of its own
            plus = rng(seed, 0, "features.labels").random((count, size)) < 0.5
            signs = np.where(plus, 1, -1).astype(np.float32) / np.float32(np.sqrt(size))
            return signs[places]
        return np.eye(count, dtype=np.float32)[places]
    if array.dtype.kind not in "fbiu":
        raise ValueError(f"y of dtype {array.dtype}: pass integers, strings, 0/1 columns or real targets")
    flat = array.reshape(len(array), -1)
    if not np.isin(flat, (0, 1)).all():
        flat = _standardised(flat.astype(np.float64))
        flat = np.concatenate([np.ones((len(flat), 1)), flat], axis=1)
    numbers: Floats = flat.astype(np.float32)
    return numbers @ _mix(numbers.shape[1], size, seed) if numbers.shape[1] > size else numbers


def _numbered(labels: npt.NDArray[Any]) -> tuple[int, npt.NDArray[np.intp]]:
    """How many different labels there are, and the number of each one's."""
    try:
        names, places = np.unique(labels, return_inverse=True)
        return len(names), places
    except TypeError:  # numbers and words, which have no order
        numbers = {name: at for at, name in enumerate(sorted(set(labels), key=lambda n: (str(type(n)), n)))}
        return len(numbers), np.array([numbers[label] for label in labels])


def _standardised(columns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Columns of mean 0 and variance 1, or of zeros; whatever their size, a square does not overflow."""
    largest = np.abs(columns).max(axis=0)
    columns = columns / np.where(largest > 0, largest, 1)
    spread = columns.std(axis=0)
    standardised: npt.NDArray[np.float64] = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return standardised


def _mix(columns: int, size: int, seed: int) -> Floats:
    """Random numbers by which many columns of labels become ``size``."""
    mix = rng(seed, 0, "features.labels").standard_normal((columns, size), np.float32)
    return mix / np.float32(np.sqrt(size))


def _projected(
    x: Any, n: int, count: int, seed: int, progress: bool | None, at_once: int = AT_ONCE
) -> Floats:
    """Random projections of inputs, each brought to mean 0 and variance 1 over the data."""
    if count <= 0:
        return np.zeros((n, 0), np.float32)
    dim = int(np.prod(x.shape[1:])) if hasattr(x, "shape") else np.asarray(x[0]).size
    draw, sparse = rng(seed, 0, "features"), hasattr(x, "tocsr")
    products = (x.nnz + dim if sparse else n * dim) * min(dim, count)
    show = products > LONG if progress is None else progress
    say = _say if show else _quiet
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is named below
        if sparse:
            out = _sparse_times(x.astype(np.float32), count, draw, at_once, say)
        else:
            few = dim <= count
            mix = np.eye(dim, dtype=np.float32) if few else draw.standard_normal((dim, count), np.float32)
            out = _dense_times(x, n, mix, at_once, say)
    if not np.isfinite(out).all():
        bad = int(np.argmin(np.isfinite(out).all(axis=1)))
        raise ValueError(f"x[{bad}] holds NaN or infinity (or numbers beyond float32); fill or leave it out")
    mean = out.mean(axis=0, dtype=np.float64)
    out -= mean.astype(np.float32)
    spread = out.std(axis=0, dtype=np.float64).astype(np.float32)
    # Equal inputs differ by the rounding of their products, which is no spread.
    least = 0.0 if dim <= count else ROUNDING * math.sqrt(np.square(mean).mean())
    out /= np.where(spread > least, spread, np.float32(np.inf))
    return out


def _dense_times(x: Any, n: int, mix: Floats, at_once: int, say: Say) -> Floats:
    """Products with a matrix, some examples at a time."""
    dim = len(mix)
    width = max(1, min(n, at_once // max(dim, 1)))
    out = np.empty((n, mix.shape[1]), np.float32)
    offset = _offset(x, width)
    for at in range(0, n, width):
        say(at, n)
        block = _rows(x, at, at + width, offset)
        if block.shape[1] != dim:
            raise ValueError(f"x[{at}:] has {block.shape[1]} numbers an example, the first had {dim}")
        out[at : at + width] = block @ mix
    say(n, n)
    return out


def _sparse_times(x: Any, count: int, draw: np.random.Generator, at_once: int, say: Say) -> Floats:
    """Products with a random matrix, some columns at a time: hashed words have a million of them."""
    n, dim = x.shape
    if dim <= count:
        return np.asarray(x.toarray())
    columns, width = x.tocsc(), max(1, at_once // count)
    out = np.zeros((n, count), np.float32)
    for at in range(0, dim, width):
        say(n * at // dim, n)
        block = columns[:, at : at + width].tocsr()
        out += block @ draw.standard_normal((block.shape[1], count), np.float32)
    say(n, n)
    return out


def _rows(x: Any, start: int, stop: int, offset: npt.NDArray[np.float64] | None) -> Floats:
    array = array_of("x", x[start:stop], cure=NUMBERS)
    array = array.reshape(len(array), -1)
    return (array if offset is None or array.shape[1] != len(offset) else array - offset).astype(np.float32)


def _offset(x: Any, width: int) -> npt.NDArray[np.float64] | None:
    """What to take off each column, where float32 would see little else; by the first examples.

    Warns of a table in which one column varies so much more than the others that it decides every projection.
    """
    first = array_of("x", x[: min(width, SOME)], cure=NUMBERS)
    table = first.ndim == 2 and first.shape[1] > 1
    first = first.reshape(len(first), -1)
    if first.dtype.kind == "f" and not np.isfinite(first).all():
        return None  # refused with its place when all are looked at
    with np.errstate(over="ignore"):
        mean, spread = first.mean(axis=0, dtype=np.float64), first.std(axis=0, dtype=np.float64)
    usual = np.median(spread[spread > 0]) if (spread > 0).any() else 0.0
    if table and spread.max(initial=0.0) > UNEVEN * usual > 0:
        warnings.warn(
            f"x: column {int(spread.argmax())} varies {spread.max() / usual:.0f} times as much as most "
            "and decides all projections; bring columns to one scale first, e.g. with StandardScaler",
            UserWarning,
            stacklevel=4,
        )
    return mean if (np.abs(mean) > FAR * np.maximum(spread, usual)).any() else None


def _inputs(x: Any) -> Any:
    """Inputs that can be asked for their shape and for a part of them; lists become arrays."""
    sparse = str(getattr(x, "layout", "torch.strided")) != "torch.strided"
    if sparse or not isinstance(getattr(x, "shape", None), tuple) or not hasattr(x, "__getitem__"):
        x = array_of("x", x, cure=NUMBERS)
    if not len(x.shape) or not np.prod(x.shape[1:]):
        raise ValueError(f"x of shape {tuple(x.shape)}: pass an array (n, …), one example after the other")
    return x


def on_host(array: Any, name: str = "values") -> npt.NDArray[Any]:
    """An array of NumPy from anything like one; tensors come to the host, small floats as float32."""
    return array_of(name, array, cure="pass an array of numbers or words", kinds="biufcmMOSUT")


def _say(done: int, n: int) -> None:
    end = "\n" if done == n else ""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be nobody to tell
        sys.stderr.write(f"\rfeatures: {done:,} of {n:,} examples{end}")
        sys.stderr.flush()


def _quiet(done: int, n: int) -> None:
    pass
