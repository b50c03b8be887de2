"""How an epoch's order of units becomes batches of examples, each of which knows its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

from wellorder._order import Order, is_permutation, rng, units_of
from wellorder.torch._distributed import Share
from wellorder.torch._frameworks import PlainWhenCalled, skipping_asks
from wellorder.torch._schedule import NextState

Examples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batching:
    """Batches of ``size`` out of ``n`` examples; a unit is an example, or (``grouped``) a fixed micro-batch.

    Micro-batches are cut from one seeded shuffle, never from the data's own order. With ``drop_last`` each
    epoch leaves out the next ``n % size`` examples of that shuffle, so that all are left out equally often.

    Of several processes each takes its ``share`` of every global batch. Sizes are those of a
    `DistributedSampler`: what does not come out even is left out, or the first units come once more.

    >>> batching = Batching(n=5, size=2, drop_last=True)
    >>> [len(list(batching.batches(np.arange(5), epoch))) for epoch in range(3)]
    [2, 2, 2]
    >>> batching.left_out(0), batching.left_out(1)
    (array([2]), array([1]))
    >>> [list(Batching(5, 2, share=Share(rank, 2)).batches(np.arange(5), 0)) for rank in (0, 1)]
    [[[0, 2], [4]], [[1, 3], [0]]]
    """

    n: int
    size: int
    drop_last: bool = False
    grouped: bool = False
    seed: int = 0
    share: Share = field(default_factory=Share)

    @property
    def units(self) -> int:
        """How many units there are for a policy to order; with own data, those of all processes."""
        return self._own_units * (self.share.of if self.share.own else 1)

    @property
    def plain(self) -> bool:
        """Whether batches are the order itself, cut into pieces."""
        return self.share.of == 1 and not self.grouped and self.visits == self.n

    @property
    def step(self) -> int:
        """How many units a step visits here."""
        return 1 if self.grouped else self.size

    @property
    def visits(self) -> int:
        """How many units an epoch visits here."""
        places = self._own_units
        if not self.share.own:
            dropping = self.share.drop_last or (self.grouped and self.drop_last)
            places = places // self.share.of if dropping else -(-places // self.share.of)
        return places // self.step * self.step if self.drop_last else places

    @property
    def padded(self) -> int:
        """How many of them, at the epoch's end, are visited for a second time, to come out even."""
        return max(self.visits - -(-(self.units - self.share.number) // self.share.of), 0)

    @property
    def examples(self) -> int:
        """How many examples an epoch visits here, short micro-batches counted as whole ones on many ranks."""
        if self.grouped:
            return self.n - len(self.left_out(0)) if self.share.of == 1 else self.visits * self.size
        return self.visits

    def __len__(self) -> int:
        return -(-self.visits // self.step)

    def left_out(self, epoch: int) -> Examples:
        """Examples that this epoch leaves out: a window that moves along a fixed shuffle, and wraps.

        Where each process has its own data, the window moves along the order instead.
        """
        if self.grouped:
            rest = self.n % self.size if self.drop_last else 0
        else:
            rest = 0 if self.share.own else max(self.n - self.visits * self.share.of, 0)
        return self._shuffled[self._window(epoch, self.n, rest)]

    def of_all(self, order: Order, epoch: int) -> Order:
        """The units that the epoch visits in all processes; every ``share.of``-th place is one's own."""
        count = self.visits * self.share.of
        if self.share.own:  # whole rounds of one unit of each are left out, so that places stay theirs
            kept = np.ones(len(order) // self.share.of, bool)
            kept[self._window(epoch, len(kept), len(kept) - self.visits)] = False
            rounds: Order = order[np.repeat(kept, self.share.of)]
            return rounds
        if count < self.units and is_permutation(order, self.units):
            order = order[self._kept_units(epoch)[order]]
        return order[:count] if count <= len(order) else np.resize(order, count)

    def batches(self, order: Order, epoch: int, start: int = 0) -> Iterator[list[int]]:
        """The epoch's batches from the ``start``-th on, as lists of examples, made one at a time."""
        visits = self.of_all(order, epoch)[self.share.number :: self.share.of]
        if self.share.own:
            visits = visits // self.share.of
        if self.grouped:
            members = self._shuffled[self._kept(epoch)[self._shuffled]]
            return (members[u * self.size : (u + 1) * self.size].tolist() for u in visits[start:])
        edges = range(start * self.size, len(visits), self.size)
        return (visits[at : at + self.size].tolist() for at in edges)

    def owners(self, epoch: int) -> Order:
        """The unit that each example belongs to in this epoch, -1 where it is left out."""
        if not self.grouped:
            owners = units_of(self.n, self.seed)
        else:
            members = self._shuffled[self._kept(epoch)[self._shuffled]]
            owners = np.full(self.n, -1, np.int32)
            owners[members] = np.arange(len(members)) // self.size
        if self.share.own:
            owners = np.where(owners < 0, -1, owners * self.share.of + self.share.number)
        return owners

    def same_steps(self, size: int, ranks: int) -> bool:
        """Whether ``ranks`` processes with batches of ``size`` take the same global batches as these."""
        before = replace(self, size=size, share=replace(self.share, number=0, of=ranks))
        same = self.size * self.share.of == size * ranks and len(before) == len(self)
        return same and not self.grouped and not self.share.own

    @property
    def _own_units(self) -> int:
        """Units in the data that are here."""
        if not self.grouped:
            return self.n
        return self.n // self.size if self.drop_last else -(-self.n // self.size)

    def _kept_units(self, epoch: int) -> npt.NDArray[np.bool_]:
        """Which units the epoch visits, where it does not visit all."""
        if not self.grouped:
            return self._kept(epoch)
        kept = np.ones(self.units, bool)
        kept[self._window(epoch, self.units, self.units - self.visits * self.share.of)] = False
        return kept

    @staticmethod
    def _window(epoch: int, places: int, rest: int) -> Examples:
        """The next ``rest`` of so many places, epoch after epoch, round and round."""
        return (epoch * rest + np.arange(rest)) % places

    def _kept(self, epoch: int) -> npt.NDArray[np.bool_]:
        kept = np.ones(self.n, bool)
        kept[self.left_out(epoch)] = False
        return kept

    @cached_property
    def _shuffled(self) -> Examples:
        members = units_of(self.n, self.seed).astype(np.int64)
        rng(self.seed, 0, "micro-batches").shuffle(members)
        return members


class RestOfEpoch(PlainWhenCalled, Sampler[list[int]]):
    """The batch sampler: what is left of the epoch. It knows no loader: a cycle would keep workers alive."""

    _plain = BatchSampler

    def _begin(self, batching: Batching) -> None:
        self.batching = batching
        self.batch_size, self.drop_last = batching.size, batching.drop_last
        self.order: Order = np.zeros(0, np.int32)
        self.coming: NextState | None = None
        """The order, while it is in the making; then it is drawn from its beginning."""
        self.epoch = self.start = 0
        # Whether the loader is asking, and whether somebody else did: batches are then drawn past the loader.
        self.asked_by_loader = self.asked_elsewhere = False
        self.told_epoch = 0  # by a trainer
        self.skipped_through = -1  # the epoch whose rest `skip_first_batches` drew, to its end

    def __iter__(self) -> Iterator[list[int]]:
        self.asked_elsewhere = not self.asked_by_loader
        return self._whole() if skipping_asks() else self._batches(self.start)

    def __len__(self) -> int:
        return len(self.batching) - (0 if skipping_asks() else self.start)

    def _whole(self) -> Iterator[list[int]]:
        """The whole epoch, whose first batches are skipped, also where a loaded state would go on later."""
        epoch = self.epoch
        yield from self._batches(0)
        self.skipped_through = epoch

    def _batches(self, start: int) -> Iterator[list[int]]:
        if self.coming is not None:  # an epoch that begins is drawn from its start
            return self.coming.batches(self.batching.size, len(self.batching))
        return self.batching.batches(self.order, self.epoch, start)


class ExamplesOfEpoch(DistributedSampler[int]):
    """The sampler: the examples of what is left of the epoch, one after the other.

    It is a `DistributedSampler`, since it gives this process its own share: trainers that would shard other
    samplers once more leave such a one as it is.
    """

    def __init__(self, rest: RestOfEpoch, dataset: Any) -> None:
        # Not the parent's: it draws and cuts the order itself, and what it would remember may change here.
        self.rest, self.dataset, self.shuffle = rest, dataset, True

    def __iter__(self) -> Iterator[int]:
        return (example for batch in self.rest for example in batch)

    def __len__(self) -> int:
        batching = self.rest.batching
        return max(batching.examples - self.rest.start * batching.size, 0)

    def set_epoch(self, epoch: int) -> None:
        """Changes nothing: the loader knows its epoch. But a new loader in a later epoch is warned of."""
        self.rest.told_epoch = epoch

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many processes share the data."""
        return self.rest.batching.share.of

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Which of them this is."""
        return self.rest.batching.share.number

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """How many examples an epoch visits here."""
        return self.rest.batching.examples

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """How many it visits in all processes."""
        return self.num_samples * self.num_replicas

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that is visited."""
        return self.rest.epoch

    @property
    def seed(self) -> int:  # type: ignore[override]
        """What the orders depend on."""
        return self.rest.batching.seed

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """Whether what does not come out even among the processes is left out."""
        return self.rest.batching.share.drop_last


class Failed(list[Exception]):
    """In a batch's place, the error of the data set, or of a worker, until it is raised."""


def with_errors(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches, and `Failed` ones, in whose place a generator could not raise the error and go on."""
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            batch = Failed([error])
        yield batch


class BatchesOrErrors:
    """An iterator that goes on after an error, as a `DataLoader`'s does: who skips broken batches may."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> BatchesOrErrors:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if type(batch) is Failed:  # nobody may hold the error, or it and this would keep each other alive
            raise batch.pop()
        return batch


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
