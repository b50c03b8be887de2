"""A stretch of rounds on the device: everything that the rounds need, and where their decisions go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wellorder.federated._batches import Shape, augmentations, shuffled_batches, whole_batches
from wellorder.federated._store import MARGIN, Store
from wellorder.federated._training import Batches


@dataclass(frozen=True)
class Chunk:
    """Static buffers for ``rounds`` rounds of R runs of S clients, and the number of the round at hand.

    A captured round reads its inputs by that number and raises it, so replaying takes nothing from the host.
    """

    examples: Tensor
    real: Tensor
    codes: Tensor | None
    weights: Tensor
    at: Tensor

    @property
    def rounds(self) -> int:
        return len(self.examples)


def empty_chunk(rounds: int, runs: int, cohort: int, shape: Shape, store: Store) -> Chunk:
    """Buffers to be filled by `fill`."""
    device = store.labels.device
    full = (rounds, runs, cohort, shape.steps, shape.batch)
    return Chunk(
        torch.zeros(full, dtype=torch.int64, device=device),
        torch.zeros(full, dtype=torch.bool, device=device),
        torch.zeros((*full, 3), dtype=torch.int64, device=device) if store.augment else None,
        torch.zeros(full[:3], dtype=store.dtype, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
    )


def fill(
    chunk: Chunk, store: Store, clients: Tensor, keys: tuple[Tensor, Tensor], shape: Shape, whole: bool
) -> None:
    """Draw the mini-batches (and augmentations) of clients (T, R, S), with two keys for each run."""
    batch_keys, image_keys = (key[None, :, None].expand(clients.shape) for key in keys)
    sizes = store.sizes[clients]
    places, real = (
        whole_batches(sizes, shape) if whole else shuffled_batches(batch_keys, clients, sizes, shape)
    )
    put(chunk, store, clients, places, real)
    if chunk.codes is not None:
        chunk.codes[: len(clients)] = augmentations(image_keys, clients, shape, MARGIN)


def put(chunk: Chunk, store: Store, clients: Tensor, places: Tensor, real: Tensor) -> None:
    """Set the examples that clients (T, R, S) take, given by their places (T, R, S, K, B) among their own."""
    chunk.examples[: len(clients)] = store.examples[store.starts[clients][..., None, None] + places]
    chunk.real[: len(clients)] = real
    chunk.at.zero_()


def work_of(chunk: Chunk, store: Store) -> tuple[Batches, Tensor]:
    """The inputs of the round at hand, gathered, and its weights."""
    examples = chunk.examples.index_select(0, chunk.at)[0].flatten(0, 1)
    codes = chunk.codes.index_select(0, chunk.at)[0].flatten(0, 1) if chunk.codes is not None else None
    real = chunk.real.index_select(0, chunk.at)[0].flatten(0, 1)
    weights = chunk.weights.index_select(0, chunk.at)[0]
    return Batches(store.gather(examples, codes), store.labels[examples], real), weights
