"""How much clients differ: what chance (who happened to be in it) adds to a round's movement."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import numbers, whole_number

MOST = 2000
"""Clients looked at, at most; so many tell enough."""
MUCH, LITTLE = 0.20, 0.06
"""Where ordering was seen to save about a third of the rounds, and next to nothing: see docs/federated.md."""


class Differences:
    """Gathers a first epoch's updates, round by round: how they scatter about their round's mean."""

    def __init__(self) -> None:
        self.rows: list[npt.NDArray[np.float32]] = []
        self.rounds: list[int] = []
        self.moved = 0.0

    def add(self, updates: npt.NDArray[Any]) -> None:
        """Take in a round's updates, a row each; a round of one says nothing."""
        size = len(updates)
        if size < 2 or sum(self.rounds) >= MOST:
            return
        rows = np.asarray(updates, np.float64)
        mean = rows.mean(axis=0)
        self.moved += float(mean @ mean)
        self.rounds.append(size)
        self.rows.append(((rows - mean) / np.sqrt(size - 1.0)).astype(np.float32))  # their squares sum to V

    def value(self) -> float:
        """The measure of `heterogeneity`; NaN if fewer than two rounds were seen."""
        if len(self.rounds) < 2 or self.moved <= 0:
            return float("nan")
        scaled = np.concatenate([r * np.float32(1 / np.sqrt(len(r))) for r in self.rows]).astype(np.float64)
        turn = np.repeat(np.arange(len(self.rounds)), self.rounds)
        # Pairs of one round share their mean; only those of different rounds are independent. A round's
        # rows sum to its part V/S of chance, so the squares of two rounds' products estimate tr(C²)/S².
        squares = np.square(scaled @ scaled.T)
        squares[turn[:, None] == turn] = 0.0
        pairs = len(self.rounds) * (len(self.rounds) - 1)
        return float(np.sqrt(squares.sum() / pairs) / (self.moved / len(self.rounds)))


def heterogeneity(updates: npt.ArrayLike, *, cohort: int = 10) -> float:
    r"""How much clients differ, from a first epoch's updates: 0 where they are all alike.

    A round's mean of S updates has the expected square :math:`\|\bar p\|^2 + \operatorname{tr}(C)/S`, the
    second part being chance: who was drawn. Chance in many directions does little harm; in few it drives the
    model to and fro, and there an order helps. So this is :math:`\|C\|_F/S` over the mean square of a round's
    movement, C being the covariance of updates within a round. Neither their length nor their drift along
    the epoch counts. Above 0.2 ordering has saved a third of the rounds, below 0.06 next to nothing, and in
    between anything from nothing to half of them: there the measure does not tell.

    Parameters
    ----------
    updates
        (N, d): one row a client, in the order in which they took part. Sketches of 512 numbers will do.
    cohort
        S, the clients of a round.

    >>> from wellorder.federated import heterogeneity
    >>> draw = np.random.default_rng(0)
    >>> few = draw.standard_normal((500, 5)) @ draw.standard_normal((5, 50)) / 5
    >>> many = draw.standard_normal((500, 50))
    >>> [round(heterogeneity(0.1 + own), 2) for own in (few, many, many / 10)]
    [0.34, 0.12, 0.01]
    """
    rows = numbers("updates", updates, cure="pass a 2-D array of finite numbers, a row a client")
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"updates of shape {rows.shape}: pass a 2-D array of finite numbers, a row a client")
    whole_number("cohort", cohort, least=2, cure="a round of one client shows no difference; pass")
    if len(rows) < 2 * cohort:
        raise ValueError(f"updates of {len(rows)} clients, cohort={cohort}: pass those of two rounds or more")
    seen = Differences()
    for at in range(0, len(rows), cohort):
        seen.add(rows[at : at + cohort])
    return seen.value()


def expectation(measure: float) -> str:
    """What to expect of ordering, in words.

    >>> expectation(0.3), expectation(0.01)
    ('expect ordering to save about a third of the rounds', 'expect ordering to save little')
    """
    if measure >= MUCH:
        return "expect ordering to save about a third of the rounds"
    between = "expect ordering to save anything from nothing to half of the rounds"
    return "expect ordering to save little" if measure <= LITTLE else between
