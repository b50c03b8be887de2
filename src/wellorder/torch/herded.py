"""Herding where the rows lie: a Triton kernel for CUDA; its twin is `wellorder.policies.Herding.advance`."""
# mypy: ignore-errors
# ruff: noqa: N803  (kernels are written in Triton's language, sizes in capitals)

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellorder.cuda import jit, tl, triton
from wellorder.kernels.reorder import place
from wellorder.kernels.rules import Deterministic
from wellorder.order import Order, frozen, visit
from wellorder.policies import Herding
from wellorder.policies.herding import HerdingState

WARPS = 4
DOUBT = 1e-5 if tl is None else tl.constexpr(1e-5)


@jit
def _decided(row, middle, total, last, weight):
    """Add the last row with its sign to the sum, and sign this one; the sum, the row less the mean, the sign.

    The sum is kept in float64. A product is first taken in float32, whose error is below `DOUBT` times the
    sum of its terms' sizes, and in float64 if that leaves its sign open: the signs are those of float64.
    """
    row = row.to(tl.float64) - middle
    total += weight * last
    terms = total.to(tl.float32) * row.to(tl.float32)
    value = tl.sum(terms, axis=0)
    minus = value >= 0
    sure = tl.abs(value) > DOUBT * tl.sum(tl.abs(terms), axis=0)
    if sure == 0:  # not a number counts as doubt
        minus = tl.sum(total * row, axis=0) >= 0
    return total, row, tl.where(minus, -1.0, 1.0).to(tl.float64)


@jit
def _balance(rows, which, center, signs, count, dim, WIDE: tl.constexpr):
    """Sequential balancing of ``rows[which]`` − center in one program, four rows a turn.

    A row is loaded three steps before it is needed, into the registers of the one just used: what was loaded
    must not be moved, or the move would wait for it.
    """
    k = tl.arange(0, WIDE)
    real = k < dim
    middle = tl.load(center + k, mask=real, other=0.0)
    total = tl.zeros((WIDE,), tl.float64)
    last = tl.zeros((WIDE,), tl.float64)
    weight = tl.zeros((), tl.float64)
    end = count - 1
    a = tl.load(rows + tl.load(which) * dim + k, mask=real, other=0.0)
    b = tl.load(rows + tl.load(which + tl.minimum(1, end)) * dim + k, mask=real, other=0.0)
    c = tl.load(rows + tl.load(which + tl.minimum(2, end)) * dim + k, mask=real, other=0.0)
    d = tl.load(rows + tl.load(which + tl.minimum(3, end)) * dim + k, mask=real, other=0.0)
    ia, ib = tl.load(which + tl.minimum(4, end)), tl.load(which + tl.minimum(5, end))
    ic, ie = tl.load(which + tl.minimum(6, end)), tl.load(which + tl.minimum(7, end))
    for t in range(0, count, 4):
        total, last, weight = _decided(a, middle, total, last, weight)
        tl.store(signs + t, weight.to(tl.int8))
        a = tl.load(rows + ia * dim + k, mask=real, other=0.0)
        ia = tl.load(which + tl.minimum(t + 8, end))
        total, last, weight = _decided(b, middle, total, last, weight)
        tl.store(signs + t + 1, weight.to(tl.int8), mask=t + 1 < count)
        b = tl.load(rows + ib * dim + k, mask=real, other=0.0)
        ib = tl.load(which + tl.minimum(t + 9, end))
        total, last, weight = _decided(c, middle, total, last, weight)
        tl.store(signs + t + 2, weight.to(tl.int8), mask=t + 2 < count)
        c = tl.load(rows + ic * dim + k, mask=real, other=0.0)
        ic = tl.load(which + tl.minimum(t + 10, end))
        total, last, weight = _decided(d, middle, total, last, weight)
        tl.store(signs + t + 3, weight.to(tl.int8), mask=t + 3 < count)
        d = tl.load(rows + ie * dim + k, mask=real, other=0.0)
        ie = tl.load(which + tl.minimum(t + 11, end))


def serves(policy: Any, state: Any, rows: Tensor) -> bool:
    """Whether rows can be herded here: a whole epoch's, on CUDA, of no more than 4096 numbers."""
    whole = keeps(policy) and state.seen == 0 and triton is not None
    return whole and rows.is_cuda and rows.is_contiguous() and rows.shape[1] <= 4096


def keeps(policy: Any) -> bool:
    """Whether a policy wants a whole epoch's rows, and would balance them by the plain sign rule."""
    return isinstance(policy, Herding) and isinstance(policy.rule, Deterministic)


def advance(policy: Any, state: HerdingState, units: Order, rows: Tensor) -> HerdingState:
    """Close an epoch in which ``units`` were observed, in this order, and ``rows`` were theirs, all finite.

    Costs O(passes·n·k) on one multiprocessor, and per pass one copy of n signs and one of n numbers.
    """
    visit(state.order, 0, units)
    slots = np.full(len(state.order), -1, np.int64)
    slots[units] = np.arange(len(units))
    center = rows.mean(dim=0, dtype=torch.float64)
    signs = torch.empty(len(units), dtype=torch.int8, device=rows.device)
    order = state.order
    for _ in range(policy.passes):
        along = slots[order]
        steps = np.flatnonzero(along >= 0)
        which = torch.from_numpy(along[steps]).to(rows.device)
        wide = triton.next_power_of_2(rows.shape[1])
        with torch.cuda.device(rows.device):
            _balance[(1,)](rows, which, center, signs, len(steps), rows.shape[1], WIDE=wide, num_warps=WARPS)
        marks = np.zeros(len(order), np.int8)
        marks[steps] = signs.cpu().numpy()
        order = place(order, marks)
    return HerdingState(state.seed, state.epoch + 1, frozen(order), state.marks, clipped=state.clipped)
