"""Local mini-batches and augmentations of many clients at once, drawn by counter on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellorder._kernels.random_bits import FIRST, GOLDEN, SECOND, keys_of
from wellorder.federated._client_data import MARGIN, Store

LAST = 2**63 - 1
Keys = tuple[Tensor, Tensor, Tensor]
"""Each run's keys of an epoch: for mini-batches, for augmentations, and for dropout."""


@dataclass(frozen=True)
class Batches:
    """A round's work: inputs (L, K, B, …), labels (L, K, B), and a mask of the real examples."""

    inputs: Tensor
    labels: Tensor
    real: Tensor
    keys: Tensor
    """(L,): what each lane draws from, beyond its mini-batches."""
    taken: tuple[bool, ...] | None = None
    """Which lanes really have a client, where the host knows; the others need not be trained."""


def signed(value: int) -> int:
    """An unsigned 64-bit number as the int64 of the same bits (torch has no unsigned arithmetic)."""
    return value - 2**64 if value > LAST else value


def bits(keys: Tensor, index: Tensor) -> Tensor:
    """`wellorder._kernels.random_bits.bits` for int64 tensors."""
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


def epoch_keys(seeds: Sequence[int], epoch: int, device: torch.device) -> Keys:
    """The keys of an epoch, for runs with these seeds."""
    streams = ("batches", "augment", "dropout")
    keys = torch.from_numpy(keys_of(seeds, epoch, streams).view("int64")).to(device)
    return keys[0], keys[1], keys[2]


def shuffled_batches(keys: Tensor, visits: Tensor, sizes: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Which examples each client takes at each local step: pass after pass, each in a new random order.

    A pass over m examples has ⌈m/batch⌉ mini-batches, the last one short. Takes keys and visits (…),
    the clients' ``sizes`` (…); gives places (…, steps, batch) in 0..size-1, and a mask of the real ones.
    """
    longest, passes, steps, batch = shape.longest, shape.passes, shape.steps, shape.batch
    each = (sizes + batch - 1) // batch
    device = sizes.device
    slot = torch.arange(passes * longest, device=device)
    noise = _shift(bits(keys[..., None], visits[..., None] * (passes * longest) + slot), 1)
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


def augmentations(keys: Tensor, visits: Tensor, shape: Shape, margin: int) -> Tensor:
    """Random crops and flips, (…, steps, batch, 3): rows down, columns right (0..2·margin), flipped."""
    steps, batch = shape.steps, shape.batch
    index = visits[..., None] * (steps * batch) + torch.arange(steps * batch, device=visits.device)
    noise = bits(keys[..., None], index).unflatten(-1, (steps, batch))
    span, mask = 2 * margin + 1, (1 << 20) - 1
    return torch.stack(
        [(noise & mask) % span, (_shift(noise, 20) & mask) % span, _shift(noise, 40) & 1], dim=-1
    )


@dataclass(frozen=True)
class RoundInputs:
    """Static buffers for a stretch of rounds of R runs of S clients, and the number of the round at hand.

    A captured round reads its inputs by that number and raises it, so replaying takes nothing from the host.
    """

    examples: Tensor
    real: Tensor
    codes: Tensor | None
    weights: Tensor
    keys: Tensor
    at: Tensor

    @staticmethod
    def empty(rounds: int, runs: int, cohort: int, shape: Shape, store: Store) -> RoundInputs:
        """Buffers to be filled by `fill`."""
        device = store.labels.device
        full = (rounds, runs, cohort, shape.steps, shape.batch)
        return RoundInputs(
            torch.zeros(full, dtype=torch.int64, device=device),
            torch.zeros(full, dtype=torch.bool, device=device),
            torch.zeros((*full, 3), dtype=torch.int64, device=device) if store.augment else None,
            torch.zeros(full[:3], dtype=store.dtype, device=device),
            torch.zeros(full[:3], dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
        )

    @property
    def rounds(self) -> int:
        return len(self.examples)

    def fill(
        self, store: Store, clients: Tensor, visits: Tensor, keys: Keys, shape: Shape, whole: bool
    ) -> None:
        """Draw the mini-batches (and augmentations) of clients (T, R, S), with three keys for each run.

        ``visits`` numbers what is drawn: a client that is visited twice in an epoch has two numbers.
        """
        batch_keys, image_keys, other_keys = (key[None, :, None].expand(clients.shape) for key in keys)
        sizes = store.sizes[clients]
        places, real = (
            whole_batches(sizes, shape) if whole else shuffled_batches(batch_keys, visits, sizes, shape)
        )
        self.put(store, clients, places, real)
        self.keys[: len(clients)] = bits(other_keys, visits)
        if self.codes is not None:
            self.codes[: len(clients)] = augmentations(image_keys, visits, shape, MARGIN)

    def put(self, store: Store, clients: Tensor, places: Tensor, real: Tensor) -> None:
        """Set the examples that clients (T, R, S) take, by their places (T, R, S, K, B) among their own."""
        self.examples[: len(clients)] = store.examples[store.starts[clients][..., None, None] + places]
        self.real[: len(clients)] = real
        self.at.zero_()

    def work(self, store: Store) -> tuple[Batches, Tensor]:
        """The inputs of the round at hand, gathered, and its weights."""
        examples = self.examples.index_select(0, self.at)[0].flatten(0, 1)
        codes = self.codes.index_select(0, self.at)[0].flatten(0, 1) if self.codes is not None else None
        real = self.real.index_select(0, self.at)[0].flatten(0, 1)
        weights = self.weights.index_select(0, self.at)[0]
        keys = self.keys.index_select(0, self.at)[0].flatten(0, 1)
        return Batches(store.gather(examples, codes), store.labels[examples], real, keys), weights
