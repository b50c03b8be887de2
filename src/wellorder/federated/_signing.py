"""Triton kernels for CUDA: a round's balancing in four launches; its twin: `_balancer`."""
# mypy: ignore-errors
# ruff: noqa: N803  (kernels are written in Triton's language, sizes in capitals)

from __future__ import annotations

import torch
from torch import Tensor

from wellorder._triton import jit, tl, triton


@jit
def _products(
    moves, runs, total, gap, parts, width, COHORT: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr
):
    """A block's share of all inner products of the pairs' differences and (last row) the running sum."""
    run = tl.program_id(1)
    lane = tl.load(runs + run)
    row = tl.arange(0, P)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = moves + (lane * COHORT + 2 * row)[:, None] * width + col[None, :]
    paired = (row < COHORT // 2)[:, None] & (col < width)[None, :]
    first = tl.load(at, mask=paired, other=0.0).to(tl.float64)
    second = tl.load(at + width, mask=paired, other=0.0).to(tl.float64)
    summed = tl.load(total + run * gap + col, mask=col < width, other=0.0)
    rows = tl.where((row == COHORT // 2)[:, None], summed[None, :], first - second)
    products = tl.sum(rows[:, None, :] * rows[None, :, :], axis=2)
    out = parts + (run * tl.num_programs(0) + tl.program_id(0)) * (P * P)
    tl.store(out + row[:, None] * P + row[None, :], products)


@jit
def _decide(products, scale, thresholds, values, COUNT: tl.constexpr, P: tl.constexpr, WIDE: tl.constexpr):
    """The scalar recursion of `wellorder._kernels.balance`, one program a run."""
    run = tl.program_id(0)
    j = tl.arange(0, P)
    gram = products + run * (WIDE * WIDE)
    size = tl.load(scale + run)
    known = j < COUNT
    along = tl.load(gram + COUNT * WIDE + j, mask=known, other=0.0) / size
    norms = tl.sqrt(tl.maximum(tl.load(gram + j * WIDE + j, mask=known, other=0.0) / size, 0.0))
    length = tl.sqrt(tl.maximum(tl.load(gram + COUNT * WIDE + COUNT) / size, 0.0))
    for t in range(COUNT):
        value = tl.sum(tl.where(j == t, along, 0.0), axis=0)
        norm = tl.sum(tl.where(j == t, norms, 0.0), axis=0)
        value = tl.where(tl.abs(value) <= 2.3e-16 * length * norm, 0.0, value)
        tl.store(values + run * COUNT + t, value)
        sign = tl.where(value < tl.load(thresholds + run * COUNT + t), 1.0, -1.0)
        along += sign * tl.load(gram + t * WIDE + j, mask=known, other=0.0) / size
        length += norm


@jit
def _add(moves, runs, values, thresholds, total, gap, width, COHORT: tl.constexpr, BLOCK: tl.constexpr):
    """Add the signed differences to the running sum."""
    run = tl.program_id(1)
    lane = tl.load(runs + run)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = col < width
    at = moves + lane * COHORT * width + col
    summed = tl.load(total + run * gap + col, mask=real, other=0.0)
    for t in range(COHORT // 2):
        place = run * (COHORT // 2) + t
        sign = tl.where(tl.load(values + place) < tl.load(thresholds + place), 1.0, -1.0)
        first = tl.load(at + 2 * t * width, mask=real, other=0.0).to(tl.float64)
        second = tl.load(at + (2 * t + 1) * width, mask=real, other=0.0).to(tl.float64)
        summed += sign * (first - second)
    tl.store(total + run * gap + col, summed, mask=real)


def serves(moves: Tensor) -> bool:
    """Whether the kernels take these pseudo-gradients (R, S, width): an even S of at most 30, on CUDA."""
    cohort = moves.shape[1]
    known = moves.is_cuda and triton is not None and moves.is_contiguous()
    return known and cohort % 2 == 0 and cohort <= 30


def balance_pairs(
    moves: Tensor, runs: Tensor, total: Tensor, scale: Tensor, thresholds: Tensor, values: Tensor
) -> None:
    """Balance the pairs of some runs' lanes: moves the running sums (G, width), writes the values (G, S/2).

    ``runs`` (G,) are the runs' numbers in ``moves`` (R, S, width); products are divided by ``scale`` (G,).
    """
    cohort, width = moves.shape[1:]
    size = 8 if cohort // 2 < 8 else 16
    block = 8192 // (size * size)
    blocks = triton.cdiv(width, block)
    parts = torch.empty(len(runs), blocks, size * size, dtype=torch.float64, device=moves.device)
    _products[(blocks, len(runs))](
        moves, runs, total, total.stride(0), parts, width, COHORT=cohort, P=size, BLOCK=block
    )
    products = parts.sum(dim=1)
    _decide[(len(runs),)](
        products, scale, thresholds, values, COUNT=cohort // 2, P=size, WIDE=size, num_warps=1
    )
    _add[(triton.cdiv(width, 512), len(runs))](
        moves, runs, values, thresholds, total, total.stride(0), width, COHORT=cohort, BLOCK=512
    )
