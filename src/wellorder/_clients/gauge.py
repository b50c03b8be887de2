"""How good the order is as it goes: the federated order error, estimated from a few coordinates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._order import rng

COORDINATES = 256


@dataclass(frozen=True)
class Gauge:
    r"""Prefix sums of pseudo-gradients at the ends of this epoch's rounds, at ``COORDINATES`` random places.

    The estimate is :math:`\max_m \|P_m - \frac{m}{n} P_n\|_2`, scaled for the places left out: Definition
    ``def:FL:order error`` of pseudo-gradients instead of gradients, over the part of the epoch that was seen.
    Exact for vectors no longer than ``COORDINATES``.
    """

    seed: int
    sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    counts: tuple[int, ...] = ()

    def probe(self, row: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Take the coordinates of ``row`` that count, scaled."""
        if len(row) <= COORDINATES:
            return row.astype(np.float64)
        places = rng(self.seed, 0, "gauge").integers(0, len(row), COORDINATES)
        scaled: npt.NDArray[np.float64] = row[places] * np.float64(np.sqrt(len(row) / COORDINATES))
        return scaled

    def add(self, probes: list[npt.NDArray[np.float64]]) -> Gauge:
        """Close a round in which these were seen."""
        if not probes:
            return self
        total, count = np.sum(probes, axis=0), len(probes)
        if self.counts:
            total, count = total + self.sums[-1], count + self.counts[-1]
        sums = np.vstack([self.sums, total]) if self.counts else total[None]
        return replace(self, sums=sums, counts=(*self.counts, count))

    def value(self) -> float:
        """Estimate the order error of what was seen since the epoch began.

        >>> gauge = Gauge(0)
        >>> for z in ([1.0], [1.0], [-1.0], [-1.0]):
        ...     gauge = gauge.add([np.array(z)])
        >>> gauge.value()
        2.0
        """
        if not self.counts:
            return 0.0
        share = np.array(self.counts)[:, None] / self.counts[-1]
        return float(np.linalg.norm(self.sums - share * self.sums[-1], axis=1).max())
