"""An epoch's rounds for several runs side by side, planned before the epoch starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wellorder._order import Order
from wellorder.federated._availability import Availability
from wellorder.federated._turns import Turns

Ints = npt.NDArray[np.int64]
PATIENCE = 100_000
"""Rounds in a row in which nobody at all can be reached, before a run gives up."""


@dataclass(frozen=True)
class Rounds:
    """What one run does in an epoch: its rounds' clients, who was missed, and the clock afterwards."""

    clients: Ints
    """(T, S), 0 where nobody takes the place."""
    counts: Ints
    """(T,): the first so many places of each round are taken."""
    effective: Order
    missed: Order
    clock: int


@dataclass(frozen=True)
class Epoch:
    """The rounds of R runs, padded to one length: clients (T, R, S) and counts (T, R)."""

    clients: Ints
    counts: Ints


def plan_run(
    order: Order, late: Order, cohort: int, availability: Availability, seed: int, clock: int
) -> Rounds:
    """Cut one run's epoch into rounds; the clock counts rounds, idle ones too."""
    turns = Turns(order, late, cohort, availability, seed)
    chosen: list[Order] = []
    idle = 0
    while len(turns.missed):
        cohort_now = turns.take(clock)
        if not len(cohort_now) and chosen:
            break
        clock += 1
        if len(cohort_now):
            chosen.append(cohort_now)
            continue
        idle += 1
        if idle > PATIENCE:
            raise ValueError(
                f"availability={availability!r}: nobody could be reached in {PATIENCE} rounds; "
                "let some client wake up"
            )
    counts = np.array([len(units) for units in chosen], np.int64)
    clients = np.zeros((len(chosen), cohort), np.int64)
    for row, units in zip(clients, chosen, strict=True):
        row[: len(units)] = units
    return Rounds(clients, counts, turns.effective, turns.missed, clock)


def side_by_side(runs: Sequence[Rounds]) -> Epoch:
    """Pad the runs to the longest; a run that is through has rounds of nobody."""
    length = max(len(run.counts) for run in runs)
    cohort = runs[0].clients.shape[1]
    clients = np.zeros((length, len(runs), cohort), np.int64)
    counts = np.zeros((length, len(runs)), np.int64)
    for r, run in enumerate(runs):
        clients[: len(run.counts), r] = run.clients
        counts[: len(run.counts), r] = run.counts
    return Epoch(clients, counts)


def weights_of(epoch: Epoch, sizes: Ints | None) -> npt.NDArray[np.float64]:
    """Each client's share in its round's mean (T, R, S): by its ``sizes``, or equal if that is None."""
    taken = np.arange(epoch.clients.shape[2]) < epoch.counts[..., None]
    shares = np.where(taken, 1.0 if sizes is None else sizes[epoch.clients], 0.0)
    total = shares.sum(axis=2, keepdims=True)
    mean: npt.NDArray[np.float64] = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    return mean
