"""Herding where the rows lie: a Triton kernel for CUDA; its twin is `wellorder.policies.Herding.advance`."""
# mypy: ignore-errors
# ruff: noqa: N803  (kernels are written in Triton's language, sizes in capitals)

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellorder._kernels.reorder import place
from wellorder._order import Order, frozen, visit
from wellorder._triton import jit, tl, triton
from wellorder.policies._latest_rows import LatestRows as HerdingState

WARPS = 8


@jit
def _balance(rows, which, center, signs, count, dim, WIDE: tl.constexpr):
    """Sequential balancing of ``rows[which]`` − center in one program, which loads four rows ahead.

    Products in float32 where they leave no doubt, and registers that loads go to directly, were no faster.
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
    ahead = tl.load(which + tl.minimum(4, end))
    for t in range(count):
        coming = tl.load(rows + ahead * dim + k, mask=real, other=0.0)
        ahead = tl.load(which + tl.minimum(t + 5, end))
        row = a.to(tl.float64) - middle
        total += weight * last
        value = tl.sum(total * row, axis=0)
        weight = tl.where(value < 0, 1.0, -1.0).to(tl.float64)
        tl.store(signs + t, weight.to(tl.int8))
        last = row
        a, b, c, d = b, c, d, coming


def serves(policy: Any, state: Any, rows: Tensor) -> bool:
    """Whether rows can be herded here: a whole epoch's, on CUDA, of no more than 4096 numbers."""
    whole = keeps(policy) and state.seen == 0 and triton is not None
    return whole and rows.is_cuda and rows.is_contiguous() and rows.shape[1] <= 4096


def keeps(policy: Any) -> bool:  # noqa: ARG001
    """Whether a policy wants a whole epoch's rows, and would balance them by the plain sign rule."""
    return False  # orders are made on the host, in the background, until the kernel serves fresh shuffles


def advance(policy: Any, state: HerdingState, units: Order, rows: Tensor) -> HerdingState:
    """Close an epoch in which ``units`` were observed, in this order, and ``rows`` were theirs, all finite.

    Costs O(passes·n·k) on one multiprocessor, and per pass one copy of n signs and one of n numbers.
    """
    visit(state.order, 0, units)
    slots = np.full(len(state.order), -1, np.int64)
    slots[units] = np.arange(len(units))
    center = rows.mean(dim=0, dtype=torch.float64)
    signs = torch.empty(len(units), dtype=torch.int8, device=rows.device)
    order, wide = state.order, triton.next_power_of_2(rows.shape[1])
    for _ in range(policy.passes):
        along = slots[order]
        steps = np.flatnonzero(along >= 0)
        which = torch.from_numpy(along[steps]).to(rows.device)
        with torch.cuda.device(rows.device):
            _balance[(1,)](rows, which, center, signs, len(steps), rows.shape[1], WIDE=wide, num_warps=WARPS)
        marks = np.zeros(len(order), np.int8)
        marks[steps] = signs.cpu().numpy()
        order = place(order, marks)
    return HerdingState(state.seed, state.epoch + 1, frozen(order), state.marks, clipped=state.clipped)
