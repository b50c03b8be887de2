"""Triton kernels for CUDA: each lane's own convolution without ever writing its patches, and fused pooling.

The twins of these in plain torch are in `wellorder.federated._batched_models`; both compute the same.
"""
# mypy: ignore-errors
# ruff: noqa: N803, E741, D403, PIE808  (kernels are written in Triton's language, sizes in capitals)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wellorder._triton import jit, tl, triton

BITS = 5
"""The largest side of a kernel whose taps fit into the bits of a number."""


@jit
def _convolve(
    x, w, y, batch, stride, pad, next_lane, next_out, next_tap, next_channel,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HIGH_OUT: tl.constexpr, WIDE_OUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    WHOLE: tl.constexpr, BACK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y[lane, b, i, j] = Σ over taps of x[lane, b, i·stride + ky − pad, j·stride + kx − pad]·w[lane, tap].

    The weights are read where they lie, by strides; BACK takes the taps from the last to the first.
    """
    lane = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(2) * BN + tl.arange(0, BN)
    real = rows < batch * HIGH_OUT * WIDE_OUT
    image = rows // (HIGH_OUT * WIDE_OUT)
    top = ((rows // WIDE_OUT) % HIGH_OUT) * stride - pad
    left = (rows % WIDE_OUT) * stride - pad
    base = x + (lane * batch + image).to(tl.int64) * (HIGH * WIDE * C) + (top * WIDE + left) * C
    kernel = w + lane.to(tl.int64) * next_lane
    acc = tl.zeros((BM, BN), tl.float32)
    if WHOLE:  # a block of one tap's channels; which taps a place has is worked out once, a bit for each
        has = tl.zeros((BM,), tl.int32)
        for bit in tl.static_range(0, K * K):
            y_tap = top + bit // K
            x_tap = left + bit % K
            inside = real & (y_tap >= 0) & (y_tap < HIGH) & (x_tap >= 0) & (x_tap < WIDE)
            has = has | tl.where(inside, 1 << bit, 0)
        for step in range(0, K * K * (C // BK)):
            tap = step // (C // BK)
            channel = (step % (C // BK)) * BK + tl.arange(0, BK)  # the compiler sees that blocks are aligned
            at = base[:, None] + (((tap // K) * WIDE + tap % K) * C + channel)[None, :]
            a = tl.load(at, mask=(((has >> tap) & 1) != 0)[:, None], other=0.0)
            if BACK:  # weights lie by the channels that come out
                where = kernel + (K * K - 1 - tap) * next_tap + channel[:, None] * next_channel
                b = tl.load(where + cols[None, :] * next_out)
            else:  # by those that go in: read them so, and turn the block
                where = kernel + tap * next_tap + channel[None, :] * next_channel
                b = tl.trans(tl.load(where + cols[:, None] * next_out))
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    else:
        for step in range(0, tl.cdiv(K * K * C, BK)):
            k = step * BK + tl.arange(0, BK)
            tap = k // C
            row = top[:, None] + (tap // K)[None, :]
            col = left[:, None] + (tap % K)[None, :]
            inside = (row >= 0) & (row < HIGH) & (col >= 0) & (col < WIDE)
            at = base[:, None] + (((tap // K) * WIDE + tap % K) * C + k % C)[None, :]
            a = tl.load(at, mask=inside & real[:, None] & (k < K * K * C)[None, :], other=0.0)
            turned = K * K - 1 - tap if BACK else tap
            where = kernel + cols[None, :] * next_out + turned[:, None] * next_tap
            where += (k % C)[:, None] * next_channel
            b = tl.load(where, mask=(k < K * K * C)[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = y + lane.to(tl.int64) * (batch * HIGH_OUT * WIDE_OUT * O) + rows[:, None] * O + cols[None, :]
    tl.store(out, acc.to(y.dtype.element_ty), mask=real[:, None])


@jit
def _weigh(
    x, dy, dw, batch, stride, pad, images, next_lane,
    C: tl.constexpr, O: tl.constexpr, K: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HIGH_OUT: tl.constexpr, WIDE_OUT: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dw[part, lane, o, tap·C + c] = Σ over the part's images and positions of dy·patch."""
    lane = tl.program_id(1)
    part = tl.program_id(2)
    blocks = tl.cdiv(K * K * C, BK)
    begin = (tl.program_id(0) % blocks) * BK
    k = begin + tl.arange(0, BK)
    cols = (tl.program_id(0) // blocks) * BN + tl.arange(0, BN)
    positions = HIGH_OUT * WIDE_OUT
    start = part * images * positions
    stop = tl.minimum(start + images * positions, batch * positions)
    acc = tl.zeros((BK, BN), tl.float32)
    for at in range(start, stop, BR):
        rows = at + tl.arange(0, BR)
        real = rows < stop
        top = ((rows // WIDE_OUT) % HIGH_OUT) * stride - pad
        left = (rows % WIDE_OUT) * stride - pad
        base = x + (lane * batch + rows // positions).to(tl.int64) * (HIGH * WIDE * C)
        if WHOLE:  # the tap is the same for all of the block: no arithmetic for every number of it
            row = top + (begin // C) // K
            col = left + (begin // C) % K
            inside = real & (row >= 0) & (row < HIGH) & (col >= 0) & (col < WIDE)
            pixel = base + (row * WIDE + col) * C
            a = tl.load(pixel[:, None] + (k % C)[None, :], mask=inside[:, None], other=0.0)
        else:
            row = top[:, None] + ((k // C) // K)[None, :]
            col = left[:, None] + ((k // C) % K)[None, :]
            inside = (row >= 0) & (row < HIGH) & (col >= 0) & (col < WIDE)
            inside = inside & real[:, None] & (k < K * K * C)[None, :]
            a = tl.load(base[:, None] + (row * WIDE + col) * C + (k % C)[None, :], mask=inside, other=0.0)
        where = dy + lane.to(tl.int64) * (batch * positions * O) + rows[:, None] * O + cols[None, :]
        b = tl.load(where, mask=real[:, None], other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    out = dw + part.to(tl.int64) * (tl.num_programs(1) * K * K * C * O) + lane.to(tl.int64) * next_lane
    tl.store(out + cols[None, :] * (K * K * C) + k[:, None], acc, mask=(k < K * K * C)[:, None])


@jit
def _copy_patches(
    x, rows, total, stride, pad, WIDTH: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HIGH_OUT: tl.constexpr, WIDE_OUT: tl.constexpr,
    BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """rows[(image, i, j), tap·C + c] = x[image, i·stride + ky − pad, j·stride + kx − pad, c], 0 beyond."""
    place = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    tap = k // C
    row = (((place // WIDE_OUT) % HIGH_OUT) * stride - pad)[:, None] + (tap // K)[None, :]
    col = ((place % WIDE_OUT) * stride - pad)[:, None] + (tap % K)[None, :]
    real = (place < total)[:, None] & (k < WIDTH)[None, :]
    inside = real & (row >= 0) & (row < HIGH) & (col >= 0) & (col < WIDE) & (k < K * K * C)[None, :]
    image = x + (place // (HIGH_OUT * WIDE_OUT)).to(tl.int64)[:, None] * (HIGH * WIDE * C)
    found = tl.load(image + (row * WIDE + col) * C + (k % C)[None, :], mask=inside, other=0.0)
    tl.store(rows + place.to(tl.int64)[:, None] * WIDTH + k[None, :], found, mask=real)


@jit
def _gather(
    parts, dx, total, stride, pad, C: tl.constexpr, K: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HIGH_OUT: tl.constexpr, WIDE_OUT: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx[image, row, col] = Σ over the taps whose patch has the pixel, of parts[image, patch, tap]."""
    pixel = tl.program_id(0) * BR + tl.arange(0, BR)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    real = pixel < total
    image = pixel // (HIGH * WIDE)
    row = (pixel // WIDE) % HIGH + pad
    col = pixel % WIDE + pad
    known = (channel < C)[None, :]
    acc = tl.zeros((BR, BC), tl.float32)
    for tap in tl.static_range(0, K * K):
        i = row - tap // K
        j = col - tap % K
        inside = real & (i >= 0) & (j >= 0) & (i % stride == 0) & (j % stride == 0)
        inside = inside & (i < HIGH_OUT * stride) & (j < WIDE_OUT * stride)
        patch = ((image * HIGH_OUT + i // stride) * WIDE_OUT + j // stride).to(tl.int64) * (K * K) + tap
        at = parts + (patch * C)[:, None] + channel[None, :]
        acc += tl.load(at, mask=inside[:, None] & known, other=0.0).to(tl.float32)
    out = dx + (pixel.to(tl.int64) * C)[:, None] + channel[None, :]
    tl.store(out, acc.to(dx.dtype.element_ty), mask=real[:, None] & known)


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
    high_out, wide_out = sides_of((high, wide), kernel, stride, padding)
    y = x.new_empty(lanes, batch, high_out, wide_out, out)
    rows, block, depth, warps, stages = tile(x, batch * high_out * wide_out, out)
    grid = (triton.cdiv(batch * high_out * wide_out, rows), lanes, out // block)
    if kernel > 1 and taps.stride(2) != kernel * taps.stride(3):
        raise ValueError("the taps of a kernel must lie evenly spaced; pass weights stored channels last")
    _convolve[grid](
        x, taps, y, batch, stride, padding, taps.stride(0), taps.stride(1), taps.stride(3), taps.stride(4),
        C=inside, O=out, K=kernel, HIGH=high, WIDE=wide, HIGH_OUT=high_out, WIDE_OUT=wide_out,
        BM=rows, BN=block, BK=depth, WHOLE=inside % depth == 0 and kernel <= BITS, BACK=back,
        PRECISION=precision(), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def tile(x: Tensor, places: int, out: int) -> tuple[int, int, int, int, int]:
    """What one program of `convolve` makes: places, channels, numbers at a time; its warps and stages."""
    inside, half = x.shape[4], x.dtype == torch.bfloat16
    depth = 32 if inside % 32 else min(inside, 64 if half else 32)
    if out < 128 or not half:
        return 64 if places <= 1024 else 128, min(out, 64), depth, 4, 3
    return (64, 64, depth, 4, 4) if places <= 256 else (64, 128, depth, 4, 3)


def weighing_tile(x: Tensor, width: int, out: int) -> tuple[int, int, int, int, int]:
    """What one program of `weigh` makes: taps by channels, channels, places at a time; warps and stages."""
    return 32 if width <= 64 else 64, min(out, 128 if x.dtype == torch.bfloat16 else 64), 64, 4, 3


def weigh(
    x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int, place: Tensor | None = None
) -> Tensor:
    """The gradient of `convolve` in its kernels, (L, O, k·k·C), summed in a fixed order.

    It is written to ``place``, float32 and each lane's in one piece, where that is given.
    """
    lanes, batch, high, wide, inside = x.shape
    high_out, wide_out, out = dy.shape[2:]
    width = kernel * kernel * inside
    depth, block, places, warps, stages = weighing_tile(x, width, out)
    blocks = triton.cdiv(width, depth) * (out // block)
    parts = min(batch, max(1, 512 // (blocks * lanes)))
    images = triton.cdiv(batch, parts)
    parts = triton.cdiv(batch, images)
    dw = torch.empty(parts, lanes, out, width, dtype=torch.float32, device=x.device)
    fits = place is not None and place.dtype == torch.float32 and place[0].is_contiguous()
    goal = place.flatten(2) if fits else dw[0]
    if parts == 1:
        dw = goal[None]
    _weigh[(blocks, lanes, parts)](
        x, dy, dw, batch, stride, padding, images, dw.stride(1),
        C=inside, O=out, K=kernel, HIGH=high, WIDE=wide, HIGH_OUT=high_out, WIDE_OUT=wide_out,
        BK=depth, BN=block, BR=places, WHOLE=inside % depth == 0,
        PRECISION=precision(), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return goal if parts == 1 else torch.sum(dw, dim=0, out=goal if fits else None)


def sides_of(sides: Sequence[int], kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """(H', W') of what a convolution makes of (H, W)."""
    high, wide = ((side + 2 * padding - kernel) // stride + 1 for side in sides)
    return high, wide


def copy_patches(x: Tensor, kernel: int, stride: int, padding: int, width: int) -> Tensor:
    """The patches of images (L, B, H, W, C), one after the other, as rows (L, B·H'·W', ``width``)."""
    x = x.contiguous()
    lanes, batch, high, wide, inside = x.shape
    high_out, wide_out = sides_of((high, wide), kernel, stride, padding)
    places = batch * high_out * wide_out
    rows = x.new_empty(lanes, places, width)
    block = min(128, triton.next_power_of_2(width))
    grid = (triton.cdiv(lanes * places, 32), triton.cdiv(width, block))
    _copy_patches[grid](
        x, rows, lanes * places, stride, padding, WIDTH=width, C=inside, K=kernel,
        HIGH=high, WIDE=wide, HIGH_OUT=high_out, WIDE_OUT=wide_out, BR=32, BK=block,
    )  # fmt: skip
    return rows


def gather(parts: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """Patches' gradients (L, B, H', W', k, k, C) added back to the pixels (L, B, H, W, C) = ``shape``."""
    dx = parts.new_empty(shape)
    high, wide, inside = shape[2:]
    pixels, block = dx.numel() // inside, min(128, triton.next_power_of_2(inside))
    _gather[(triton.cdiv(pixels, 16), triton.cdiv(inside, block))](
        parts, dx, pixels, stride, padding, C=inside, K=parts.shape[4],
        HIGH=high, WIDE=wide, HIGH_OUT=parts.shape[2], WIDE_OUT=parts.shape[3], BR=16, BC=block,
    )  # fmt: skip
    return dx


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
