"""Triton kernels for CUDA: a round of whole pairs balanced in four launches, where plain torch takes dozens.

Differences are made in float64 where they are used, and never written. The twins in plain torch are in
`wellorder.federated._device_balancing`; both decide alike.
"""
# mypy: ignore-errors
# ruff: noqa: N803  (kernels are written in Triton's language, sizes in capitals)

from __future__ import annotations

import torch
from torch import Tensor

from wellorder._triton import jit, tl, triton

MOST = 15
"""Differences of a round, at most: with the running sum they are the 16 rows of a product."""
STRETCH = 1024
"""Numbers of each vector that one program takes."""


@jit
def _multiply(
    signals, total, parts, width, next_run, next_client, next_total,
    COUNT: tl.constexpr, SIZE: tl.constexpr, STRETCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """parts[run, stretch] = all products of one run's differences and sum, over a stretch of numbers."""
    run = tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, SIZE)[:, None]  # differences by number, the running sum behind them, then nothing
    first = signals + run * next_run + 2 * rows * next_client
    sums = total + run * next_total + 0 * rows
    acc = tl.zeros((SIZE, SIZE), tl.float64)
    start = tl.program_id(0) * STRETCH
    for at in range(start, tl.minimum(start + STRETCH, width), BLOCK):
        cols = (at + tl.arange(0, BLOCK))[None, :]
        pair = (cols < width) & (rows < COUNT)
        one = tl.load(first + cols, mask=pair, other=0.0).to(tl.float64)
        one -= tl.load(first + next_client + cols, mask=pair, other=0.0).to(tl.float64)
        one += tl.load(sums + cols, mask=(cols < width) & (rows == COUNT), other=0.0)
        acc = tl.dot(one, tl.trans(one), acc, out_dtype=tl.float64)
    out = parts + (run * tl.num_programs(0) + tl.program_id(0)) * ((COUNT + 1) * (COUNT + 1))
    other = tl.arange(0, SIZE)[None, :]
    tl.store(out + rows * (COUNT + 1) + other, acc, mask=(rows <= COUNT) & (other <= COUNT))


@jit
def _add(
    signals, total, values, thresholds, at, width, next_run, next_client, next_total, next_round,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add one run's differences to its sum, each with the sign that its value was given."""
    run = tl.program_id(1).to(tl.int64)
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = cols < width
    decided = tl.load(at) * next_round + run * COUNT
    own = signals + run * next_run + cols
    place = total + run * next_total + cols
    acc = tl.load(place, mask=real, other=0.0)
    for t in range(COUNT):
        small = tl.load(values + decided + t) < tl.load(thresholds + decided + t)
        first = tl.load(own + 2 * t * next_client, mask=real, other=0.0).to(tl.float64)
        second = tl.load(own + (2 * t + 1) * next_client, mask=real, other=0.0).to(tl.float64)
        acc += tl.where(small, first - second, second - first)
    tl.store(place, acc, mask=real)


@jit
def _decide(
    products, step_sizes, thresholds, values, at, tie, next_round, COUNT: tl.constexpr, SIZE: tl.constexpr
):
    """One run's values, each from the sum that the signs before it have left."""
    run = tl.program_id(0)
    places = tl.arange(0, SIZE)
    inside = places < COUNT
    decided = tl.load(at) * next_round + run * COUNT
    gram = products + run * (COUNT + 1) * (COUNT + 1)
    gamma = tl.load(step_sizes + run)
    scale = gamma * gamma
    along = tl.load(gram + COUNT * (COUNT + 1) + places, mask=inside, other=0.0) / scale
    squares = tl.load(gram + places * (COUNT + 2), mask=inside, other=0.0) / scale
    norms = tl.sqrt(tl.maximum(squares, 0.0))
    length = tl.sqrt(tl.maximum(tl.load(gram + COUNT * (COUNT + 2)) / scale, 0.0))
    limits = tl.load(thresholds + decided + places, mask=inside, other=0.0)
    found = tl.zeros((SIZE,), tl.float64)
    for t in range(COUNT):
        here = places == t
        norm = tl.sum(tl.where(here, norms, 0.0))
        length += norm
        value = tl.sum(tl.where(here, along, 0.0))
        value = tl.where(tl.abs(value) <= tie * length * norm, 0.0, value)
        sign = tl.where(value < tl.sum(tl.where(here, limits, 0.0)), 1.0, -1.0)
        found = tl.where(here, value, found)
        along += sign * (tl.load(gram + t * (COUNT + 1) + places, mask=inside, other=0.0) / scale)
    tl.store(values + decided + places, found, mask=inside)


def balance_pairs(
    signals: Tensor,
    total: Tensor,
    step_sizes: Tensor,
    thresholds: Tensor,
    values: Tensor,
    at: Tensor,
    tie: float,
) -> None:
    """Balance round ``at`` of whole pairs, signals (R, 2b, width): its values, and the moved sums (R, width).

    ``thresholds`` and ``values`` (T, R, b) are those of many rounds, so that a captured round reads and
    writes its own without a launch for each.
    """
    (_, runs, count), width = thresholds.shape, signals.shape[2]
    strides = signals.stride(0), signals.stride(1), total.stride(0)
    blocks = triton.cdiv(width, STRETCH)
    parts = torch.empty(runs, blocks, count + 1, count + 1, dtype=torch.float64, device=signals.device)
    # Tiles and warps are the fastest of 36 on an H200, for 0.8 and for 4.9 million numbers a model.
    _multiply[(blocks, runs)](
        signals, total, parts, width, *strides,
        COUNT=count, SIZE=MOST + 1, STRETCH=STRETCH, BLOCK=32, num_warps=2,
    )  # fmt: skip
    next_round = runs * count
    _decide[(runs,)](
        parts.sum(dim=1), step_sizes, thresholds, values, at, tie, next_round,
        COUNT=count, SIZE=triton.next_power_of_2(count),
    )  # fmt: skip
    _add[(triton.cdiv(width, 512), runs)](
        signals, total, values, thresholds, at, width, *strides, next_round, COUNT=count, BLOCK=512
    )


def serves(signals: Tensor, count: int) -> bool:
    """Whether the kernels take these signals, in rounds of so many pairs."""
    known = triton is not None and signals.is_cuda and signals.dtype in (torch.float32, torch.float64)
    return known and count <= MOST and signals.stride(2) == 1
