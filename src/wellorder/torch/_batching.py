"""How an epoch's order of units becomes batches of examples, each of which knows its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from wellorder._order import Order, is_permutation, rng, units_of
from wellorder.torch._frameworks import skipping_asks

Examples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batching:
    """Batches of ``size`` out of ``n`` examples; a unit is an example, or (``grouped``) a fixed micro-batch.

    Micro-batches are cut from one seeded shuffle, never from the data's own order. With ``drop_last`` each
    epoch leaves out the next ``n % size`` examples of that shuffle, so that all are left out equally often.

    >>> batching = Batching(n=5, size=2, drop_last=True)
    >>> [len(list(batching.batches(np.arange(5), epoch))) for epoch in range(3)]
    [2, 2, 2]
    >>> batching.left_out(0), batching.left_out(1)
    (array([2]), array([1]))
    """

    n: int
    size: int
    drop_last: bool = False
    grouped: bool = False
    seed: int = 0

    @property
    def units(self) -> int:
        """How many units there are for a policy to order."""
        return len(self) if self.grouped else self.n

    def __len__(self) -> int:
        return self.n // self.size if self.drop_last else -(-self.n // self.size)

    def left_out(self, epoch: int) -> Examples:
        """Examples that this epoch leaves out: a window that moves along a fixed shuffle, and wraps."""
        rest = self.n % self.size if self.drop_last else 0
        return self._shuffled[(epoch * rest + np.arange(rest)) % self.n]

    def batches(self, order: Order, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """The epoch's batches from the ``start``-th on, as lists of examples, made one at a time."""
        if self.grouped:
            members = self._shuffled[self._kept(epoch)[self._shuffled]]
            return (members[u * self.size : (u + 1) * self.size].tolist() for u in order[start:])
        visits = order
        if self.drop_last and is_permutation(order, self.n):
            visits = order[self._kept(epoch)[order]]
        edges = range(start * self.size, len(self) * self.size, self.size)
        return (visits[at : at + self.size].tolist() for at in edges)

    def owners(self, epoch: int) -> Order:
        """The unit that each example belongs to in this epoch, -1 where it is left out."""
        if not self.grouped:
            return units_of(self.n, self.seed)
        members = self._shuffled[self._kept(epoch)[self._shuffled]]
        owners = np.full(self.n, -1, np.int32)
        owners[members] = np.arange(len(members)) // self.size
        return owners

    def _kept(self, epoch: int) -> npt.NDArray[np.bool_]:
        kept = np.ones(self.n, bool)
        kept[self.left_out(epoch)] = False
        return kept

    @cached_property
    def _shuffled(self) -> Examples:
        members = units_of(self.n, self.seed).astype(np.int64)
        rng(self.seed, 0, "micro-batches").shuffle(members)
        return members


class RestOfEpoch(Sampler[list[int]]):
    """The batch sampler: what is left of the epoch. It knows no loader: a cycle would keep workers alive."""

    def __init__(self, batching: Batching) -> None:
        self.batching = batching
        self.batch_size, self.drop_last = batching.size, batching.drop_last
        self.order: Order = np.zeros(0, np.int32)
        self.epoch = self.start = 0
        # Whether the loader is asking, and whether somebody else did: batches are then drawn past the loader.
        self.asked_by_loader = self.asked_elsewhere = False
        self.skipped_through = -1  # the epoch whose rest `skip_first_batches` drew, to its end

    def __iter__(self) -> Iterator[list[int]]:
        self.asked_elsewhere = not self.asked_by_loader
        if skipping_asks():
            return self._whole()
        return self.batching.batches(self.order, self.epoch, self.start)

    def __len__(self) -> int:
        return len(self.batching) - (0 if skipping_asks() else self.start)

    def _whole(self) -> Iterator[list[int]]:
        """The whole epoch, whose first batches are skipped, also where a loaded state would go on later."""
        epoch = self.epoch
        yield from self.batching.batches(self.order, epoch)
        self.skipped_through = epoch


class ExamplesOfEpoch(Sampler[int]):
    """The sampler: the examples of what is left of the epoch, one after the other."""

    def __init__(self, rest: RestOfEpoch) -> None:
        self.rest = rest

    def __iter__(self) -> Iterator[int]:
        return (example for batch in self.rest for example in batch)

    def __len__(self) -> int:
        batching = self.rest.batching
        visited = len(batching) * batching.size if batching.drop_last else batching.n
        return max(visited - self.rest.start * batching.size, 0)


class NumberedDataset:
    """A data set that gives a batch's numbers with its items; all else about it is the data set's own.

    Identity travels with the data: workers, prefetching and pinning may deliver batches whenever they like.

    >>> NumberedDataset("abc").__getitems__([2, 0]), NumberedDataset("abc").upper()
    (([2, 0], ['c', 'a']), 'ABC')
    """

    __slots__ = ("wrapped",)

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "wrapped", dataset)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getitem__(self, index: int) -> Any:
        return self.wrapped[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Sequence[int], list[Any]]:
        """A batch's numbers and its items; torch hands both to the collate as they are."""
        fetch = getattr(self.wrapped, "__getitems__", None)
        return indices, fetch(indices) if fetch is not None else [self.wrapped[i] for i in indices]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped, name, value)

    def __reduce__(self) -> tuple[type[NumberedDataset], tuple[Any]]:
        return NumberedDataset, (self.wrapped,)


class NumberedCollate:
    """The loader's own collate, with the batch's item numbers beside the result."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, batch: tuple[Sequence[int], list[Any]]) -> tuple[np.ndarray[Any, Any], Any]:
        indices, items = batch
        return np.array(indices, np.int64), self.collate(items)
