"""``ShardedDataset``: shards in a good order for DataLoader, its workers, and several ranks."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from wellorder._arguments import one_of, seed_of, shown, whole_number
from wellorder._balanced import balanced_stream
from wellorder.shards import Survey
from wellorder.shards._order import dealt
from wellorder.shards._reading import checked_failed, listed
from wellorder.shards._shares import REMAINDERS, lengths, shares
from wellorder.shards._stream import ShardStream
from wellorder.shards._window import chosen_window

MOST_WORKERS = 1024
NEXT, LOADED, BEGUN = 0, 1, 2
"""Of each worker: the epoch that it opens next, whether it has a loaded state to go on from, and whether
an epoch has begun since the last was set."""
ACCELERATE = (
    "ranks=None: Accelerate is in use, and deals out the batches of a loader that it prepares. Pass "
    "ShardedDataset(..., rank=0, ranks=1) if the loader goes through prepare() or Trainer; pass "
    "rank=accelerator.process_index, ranks=accelerator.num_processes if it does not"
)
IN_WORKERS = (
    "the loader's workers know where they are, and this process does not: use torchdata's "
    "StatefulDataLoader, whose state_dict asks them, or tell how many batches of this epoch were used: "
    "dataset.state_dict(batches=k, batch_size=b)"
)


class ShardedDataset(IterableDataset[Any]):
    """Examples of all shards, each once an epoch, in an order that no shuffle buffer reaches.

    Shards are read one after the other in the order that `wellorder.shards.ordered_shards` makes for the
    epoch, and steered in a window. Every worker of every rank has a share in a good order of its own; shares
    are of equal length, for which a few shards are cut and read by two. Epochs count themselves, also where
    workers persist; ``set_epoch`` sets the next.

    Parameters
    ----------
    shards, read
        As they were given to `wellorder.shards.survey`.
    survey
        What it returned.
    row
        The survey's row function, if it is not in the survey (one of your own, after `Survey.load`).
    steer_by
        Another survey, whose rows steer in the window, if those of ``survey`` are dear (a `probe`'s).
    window
        How many examples wait in each worker to be chosen from: by default 1,024, or as many more as the
        survey says are needed to see the mix, up to 8,192 (`wellorder.shards.suggested_window`). One that is
        too small is warned of.
    candidates
        How many of them are looked at for a choice.
    seed
        Decides every random choice.
    batch_size
        The loader's, if you like: then a rank's workers hold whole batches, there is one short batch a rank
        at most, and ``len(loader)`` is right.
    failed
        What to do about a shard that cannot be read, or has changed since the survey: "raise" an error that
        names it, or "skip" the rest of it with a warning. Other ranks wait for as many batches as ever, so
        where there are several, examples of the share are repeated in place of those lost.
    remainder
        What to do about the last examples, where some ranks would have a batch more than others: "repeat" a
        few, fewer than there are ranks (as `DistributedSampler` does), "drop" them (others each epoch), or
        "keep" them.
    rank, ranks
        The place of this process, by default what ``torch.distributed`` or the environment says.

    >>> from torch.utils.data import DataLoader
    >>> from wellorder.shards import survey
    >>> def read(shard):
    ...     return [(torch.full((4,), float(shard)), shard // 3) for _ in range(20)]
    >>> data = ShardedDataset(range(9), read, survey=survey(range(9), read), window=60, batch_size=12)
    >>> for x, y in DataLoader(data, batch_size=12):
    ...     counts = y.bincount(minlength=3)   # shards hold one label each, batches hold all
    >>> len(data), counts.min() >= 3
    (180, tensor(True))
    """

    def __init__(
        self,
        shards: Sequence[Any],
        read: Callable[[Any], Any],
        *,
        survey: Survey,
        row: Callable[[Any], Any] | None = None,
        steer_by: Survey | None = None,
        window: int | None = None,
        candidates: int = 16,
        seed: int = 0,
        batch_size: int = 1,
        failed: str = "raise",
        remainder: str = "repeat",
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        if not isinstance(survey, Survey):
            raise ValueError(f"survey={type(survey).__name__}: pass what wellorder.shards.survey returned")
        if not callable(read):
            raise ValueError(f"read={shown(read)}: pass a function from a shard to its examples")
        self.shards, self.read, self.survey = listed(shards), read, survey
        survey.check(self.shards)
        by = survey if steer_by is None else steer_by
        if not isinstance(by, Survey):
            raise ValueError(f"steer_by={type(by).__name__}: pass what wellorder.shards.survey returned")
        self.mean, self.row = by.mean, by.row if row is None else row
        if not callable(self.row):
            raise ValueError(
                f"row={shown(self.row)}: the survey was made with a row function of your own, which is not "
                "saved; pass it, here or to Survey.load"
            )
        one_of("remainder", remainder, REMAINDERS)
        self.window = chosen_window(survey, window)
        self.candidates = whole_number("candidates", candidates, least=1)
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.seed, self.failed, self.remainder = seed_of(seed), checked_failed(failed), remainder
        if (rank is None) != (ranks is None):
            raise ValueError(f"rank={rank!r}, ranks={ranks!r}: pass both, or neither")
        self._place: tuple[int, int] | None = None
        if rank is not None:
            most = whole_number("ranks", ranks, least=1) - 1
            self._place = (whole_number("rank", rank, least=0, most=most), most + 1)
        # In shared memory, so that set_epoch reaches workers that persist, and epochs count on where not.
        self._shared = torch.zeros(3, MOST_WORKERS, dtype=torch.int64).share_memory_()
        self._stream: ShardStream | None = None
        self._opened = (0, 0, 1, 0, 1)
        """The epoch, turn, number of workers, rank and number of ranks of the present stream."""
        self._loaded: dict[str, Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that is opened next."""
        return int(self._shared[NEXT, _worker()[0]])

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is opened next, in this process and in all workers."""
        self._shared[NEXT] = whole_number("epoch", epoch, least=0)
        self._shared[BEGUN] = 0
        self._shared[LOADED] = 0
        self._stream = self._loaded = None

    def __len__(self) -> int:
        """How many examples this rank gives out in an epoch."""
        if (self.survey.sizes < 0).any():
            raise TypeError("the sizes of some shards are not known: pass sizes= to survey(...)")
        rank, ranks = self._rank()
        read, given = lengths(int(self.survey.sizes.sum()), ranks, 1, self.batch_size, self.remainder)
        return read[rank] if given < 0 else given

    def __iter__(self) -> Iterator[Any]:
        (worker, workers), (rank, ranks) = _worker(), self._rank()
        state, self._loaded = self._pending(), None
        epoch = self._begin(state)
        if ranks > 1 and (self.survey.sizes < 0).any():
            raise ValueError(
                f"{ranks} ranks cannot be given equal shares: the sizes of some shards are not known; "
                "pass sizes= to survey(...), or survey whole shards"
            )
        turn = worker if state is None else self._turn(state, worker, workers, rank, ranks)
        stream = self._opened_stream(epoch, turn, workers, rank, ranks)
        if state is not None and "batches" in state:
            used = len(range(turn, int(state["batches"]), workers)) * int(state["batch_size"])
            for _ in itertools.islice(stream, used):
                pass
        elif state is not None:
            stream.load(state)
        self._stream, self._opened = stream, (epoch, turn, workers, rank, ranks)
        return iter(stream)

    def urls(self) -> Iterator[dict[str, Any]]:
        """The shards of this worker's share in this epoch's order, as ``dict(url=shard)``.

        The first stage of a WebDataset pipeline, with `steered` as a later one. It deals out among ranks and
        workers itself, by whole shards, so numbers of batches differ, as in WebDataset.
        """
        (worker, workers), (rank, ranks) = _worker(), self._rank()
        lists = dealt(self.survey, ranks * workers, seed=self.seed, epoch=self._begin())
        return ({"url": self.shards[shard]} for shard in lists[rank * workers + worker].tolist())

    def steered(self, examples: Iterable[Any]) -> Iterator[Any]:
        """The examples that a pipeline made of `urls`, steered in a window: a stage in place of a shuffle."""
        row: Any = self.row
        epoch, mean = max(self.epoch - 1, 0), self.mean
        return balanced_stream(
            examples,
            row,
            window=self.window,
            candidates=self.candidates,
            seed=self.seed,
            epoch=epoch,
            mean=mean,
        )

    def _begin(self, state: Mapping[str, Any] | None = None) -> int:
        """Open this worker's next epoch, or the one of a state; returns its number."""
        worker, _ = _worker()
        epoch = self.epoch if state is None else int(state["epoch"])
        self._shared[NEXT, worker] = epoch + 1
        self._shared[LOADED, worker], self._shared[BEGUN, worker] = 0, 1
        return epoch

    def _opened_stream(self, epoch: int, turn: int, workers: int, rank: int, ranks: int) -> ShardStream:
        every = shares(
            self.survey, ranks, workers, self.batch_size, self.remainder, seed=self.seed, epoch=epoch
        )
        return ShardStream(
            self.shards,
            self.read,
            every[rank * workers + turn],
            self.row,  # type: ignore[arg-type]
            self.mean,
            sizes=self.survey.sizes,
            window=self.window,
            candidates=self.candidates,
            draws=(self.seed, epoch, rank * workers + turn),
            failed=self.failed,
        )

    @staticmethod
    def _turn(state: Mapping[str, Any], worker: int, workers: int, rank: int, ranks: int) -> int:
        """Whose share a worker goes on with: a new loader begins with worker 0, whoever's turn it was."""
        if "batches" in state:
            return (worker + int(state["batches"])) % workers
        saved = tuple(int(state[name]) for name in ("workers", "rank", "ranks"))
        if saved != (workers, rank, ranks):
            raise ValueError(
                f"this state is that of rank {saved[1]} of {saved[2]} with {saved[0]} workers, and this is "
                f"rank {rank} of {ranks} with {workers}: in mid-epoch both must be the same"
            )
        return int(state["worker"])

    def state_dict(self, *, batches: int | None = None, batch_size: int | None = None) -> dict[str, Any]:
        """Where this epoch is, at any step; safe for ``torch.load(weights_only=True)``.

        Without workers, or under torchdata's ``StatefulDataLoader``, it holds the numbers of the examples in
        flight, and little is read again. A plain ``DataLoader`` with workers does not know where they are:
        tell how many ``batches`` of which ``batch_size`` the loop has used in this epoch, and these will be
        read again and passed over.
        """
        told: dict[str, Any] = {"kind": "wellorder ShardedDataset 1", "must": self._must()}
        if batches is not None or batch_size is not None:
            used = whole_number("batches", batches, least=0)
            size = whole_number("batch_size", batch_size, least=1)
            epoch = int(self._shared[NEXT, 0] - self._shared[BEGUN, 0])
            return {**told, "epoch": epoch, "batches": used, "batch_size": size}
        loaded = self._pending()
        if loaded is not None:  # nothing was read since
            return loaded
        if self._stream is None:
            if self._shared[BEGUN].any():
                raise ValueError(IN_WORKERS)
            return {**told, "epoch": self.epoch, "batches": 0, "batch_size": 1}
        epoch, turn, workers, rank, ranks = self._opened
        state = {name: _tensor(value) for name, value in self._stream.state().items()}
        told |= {"worker": turn, "workers": workers, "rank": rank, "ranks": ranks}
        return {**told, "epoch": epoch, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where `state_dict` was taken."""
        if not isinstance(state, Mapping) or state.get("kind") != "wellorder ShardedDataset 1":
            raise ValueError(f"state={shown(state)}: pass what a ShardedDataset's state_dict returned")
        if state["must"] != self._must():
            raise ValueError(
                f"this state was saved with {state['must']}, and this is {self._must()}; load it where the "
                "shards and settings are the same"
            )
        self._loaded, self._stream = dict(state), None
        mine = slice(None) if get_worker_info() is None else _worker()[0]
        self._shared[NEXT, mine] = whole_number("epoch", state["epoch"], least=0)
        self._shared[LOADED, mine], self._shared[BEGUN, mine] = 1, 0

    def __getstate__(self) -> dict[str, Any]:
        """What goes to a worker: not the stream, and the rank, which a new process would not know."""
        place = self._place
        if place is None and _distributed():
            place = self._rank()
        return {**self.__dict__, "_stream": None, "_place": place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()

    def _pending(self) -> dict[str, Any] | None:
        """The state that was loaded, if no iteration went on from it yet, here or in a worker."""
        return self._loaded if self._shared[LOADED, _worker()[0]] else None

    def _must(self) -> str:
        odd = np.arange(1, 2 * len(self.shards), 2, dtype=np.uint64)  # so that their order counts
        marks = int(np.bitwise_xor.reduce(self.survey.marks * odd))
        return (
            f"{len(self.shards)} shards ({marks:016x}) of {int(self.survey.weights.sum())} examples, "
            f"window={self.window}, candidates={self.candidates}, seed={self.seed}, "
            f"batch_size={self.batch_size}, remainder={self.remainder!r}"
        )

    def _rank(self) -> tuple[int, int]:
        """The place of this process among the ranks."""
        if self._place is not None:
            return self._place
        if _distributed():
            rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, ranks = (int(os.environ.get(name, at)) for name, at in (("RANK", 0), ("WORLD_SIZE", 1)))
        if ranks > 1 and _accelerate():
            raise ValueError(ACCELERATE)
        return rank, ranks


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _accelerate() -> bool:
    """Whether an Accelerator was made in this process."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    return bool(getattr(state, "_shared_state", None))


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
