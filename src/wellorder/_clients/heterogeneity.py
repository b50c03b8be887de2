"""How much clients differ: the part of a round's movement that is nothing but who happened to be in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import numbers, whole_number


@dataclass(frozen=True)
class Spread:
    """What rounds have shown so far: how their updates scatter, and how far their means moved."""

    chance: float = 0.0
    """Sum over rounds of V/S, what drawing S clients of variance V adds to the square of their mean."""
    moved: float = 0.0
    """Sum over rounds of the squared length of the mean update."""
    rounds: int = 0

    def add(self, updates: npt.NDArray[Any]) -> Spread:
        """Take in a round's updates, a row each; a round of one says nothing."""
        if len(updates) < 2:
            return self
        rows = numbers("updates", updates, cure="pass two rows of finite numbers or more, one a client")
        mean = rows.mean(axis=0)
        variance = float(np.square(rows - mean).sum()) / (len(rows) - 1)
        return Spread(self.chance + variance / len(rows), self.moved + float(mean @ mean), self.rounds + 1)

    def value(self) -> float:
        """The share of chance, 0 to 1; NaN before anything was seen."""
        return min(self.chance / self.moved, 1.0) if self.moved > 0 else float("nan")


def heterogeneity(updates: npt.ArrayLike, *, cohort: int = 10) -> float:
    r"""How much clients differ, from a first epoch's updates: 0 (all alike) to 1 (nothing in common).

    A round's mean of S updates has the expected square :math:`\|\bar p\|^2 + V/S`, the second part being
    chance: who was drawn. This is the share of that part, both sums taken over the epoch's rounds, so that
    neither the length of updates nor their drift along the epoch counts. It is the part that a good order
    works against.

    Parameters
    ----------
    updates
        (N, d): one row a client, in the order in which they took part. Sketches will do.
    cohort
        S, the clients of a round.

    >>> from wellorder.federated import heterogeneity
    >>> draw = np.random.default_rng(0)
    >>> common, own = np.ones(50), draw.standard_normal((1000, 50))
    >>> [round(heterogeneity(common + width * own), 2) for width in (0.1, 1.0, 10.0)]
    [0.0, 0.09, 0.91]
    """
    rows = numbers("updates", updates, cure="pass two rows of finite numbers or more, one a client")
    if rows.ndim != 2 or len(rows) < 2 or not np.isfinite(rows).all():
        raise ValueError(
            f"updates of shape {rows.shape}: pass a 2-D array of finite numbers, a row for each of 2 or more clients"
        )
    whole_number("cohort", cohort, least=2, cure="a round of one client shows no difference; pass")
    spread = Spread()
    for at in range(0, len(rows), cohort):
        spread = spread.add(rows[at : at + cohort])
    return spread.value()
