"""The order error of the epoch, measured while it is trained."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from wellorder._compiled import fast

Rows = npt.NDArray[np.float32]


class Gauge:
    r"""Estimates :math:`\bar\phi` of the present epoch from one summed row per batch, at the batches' ends.

    The rows are those that the policy sees (a sketch, or some coordinates of the gradient), scaled so that
    squared norms keep their expectation; the mean is that of the epoch, as the gradients were when visited.

    >>> gauge = Gauge()
    >>> for row in ([1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]):
    ...     gauge.add(np.array(row), count=4)
    >>> gauge.error()
    2.0
    """

    def __init__(self) -> None:
        self.sums: list[Rows] = []
        self.counts: list[int] = []

    def add(self, row: npt.NDArray[np.floating], count: int) -> None:
        """Take in the sum of a batch's rows, and how many they were."""
        if np.isfinite(row).all():
            self.sums.append(np.array(row, np.float32))
            self.counts.append(count)

    def error(self) -> float:
        """Largest norm of Σ (row − mean) over the epoch's beginnings that end with a batch; NaN if none."""
        if not self.sums:
            return float("nan")
        sums = np.stack(self.sums)
        counts = np.array(self.counts, np.float64)
        mean = sums.sum(axis=0, dtype=np.float64) / counts.sum()
        return math.sqrt(_largest(sums, counts, mean, np.zeros_like(mean)))


@fast
def _largest(sums, counts, mean, total):  # type: ignore[no-untyped-def]
    """Largest squared norm of a beginning of Σ (row − count · mean)."""
    largest = 0.0
    for t in range(len(sums)):
        square = 0.0
        for k in range(len(total)):
            x = total[k] + np.float64(sums[t, k]) - counts[t] * mean[k]
            total[k] = x
            square += x * x
        largest = max(largest, square)
    return largest
