"""The order error of the epoch, measured while it is trained."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
        sums = np.stack(self.sums).astype(np.float64)
        counts = np.array(self.counts, np.float64)[:, None]
        centred = sums - counts * (sums.sum(axis=0) / counts.sum())
        return float(np.linalg.norm(np.cumsum(centred, axis=0), axis=1).max())
