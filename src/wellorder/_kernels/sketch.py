"""Sketches of flat vectors: fewer numbers, by random signs, that keep inner products in expectation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._compiled import fast
from wellorder._order import rng


def random_signs(draw: np.random.Generator, *shape: int) -> npt.NDArray[np.int8]:
    """Plus and minus ones, each with probability one half.

    >>> sorted(set(random_signs(np.random.default_rng(0), 3, 40).ravel().tolist()))
    [-1, 1]
    """
    return (draw.integers(0, 2, shape) * 2 - 1).astype(np.int8)


@dataclass(frozen=True)
class FlatSketch:
    """A random linear map of vectors to ``width`` numbers, which keeps inner products up to about 1/√width.

    Coordinate i is given a random sign and added to number i mod ``width``. Two coordinates that meet in one
    number have independent signs, so inner products are unbiased. O(d) time, d bytes.
    """

    signs: npt.NDArray[np.int8] = field(repr=False)
    width: int

    @staticmethod
    def draw(dim: int, width: int, seed: int) -> FlatSketch:
        """Draw the map for vectors of length ``dim``.

        >>> rows = np.random.default_rng(0).standard_normal((2, 50_000))
        >>> sketch = FlatSketch.draw(50_000, 4096, seed=0)
        >>> a, b = (sketch.of([row]) for row in rows)
        >>> bool(abs(a @ a - rows[0] @ rows[0]) < 0.1 * (rows[0] @ rows[0])), bool(abs(a @ b) < 0.1 * (a @ a))
        (True, True)
        """
        return FlatSketch(random_signs(rng(seed, 0, "sketch"), dim), width)

    def of(self, pieces: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
        """Sketch the vector whose consecutive pieces are given, in float64, without joining them."""
        out, at = np.zeros(self.width), 0
        for piece in pieces:
            _fold(piece.ravel(), self.signs, at, out)
            at += piece.size
        return out


def fold(rows: Any, signs: Any, width: int) -> Any:
    """`FlatSketch` of many rows (b, d) → (b, width), of whatever array library they and the signs are.

    >>> fold(np.array([[1.0, 2.0, 3.0]]), np.array([1.0, -1.0, -1.0]), 2)
    array([[-2., -2.]])
    """
    signed, even = rows * signs, rows.shape[1] // width * width
    folded = signed[:, :even].reshape(len(rows), -1, width).sum(1)
    folded[:, : rows.shape[1] - even] += signed[:, even:]
    return folded


@fast
def _fold(piece, signs, at, out):  # type: ignore[no-untyped-def]
    width, count = len(out), len(piece)
    i = 0
    while i < count:
        place = (at + i) % width
        run = min(count - i, width - place)
        into, sign, part = out[place : place + run], signs[at + i : at + i + run], piece[i : i + run]
        for j in range(run):  # slices let the compiler use vector registers
            into[j] += sign[j] * np.float64(part[j])
        i += run
