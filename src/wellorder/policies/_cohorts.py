"""BalancedCohorts: clients grouped so that each round resembles the whole, and the rounds herded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import real_number, whole_number
from wellorder._compiled import jit
from wellorder._kernels.sign_rules import Deterministic
from wellorder._order import Keeps, Needs, Order, Rows, own_state, rng, shuffled
from wellorder.policies._herding import herded
from wellorder.policies._latest_rows import LatestRows, fill_in, known_part, opened, renew, weighed

TRIES = 20
"""Exchanges tried for each unit; more of them change little."""
PART = 2**16
"""Exchanges drawn at a time."""


@dataclass(frozen=True)
class BalancedCohorts:
    r"""A fresh shuffle every epoch, cut into cohorts that are balanced inside, and among themselves.

    For rounds of S clients who train side by side only the sums of rounds matter, not who is first in one.
    So the cohorts of a fresh shuffle exchange members, at random, wherever that lessens
    :math:`\sum_r \|\sum_{c \in r} (z_c - \bar z)\|^2`; then the cohorts' sums are put in order as by
    `Herding`. A row is a running mean of a client's updates, since one alone is half noise. Without rows the
    orders are those of `RandomReshuffling`; a client without a row keeps its random place. Rows given
    before the first epoch stay beside those that are observed later. Costs n·k·4 bytes for rows of k numbers
    (as much once more, while an order is made of both kinds), and O(n·k) time an epoch.

    Parameters
    ----------
    cohort
        S, the clients of a round.
    newest
        The weight of the newest update in a client's row; 1 keeps that alone.

    >>> import numpy as np
    >>> from wellorder import RandomReshuffling, order_error
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> orders = BalancedCohorts(10).init(1000, rows=rows).order, RandomReshuffling().init(1000).order
    >>> ours, random = (order_error(rows, order, every=10) for order in orders)
    >>> bool(ours < random / 10)
    True
    """

    cohort: int = 10
    newest: float = 0.5

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole = whole_number("cohort", self.cohort, least=1, cure="the clients of a round; pass")
        object.__setattr__(self, "cohort", whole)
        if real_number("newest", self.newest, above=0) > 1:
            raise ValueError(f"newest={self.newest}: pass a weight above 0, at most 1")

    def init(self, n: int, *, seed: int = 0, rows: npt.ArrayLike | None = None) -> LatestRows:
        return self.open(opened(whole_number("n", n, least=1), seed, rows), 0)

    def observe(self, state: LatestRows, units: npt.ArrayLike, signals: Any) -> LatestRows:
        return renew(state, units, signals, newest=self.newest)

    def advance(self, state: LatestRows) -> LatestRows:
        return self.open(state, own_state(state, LatestRows).epoch + 1)

    def open(self, state: LatestRows, epoch: int) -> LatestRows:
        """Open any epoch with the rows known now; leaves ``state`` valid."""
        order = shuffled(len(own_state(state, LatestRows).known), state.seed, epoch)
        part, mean = known_part(state, order)
        if len(part) >= 2 * self.cohort:
            part = self._arranged(*weighed(state, mean), part, rng(state.seed, epoch, "cohorts"))
        filled = fill_in(order, state.known, part)
        return replace(state, epoch=epoch, order=filled, seen=0, observed=0)

    def _arranged(
        self, rows: Rows, mean: npt.NDArray[np.float64], part: Order, draw: np.random.Generator
    ) -> Order:
        """The units of ``part``, in cohorts that are balanced and herded; a short last one stays the last."""
        count, size = len(part) // self.cohort, self.cohort
        members = part[: count * size].reshape(count, size).copy()
        sums = np.stack([rows[own].sum(axis=0, dtype=np.float64) - size * mean for own in members])
        left = TRIES * members.size
        while left > 0:
            tries = min(left, PART)
            cohorts, places = draw.integers(count, size=(tries, 2)), draw.integers(size, size=(tries, 2))
            _exchange(rows, members, sums, cohorts, places)
            left -= tries
        first = draw.permutation(count).astype(part.dtype)
        turns, _ = herded(sums.astype(np.float32), first, sums.mean(axis=0), Deterministic(), 8, (0, 0))
        return np.concatenate([members[turns].ravel(), part[count * size :]])


@jit
def _exchange(rows, members, sums, cohorts, places):  # type: ignore[no-untyped-def]
    """Let two members of different cohorts change places wherever the sums become shorter, in squares."""
    for t in range(len(cohorts)):
        a, b = cohorts[t, 0], cohorts[t, 1]
        if a == b:
            continue
        one, other = members[a, places[t, 0]], members[b, places[t, 1]]
        change = 0.0
        for k in range(rows.shape[1]):
            d = np.float64(rows[other, k]) - np.float64(rows[one, k])
            change += d * (sums[a, k] - sums[b, k] + d)
        if change < 0.0:
            for k in range(rows.shape[1]):
                d = np.float64(rows[other, k]) - np.float64(rows[one, k])
                sums[a, k] += d
                sums[b, k] -= d
            members[a, places[t, 0]] = other
            members[b, places[t, 1]] = one
