"""Local mini-batches and augmentations for many clients at once, by counter, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellorder.federated._counter import FIRST, GOLDEN, SECOND

LAST = 2**63 - 1


def signed(value: int) -> int:
    """An unsigned 64-bit number as the int64 of the same bits (torch has no unsigned arithmetic)."""
    return value - 2**64 if value > LAST else value


def bits(keys: Tensor, index: Tensor) -> Tensor:
    """`wellorder.federated._counter.bits` for int64 tensors."""
    z = keys + (index + 1) * signed(GOLDEN)
    z = (z ^ _shift(z, 30)) * signed(FIRST)
    z = (z ^ _shift(z, 27)) * signed(SECOND)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


@dataclass(frozen=True)
class Shape:
    """Local steps of a visit and their mini-batches, for clients of at most ``longest`` examples."""

    steps: int
    batch: int
    longest: int
    passes: int
    """The most passes that any client makes in a visit."""


def shape_of(sizes: Sequence[int], steps: int, batch: int | None) -> Shape:
    """The shape that serves all clients; ``batch=None`` takes all of a client's examples at each step."""
    longest = int(max(sizes))
    size = longest if batch is None else min(batch, longest)
    return Shape(steps, size, longest, -(-steps // -(-int(min(sizes)) // size)))


def shuffled_batches(keys: Tensor, clients: Tensor, sizes: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Which examples each client takes at each local step: pass after pass, each in a new random order.

    A pass over m examples has ⌈m/batch⌉ mini-batches, the last one short. Takes keys and clients (…),
    the clients' ``sizes`` (…); gives places (…, steps, batch) in 0..size-1, and a mask of the real ones.
    """
    longest, passes, steps, batch = shape.longest, shape.passes, shape.steps, shape.batch
    each = (sizes + batch - 1) // batch
    device = sizes.device
    slot = torch.arange(passes * longest, device=device)
    noise = _shift(bits(keys[..., None], clients[..., None] * (passes * longest) + slot), 1)
    noise = noise.unflatten(-1, (passes, longest))
    noise = noise.masked_fill(torch.arange(longest, device=device) >= sizes[..., None, None], LAST)
    order = noise.argsort(dim=-1, stable=True).flatten(-2)
    step = torch.arange(steps, device=device)
    turn, at = step // each[..., None], step % each[..., None]
    place = at[..., None] * batch + torch.arange(batch, device=device)
    real = place < sizes[..., None, None]
    where = turn[..., None] * longest + torch.where(real, place, 0)
    return order.gather(-1, where.flatten(-2)).unflatten(-1, (steps, batch)), real


def whole_batches(sizes: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """All examples of the client at each step: places (…, steps, longest) and a mask."""
    place = torch.arange(shape.longest, device=sizes.device)
    real = place < sizes[..., None]
    full = (*sizes.shape, shape.steps, shape.longest)
    return torch.where(real, place, 0)[..., None, :].expand(full), real[..., None, :].expand(full)


def augmentations(keys: Tensor, clients: Tensor, shape: Shape, margin: int) -> Tensor:
    """Random crops and flips, (…, steps, batch, 3): rows down, columns right (0..2·margin), flipped."""
    steps, batch = shape.steps, shape.batch
    index = clients[..., None] * (steps * batch) + torch.arange(steps * batch, device=clients.device)
    noise = bits(keys[..., None], index).unflatten(-1, (steps, batch))
    span, mask = 2 * margin + 1, (1 << 20) - 1
    return torch.stack(
        [(noise & mask) % span, (_shift(noise, 20) & mask) % span, _shift(noise, 40) & 1], dim=-1
    )
