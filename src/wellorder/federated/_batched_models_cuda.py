"""Triton kernels for CUDA: each lane's own convolution without ever writing its patches, and fused pooling.

The twins of these in plain torch are in `wellorder.federated._batched_models`; both compute the same.
"""
# mypy: ignore-errors
# ruff: noqa: N803, E741, D403, PIE808  (kernels are written in Triton's language, sizes in capitals)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wellorder._triton import jit, tl, triton


@jit
def _convolve(
    x, w, y, batch, high, wide, high_out, wide_out, stride, pad, taps_by_channels,
    next_lane, next_out, next_tap, next_channel, C: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    WHOLE: tl.constexpr, BACK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y[lane, b, i, j] = Σ over taps of x[lane, b, i·stride + ky − pad, j·stride + kx − pad]·w[lane, tap].

    The weights are read where they lie, by strides; BACK takes the taps from the last to the first.
    """
    lane = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(2) * BN + tl.arange(0, BN)
    positions = high_out * wide_out
    real = rows < batch * positions
    image = rows // positions
    place = rows % positions
    top = (place // wide_out) * stride - pad
    left = (place % wide_out) * stride - pad
    base = x + (lane * batch + image).to(tl.int64) * (high * wide * C)
    kernel = w + lane.to(tl.int64) * next_lane + cols[None, :] * next_out
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(taps_by_channels, BK)):
        k = step * BK + tl.arange(0, BK)
        if WHOLE:  # a block of one tap's channels: the tap is the same for all of it
            tap = (step * BK) // C
            channel = (step * BK) % C + tl.arange(0, BK)
            row = top + tap // K
            col = left + tap % K
            inside = real & (row >= 0) & (row < high) & (col >= 0) & (col < wide)
            at = base[:, None] + (row * wide + col)[:, None] * C + channel[None, :]
            a = tl.load(at, mask=inside[:, None], other=0.0)
        else:
            tap = k // C
            row = top[:, None] + (tap // K)[None, :]
            col = left[:, None] + (tap % K)[None, :]
            inside = (row >= 0) & (row < high) & (col >= 0) & (col < wide)
            at = base[:, None] + (row * wide + col) * C + (k % C)[None, :]
            a = tl.load(at, mask=inside & real[:, None] & (k < taps_by_channels)[None, :], other=0.0)
        if BACK:
            tap = K * K - 1 - tap
        if WHOLE:
            b = tl.load(kernel + tap * next_tap + channel[:, None] * next_channel)
        else:
            where = kernel + tap[:, None] * next_tap + (k % C)[:, None] * next_channel
            b = tl.load(where, mask=(k < taps_by_channels)[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = y + lane.to(tl.int64) * (batch * positions * O) + rows[:, None] * O + cols[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=real[:, None])


@jit
def _weigh(
    x, dy, dw, batch, high, wide, high_out, wide_out, stride, pad, taps_by_channels, images,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dw[part, lane, o, tap·C + c] = Σ over the part's images and positions of dy·patch."""
    lane = tl.program_id(1)
    blocks = tl.cdiv(taps_by_channels, BK)
    part = tl.program_id(2)
    k = (tl.program_id(0) % blocks) * BK + tl.arange(0, BK)
    cols = (tl.program_id(0) // blocks) * BN + tl.arange(0, BN)
    tap = k // C
    positions = high_out * wide_out
    start = part * images * positions
    stop = tl.minimum(start + images * positions, batch * positions)
    acc = tl.zeros((BK, BN), tl.float32)
    for at in range(start, stop, BR):
        rows = at + tl.arange(0, BR)
        real = rows < stop
        image = rows // positions
        place = rows % positions
        row = (place // wide_out)[None, :] * stride - pad + (tap // K)[:, None]
        col = (place % wide_out)[None, :] * stride - pad + (tap % K)[:, None]
        inside = (row >= 0) & (row < high) & (col >= 0) & (col < wide)
        inside = inside & real[None, :] & (k < taps_by_channels)[:, None]
        base = x + (lane * batch + image).to(tl.int64) * (high * wide * C)
        a = tl.load(base[None, :] + (row * wide + col) * C + (k % C)[:, None], mask=inside, other=0.0)
        where = dy + lane.to(tl.int64) * (batch * positions * O) + rows[:, None] * O + cols[None, :]
        b = tl.load(where, mask=real[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = dw + (part * tl.num_programs(1) + lane).to(tl.int64) * (taps_by_channels * O)
    tl.store(out + cols[None, :] * taps_by_channels + k[:, None], acc, mask=(k < taps_by_channels)[:, None])


@jit
def _pool(x, bias, y, argmax, total, high, wide, per_lane, C: tl.constexpr, BLOCK: tl.constexpr):
    """y = relu(max over 2×2 of x + the lane's bias), and which of the four it was (the first if equal)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    channel = at % C
    pixel = at // C
    col = pixel % wide
    row = (pixel // wide) % high
    image = pixel // (wide * high)
    first = ((image * 2 * high + 2 * row) * 2 * wide + 2 * col) * C + channel
    best = tl.load(x + first, mask=real, other=0.0).to(tl.float32)
    which = tl.zeros((BLOCK,), tl.int8)
    for q in tl.static_range(1, 4):
        other = tl.load(x + first + ((q // 2) * 2 * wide + q % 2) * C, mask=real, other=0.0).to(tl.float32)
        which = tl.where(other > best, q, which).to(tl.int8)
        best = tl.maximum(best, other)
    added = best + tl.load(bias + (at // per_lane) * C + channel, mask=real, other=0.0).to(tl.float32)
    tl.store(y + at, tl.maximum(added, 0.0).to(y.dtype.element_ty), mask=real)
    tl.store(argmax + at, which, mask=real)


@jit
def _unpool(dy, y, argmax, dx, dz, total, high, wide, C: tl.constexpr, BLOCK: tl.constexpr):
    """dz = dy where y > 0; dx has it at the pixel that was the largest, and 0 at its three neighbours."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    pixel = at // C
    col = pixel % wide
    row = (pixel // wide) % high
    image = pixel // (wide * high)
    first = ((image * 2 * high + 2 * row) * 2 * wide + 2 * col) * C + at % C
    grad = tl.load(dy + at, mask=real, other=0.0)
    grad = tl.where(tl.load(y + at, mask=real, other=0.0) > 0, grad, 0.0)
    which = tl.load(argmax + at, mask=real, other=0)
    for q in tl.static_range(0, 4):
        tl.store(dx + first + ((q // 2) * 2 * wide + q % 2) * C, tl.where(which == q, grad, 0.0), mask=real)
    tl.store(dz + at, grad, mask=real)


def serves(x: Tensor, out: int) -> bool:
    """Whether the kernels take these inputs and so many output channels: a power of two, 16 or more."""
    known = triton is not None and x.dtype in (torch.float32, torch.bfloat16)
    return known and out >= 16 and out & (out - 1) == 0


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int, *, back: bool = False) -> Tensor:
    """Images (L, B, H, W, C) by each lane's kernels (L, O, k, k, C): (L, B, H', W', O).

    ``back`` takes a gradient (L, B, H, W, O) to where it came from: the same kernels, taps turned round.
    """
    taps = weight.permute(0, 4, 2, 3, 1) if back else weight  # to (L, to, k, k, from)
    lanes, batch, high, wide, inside = x.shape
    out, kernel = taps.shape[1], taps.shape[2]
    high_out, wide_out = ((side + 2 * padding - kernel) // stride + 1 for side in (high, wide))
    y = x.new_empty(lanes, batch, high_out, wide_out, out)
    block = min(out, 64)
    depth = 32 if inside % 32 else min(inside, 64 if x.dtype == torch.bfloat16 else 32)
    rows = 64 if high_out * wide_out <= 64 else 128  # output positions of one program
    grid = (triton.cdiv(batch * high_out * wide_out, rows), lanes, out // block)
    if kernel > 1 and taps.stride(2) != kernel * taps.stride(3):
        raise ValueError("the taps of a kernel must lie evenly spaced; pass weights stored channels last")
    _convolve[grid](
        x, taps, y, batch, high, wide, high_out, wide_out, stride, padding, kernel * kernel * inside,
        taps.stride(0), taps.stride(1), taps.stride(3), taps.stride(4),
        C=inside, O=out, K=kernel, BM=rows, BN=block, BK=depth, WHOLE=inside % depth == 0, BACK=back,
        PRECISION=precision(), num_warps=4, num_stages=3,
    )  # fmt: skip
    return y


def weigh(x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient of `convolve` in its kernels, (L, O, k·k·C), summed in a fixed order."""
    lanes, batch, high, wide, inside = x.shape
    high_out, wide_out, out = dy.shape[2:]
    width = kernel * kernel * inside
    block, depth = min(out, 64), 64 if width > 64 else 32
    blocks = triton.cdiv(width, depth) * (out // block)
    parts = min(batch, max(1, 512 // (blocks * lanes)))
    images = triton.cdiv(batch, parts)
    parts = triton.cdiv(batch, images)
    dw = torch.empty(parts, lanes, out, width, dtype=torch.float32, device=x.device)
    _weigh[(blocks, lanes, parts)](
        x, dy, dw, batch, high, wide, high_out, wide_out, stride, padding, width, images,
        C=inside, O=out, K=kernel, BK=depth, BN=block, BR=64, PRECISION=precision(),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return (dw[0] if parts == 1 else dw.sum(dim=0)).to(x.dtype)


class PoolReLU(torch.autograd.Function):
    """relu(max_pool2d(x, 2) + bias) for images (L, B, H, W, C) of even sides and biases (L, C)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        x = x.contiguous()  # cuDNN's images lie in another order
        lanes, batch, high, wide, channels = x.shape
        y = x.new_empty(lanes, batch, high // 2, wide // 2, channels)
        argmax = torch.empty_like(y, dtype=torch.int8)
        grid = (triton.cdiv(y.numel(), 1024),)
        _pool[grid](
            x,
            bias.contiguous(),
            y,
            argmax,
            y.numel(),
            high // 2,
            wide // 2,
            y[0].numel(),
            C=channels,
            BLOCK=1024,
        )
        ctx.save_for_backward(y, argmax)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        y, argmax = ctx.saved_tensors
        lanes, batch, high, wide, channels = y.shape
        dy = dy.contiguous()
        dx = y.new_empty(lanes, batch, 2 * high, 2 * wide, channels)
        dz = torch.empty_like(y)
        grid = (triton.cdiv(y.numel(), 1024),)
        _unpool[grid](dy, y, argmax, dx, dz, y.numel(), high, wide, C=channels, BLOCK=1024)
        return dx, dz.sum(dim=(1, 2, 3), dtype=torch.float32)


def precision() -> str:
    """How float32 products are made."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
