"""Compare an epoch with shuffles of the same examples: how far it strays, and how it changes on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._measure import strayed
from wellorder._order import Order, Rows, rng

TENTHS = 10
POINTS = 100
AT_ONCE = 1 << 16
"""Rows that are summed up together."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Straying:
    """How far an epoch strays from its mean, and how far shuffles of the same examples do."""

    own: float
    shuffles: Floats
    curve: Floats
    shuffle_curve: Floats

    @property
    def ratio(self) -> float:
        """The order error relative to the shuffles' mean; 1 where nothing can stray."""
        middle = float(self.shuffles.mean())
        return self.own / middle if middle > 0 else 1.0

    @property
    def span(self) -> tuple[float, float]:
        """The shuffles' least and largest, relative to their mean."""
        middle = float(self.shuffles.mean())
        if middle <= 0:
            return 1.0, 1.0
        return float(self.shuffles.min()) / middle, float(self.shuffles.max()) / middle


def straying(rows: Rows, sizes: Ints, *, seed: int, shuffles: int) -> Straying:
    """Order error at the ends of batches of these sizes; ``rows`` come as visited. O(shuffles·n·k) time."""
    counts = sizes.astype(np.float64)
    drawn = [rng(seed, s, "audit").permutation(len(rows)) for s in range(shuffles)]
    own, *others = (batch_sums(rows, order, sizes) for order in (None, *drawn))
    errors = np.array([strayed(sums, counts) for sums in others])
    curves = np.stack([_curve(sums, counts) for sums in others])
    return Straying(strayed(own, counts), errors, _curve(own, counts), curves.mean(axis=0))


def batch_sums(rows: Rows, order: Order | None, sizes: Ints) -> Floats:
    """The sum of each batch's rows, if they are visited in ``order``; as they come if that is None."""
    sums = np.empty((len(sizes), rows.shape[1]))
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        start = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, start + AT_ONCE, side="right")))
        stop = int(ends[last - 1])
        part = rows[start:stop] if order is None else rows[order[start:stop]]
        begins = (ends[first:last] - sizes[first:last]) - start
        sums[first:last] = np.add.reduceat(part, begins, axis=0, dtype=np.float64)
        first = last
    return sums


def shard_parts(rows: Rows, shards: npt.NDArray[Any]) -> tuple[Rows, Rows]:
    """Split rows into the means of their shards, and what is left: their sums stray independently.

    >>> means, rest = shard_parts(np.array([[1.0], [3.0], [7.0]]), np.array(["a", "a", "b"]))
    >>> means.ravel(), rest.ravel()
    (array([2., 2., 7.]), array([-1.,  1.,  0.]))
    """
    _, places, counts = np.unique(shards, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, places, rows)
    means = (sums / counts[:, None])[places].astype(rows.dtype)
    return means, rows - means


def norms_of(rows: Rows) -> Floats:
    """The distance of each row from the mean of all."""
    mean = rows.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    parts = [rows[at : at + AT_ONCE] - mean for at in range(0, len(rows), AT_ONCE)]
    squares = np.concatenate([np.einsum("ik,ik->i", part, part, dtype=np.float64) for part in parts])
    lengths: Floats = np.sqrt(squares)
    return lengths


def norms_along(norms: Floats) -> Floats:
    """The mean norm in each tenth of the epoch, relative to that of the whole."""
    whole = norms.mean()
    return np.array([part.mean() / whole if whole > 0 else 1.0 for part in _tenths(norms)])


def labels_along(places: Ints) -> Floats:
    """How far each tenth's mix of labels is from that of the whole: half the sum of differences, 0 to 1."""
    kinds = int(places.max()) + 1
    whole = np.bincount(places, minlength=kinds) / len(places)
    return np.array(
        [np.abs(np.bincount(p, minlength=kinds) / len(p) - whole).sum() / 2 for p in _tenths(places)]
    )


def most_by_chance(
    measure: Callable[[npt.NDArray[Any]], float], values: npt.NDArray[Any], *, seed: int, shuffles: int
) -> float:
    """The largest that ``measure`` finds in shuffles of ``values``."""
    drawn = (rng(seed, s, "audit").permutation(len(values)) for s in range(shuffles))
    return max(measure(values[order]) for order in drawn)


def resemblance(first: Ints, second: Ints) -> tuple[float, float]:
    """Of two epochs: the share of examples that are in both, and the correlation of those one's places.

    1 for the same order, near 0 for a fresh shuffle, -1 for the reverse. An example that comes twice counts
    where it comes first.

    >>> resemblance(np.array([5, 6, 7, 8]), np.array([8, 7, 6, 5]))
    (1.0, -1.0)
    """
    (names, at), (others, there) = (np.unique(marks, return_index=True) for marks in (first, second))
    common, left, right = np.intersect1d(names, others, assume_unique=True, return_indices=True)
    shared = 2 * len(common) / max(1, len(names) + len(others))
    if len(common) < 2:
        return shared, 0.0
    ranks = (_ranks(at[left]), _ranks(there[right]))
    return shared, round(float(np.corrcoef(*ranks)[0, 1]), 12)


def visits(epochs: Sequence[Ints], known: int | None, *, named: bool) -> tuple[list[int], list[int]]:
    """Of each epoch: visits to examples that were there already, and known examples that never came.

    An example is known if any epoch had it; ``known`` tells how many there are, if somebody knows. Those that
    are not ``named`` but look alike may be several: then visits are counted, and not examples.

    >>> visits([np.array([0, 1, 2, 2])], 5, named=True)
    ([1], [2])
    """
    distinct = [len(np.unique(marks)) for marks in epochs]
    total = len(np.unique(np.concatenate(epochs)))
    twice = [len(marks) - d for marks, d in zip(epochs, distinct, strict=True)]
    seen = distinct if named else [len(marks) for marks in epochs]
    missed = [0 if known is None else max(0, known - s) for s in seen]
    return twice, [max(m, total - d) for m, d in zip(missed, distinct, strict=True)]


def _curve(sums: Floats, counts: Floats) -> Floats:
    """The length of the centred sum at up to a hundred places along the epoch, from its first batches on."""
    ends = np.unique(np.linspace(0, len(sums), POINTS + 1).round().astype(np.int64))[:-1]
    coarse, weights = np.add.reduceat(sums, ends, axis=0), np.add.reduceat(counts, ends)
    mean = sums.sum(axis=0) / counts.sum()
    return np.asarray(np.linalg.norm(np.cumsum(coarse - weights[:, None] * mean, axis=0), axis=1))


def _tenths(values: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    return np.array_split(values, min(TENTHS, len(values)))


def _ranks(places: Ints) -> Ints:
    return np.argsort(np.argsort(places))
