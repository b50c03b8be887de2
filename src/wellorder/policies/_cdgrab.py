"""CD-GraB: pair balancing of many workers' units against one running sum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, whole_number
from wellorder._kernels.balance import NO_VECTOR, balance_pairs
from wellorder._kernels.reorder import place
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._kernels.signals import dense, other_dimension
from wellorder._order import (
    Keeps,
    Needs,
    Order,
    Remembered,
    Rows,
    Signs,
    Vector,
    frozen,
    own_state,
    shuffled,
    visit,
)

Steps = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WorkersState(Remembered):
    """Signs by step, the signed sum of all differences, and each worker's signal without a partner."""

    seed: int
    epoch: int
    order: Order
    signs: Signs
    waiting: npt.NDArray[np.int64]
    """The step of each worker's waiting signal, or -1."""
    pending: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """The waiting signals, one row a worker."""
    seen: int = 0
    observed: int = 0
    pairs: int = 0
    total: Vector = field(default_factory=NO_VECTOR.copy)
    clipped: int = 0


@dataclass(frozen=True)
class CDGraB:
    """Coordinated distributed GraB: every worker orders its own units, against one sum of all workers'.

    Unit u is worker u % ``workers``'s, and so is every ``workers``-th place of an order, so that a round of
    the order is one unit of each. The difference d of two consecutive signals *of a worker* is signed against
    the running sum of all workers' differences, s ← s + ε·d, worker after worker, step after step; at the
    epoch's end each worker puts its plus units first and its minus units last, reversed. One worker is
    `PairGraB`. Workers that balance alone lose the gain as they grow many; together they keep it.
    Costs O(d) a unit, workers + 1 vectors of length d, and 5 bytes a unit.

    Parameters
    ----------
    workers
        How many workers there are; in ``wellorder.torch`` the number of ranks.
    rule
        `Deterministic()` or `Walk(c)`.

    >>> import numpy as np
    >>> policy = CDGraB(2)
    >>> state = policy.init(8)
    >>> state.order
    array([2, 5, 6, 1, 0, 3, 4, 7], dtype=int32)
    >>> state = policy.observe(state, state.order, np.arange(8.0)[:, None])
    >>> policy.advance(state).order
    array([6, 5, 4, 3, 0, 7, 2, 1], dtype=int32)
    """

    workers: int
    rule: SignRule = field(default_factory=Deterministic)

    needs: ClassVar[Needs] = Needs.SIGNALS
    keeps: ClassVar[Keeps] = Keeps.ROWS

    def __post_init__(self) -> None:
        checked_rule(self.rule)
        workers = whole_number(
            "workers", self.workers, least=1, most=2**20, cure="pass how many workers order their own units"
        )
        object.__setattr__(self, "workers", workers)

    def init(self, n: int, *, seed: int = 0) -> WorkersState:
        random = shuffled(n, seed, 0)
        order = np.empty_like(random)
        for w in range(min(self.workers, n)):
            order[w :: self.workers] = random[random % self.workers == w]
        return WorkersState(
            seed_of(seed), 0, frozen(order), np.zeros(n, np.int8), np.full(self.workers, -1, np.int64)
        )

    def observe(self, state: WorkersState, units: npt.ArrayLike, signals: Any) -> WorkersState:
        own_state(state, WorkersState)
        steps = visit(state.order, state.seen, units)
        block = dense(signals, len(steps))
        if not len(steps):
            return state
        pending = _room(state, self.workers, block.shape[1])
        first, second = _paired(steps, state.waiting, self.workers)
        thresholds = self.rule.thresholds(state.seed, state.epoch, state.pairs, len(first))
        rows = np.empty((2 * len(first), block.shape[1]))
        rows[0::2], rows[1::2] = (
            _rows_at(first, steps, block, pending),
            _rows_at(second, steps, block, pending),
        )
        signs, total, clipped = balance_pairs(rows, NO_VECTOR, state.total, thresholds, self.rule.limit)
        state.signs[first], state.signs[second] = signs, -signs
        return replace(
            state,
            waiting=_left_waiting(steps, block, state.waiting, pending, self.workers),
            pending=pending,
            seen=int(steps[-1]) + 1,
            observed=state.observed + len(steps),
            pairs=state.pairs + len(first),
            total=total,
            clipped=state.clipped + clipped,
        )

    def advance(self, state: WorkersState) -> WorkersState:
        order = own_state(state, WorkersState).order.copy()
        for w in range(self.workers):
            own = slice(w, None, self.workers)
            order[own] = place(order[own].copy(), state.signs[own].copy())
        state.signs.fill(0)
        waiting = np.full(self.workers, -1, np.int64)
        return WorkersState(
            state.seed, state.epoch + 1, frozen(order), state.signs, waiting, clipped=state.clipped
        )


def _room(state: WorkersState, workers: int, dim: int) -> npt.NDArray[np.float64]:
    """The rows that wait, with a place for each worker's."""
    others = len(state.total) or state.pending.shape[1]
    if others and others != dim:
        raise ValueError(other_dimension(dim, others))
    if state.pending.size and len(state.pending) != workers:
        raise ValueError(
            f"damaged state: {len(state.pending)} signals wait, of {workers} workers; load another"
        )
    return state.pending if state.pending.size else np.zeros((workers, dim))


def _paired(steps: Steps, waiting: Steps, workers: int) -> tuple[Steps, Steps]:
    """The two steps of each pair that these ``steps`` complete, in the order in which they do."""
    everything = np.concatenate([waiting[waiting >= 0], steps])
    by_worker = np.argsort(everything % workers, kind="stable")
    worker = everything[by_worker] % workers
    turn = np.arange(len(worker)) - np.searchsorted(worker, worker)  # 0, 1, 2 … of each worker
    second = np.flatnonzero(turn % 2)
    right = second[np.argsort(everything[by_worker[second]])]
    return everything[by_worker[right - 1]], everything[by_worker[right]]


def _rows_at(which: Steps, steps: Steps, block: Rows, pending: Rows) -> Rows:
    """The rows of ``which`` steps: of this block, or waiting from before."""
    here = np.searchsorted(steps, which).clip(max=len(steps) - 1)
    found: Rows = block[here].astype(np.float64)
    before = np.flatnonzero(steps[here] != which)
    found[before] = pending[which[before] % len(pending)]
    return found


def _left_waiting(steps: Steps, block: Rows, waiting: Steps, pending: Rows, workers: int) -> Steps:
    """Who waits after these ``steps``; their rows are put into ``pending``."""
    counts = np.bincount(steps % workers, minlength=workers)
    last = np.full(workers, -1, np.int64)
    last[steps % workers] = np.arange(len(steps))  # steps ascend: the last one stays
    alone = (counts + (waiting >= 0)) % 2 == 1
    new = np.flatnonzero(alone & (counts > 0))
    pending[new] = block[last[new]]
    left = np.where(alone & (counts == 0), waiting, -1)
    left[new] = steps[last[new]]
    return left
