"""Several processes: which this one is, its share of the data, and how all of them come to know all rows."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed
from torch.utils.data import DistributedSampler

from wellorder._order import Order, Policy
from wellorder.torch._observing import ManyBatches

ROOM = 1 << 26
"""Bytes of rows, of all ranks together, that are under way at a time."""
CURES = {
    "place": "every rank must draw as many batches: leave an epoch on all ranks in the same step, or on none",
    "steps of this epoch": "leave an epoch on all ranks in the same step, or on none",
    "steps of the epoch before": "leave an epoch on all ranks in the same step, or on none",
    "step": "load the states of one moment on all ranks",
    "examples": "give all ranks the same data set, which is then sharded; if each has its own, cut them to "
    "one length and pass policy=CDGraB(workers=the number of ranks), without a DistributedSampler",
    "batch_size": "use the same DataLoader settings on all ranks",
    "drop_last": "use the same DataLoader settings on all ranks",
    "shares": "use the same DistributedSampler settings on all ranks",
    "seed": "pass the same seed on all ranks",
    "policy": "pass the same policy on all ranks",
    "signals": "pass the same signals on all ranks",
    "parameters of the model": "train the same model on all ranks",
    "order": "orders must be equal on all ranks: give all the same rows, and load the states of one moment",
    "numbers in a row": "train the same model on all ranks",
}
"""What ranks must agree on, in the order in which it is looked at, and what to do where they do not."""


@dataclass(frozen=True)
class Share:
    """What one process takes: of the whole visiting order, every ``of``-th place from the ``number``-th on.

    So it takes its part of every *global* batch, the same places as a `DistributedSampler` does. That has
    ``drop_last``, too: leave out what does not come out even, where otherwise the first units come again.
    With ``own`` data in each process, unit u is example u // of in the data of process u % of.
    """

    number: int = 0
    of: int = 1
    drop_last: bool = False
    own: bool = False


def share_of(sampler: Any, policy: Policy[Any]) -> Share:
    """The share that a loader's sampler asks for, or else that of this rank, if there are several.

    A policy with ``workers`` keeps the places of each worker to that worker's units, so every rank may have
    data of its own; that is what is meant where no `DistributedSampler` says that data are shared.
    """
    if isinstance(sampler, DistributedSampler):
        return Share(sampler.rank, sampler.num_replicas, sampler.drop_last)
    if not initialised():
        return Share()
    rank, world = distributed.get_rank(), distributed.get_world_size()
    workers = getattr(policy, "workers", None)
    if workers is None or world == 1:
        return Share(rank, world)
    if workers != world:
        raise ValueError(
            f"policy={type(policy).__name__}(workers={workers}) on {world} ranks, each with its own data: "
            f"pass workers={world}, or a DistributedSampler in the loader if all ranks have the same data"
        )
    return Share(rank, world, own=True)


def initialised() -> bool:
    """Whether there is a process group."""
    return distributed.is_available() and distributed.is_initialized()


def check_initialised(*, observing: bool, share: Share) -> None:
    """Refuse to train in one of several processes that do not know of each other."""
    if initialised():
        return
    told = int(os.environ.get("WORLD_SIZE", "1") or 1) if "RANK" in os.environ else 1
    if observing and share.of > 1:
        raise ValueError(
            f"loader.sampler shares the data among {share.of} processes, whose signals must come together, "
            "and there is no process group; call torch.distributed.init_process_group() before the loop"
        )
    if told > 1 and share.of == 1:
        raise ValueError(
            f"WORLD_SIZE={told}: this is one of several processes, and torch.distributed is not initialised, "
            "so each would visit all examples; call torch.distributed.init_process_group() before the loop"
        )


class Ranks:
    """The processes that train together; they meet where an epoch begins, and where an observed one ends.

    Nothing else is sent: a step of the training never waits for us.
    """

    def __init__(self) -> None:
        self.sent = 0
        """Bytes that this process gave to the others."""
        self._givers: list[int] = []

    def agree(self, where: str, share: Share, facts: Mapping[str, int]) -> None:
        """Compare what must be equal; if it is not, every rank raises the same error."""
        values = self._all_gather(where, torch.tensor([*facts.values(), share.number], dtype=torch.int64))
        for column, name in enumerate(facts):
            _check_equal(where, name, values[:, column].tolist())
        self._givers = _givers(values[:, -1].tolist(), share)

    def rows_of_all(
        self, where: str, share: Share, visits: Order, mine: tuple[npt.NDArray[np.int64], Tensor], step: int
    ) -> Iterator[ManyBatches]:
        """All ranks' rows in the order of the visits, some global batches at a time, the same bytes on all.

        ``visits`` are the epoch's units, all shares'; ``mine`` are the places in this share's part of them
        that were observed, ascending, with their rows; a ``step`` takes so many of a share's places. The
        ranks have agreed before.
        """
        places, rows = mine
        givers, count = self._givers, len(visits) // share.of
        lengths = self._all_gather(where, torch.tensor([rows.shape[1]], dtype=torch.int64))[:, 0].tolist()
        dim = max(lengths)
        _check_equal(where, "numbers in a row", [length or dim for length in lengths])
        if not dim:
            return
        marks = torch.zeros(count, dtype=torch.uint8)
        marks[torch.from_numpy(places)] = 1
        heard = self._all_gather(where, marks)[givers].numpy().astype(bool)
        block = step * max(1, ROOM // (4 * dim * step * share.of))
        for low in range(0, count, block):
            high = min(low + block, count)
            first, last = np.searchsorted(places, [low, high])
            part = rows.new_zeros(high - low, dim, dtype=torch.float32)
            if last > first:
                part[torch.from_numpy(places[first:last] - low).to(part.device)] = rows[first:last].float()
            every = self._all_gather(where, part)[givers].transpose(0, 1).reshape(-1, dim)
            known = heard[:, low:high].T
            counts = [int(known[at : at + step].sum()) for at in range(0, high - low, step)]
            units = visits[low * share.of : high * share.of]
            if not known.all():
                units, every = units[known.ravel()], every[torch.from_numpy(known.ravel())]
            if len(units):
                yield ManyBatches(units, [c for c in counts if c], every)

    def _all_gather(self, where: str, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, stacked, on the CPU."""
        given = tensor.to(_device()).contiguous()
        found = given.new_empty(distributed.get_world_size(), *given.shape)
        try:
            distributed.all_gather(list(found), given)
        except RuntimeError as error:
            raise RuntimeError(
                f"the ranks did not meet at {where}: one has failed, or draws another number of batches "
                f"than the others ({error})"
            ) from error
        self.sent += given.nbytes
        return found.cpu()


def checksum(value: Order | str) -> int:
    """A short number for an order or a text, to be compared."""
    return zlib.crc32(value.encode() if isinstance(value, str) else np.ascontiguousarray(value).data)


def _givers(numbers: list[int], share: Share) -> list[int]:
    """The first rank of every share: where ranks share one (tensor parallelism), they saw the same."""
    missing = sorted(set(range(share.of)) - set(numbers))
    if missing:
        raise ValueError(
            f"the DistributedSampler counts num_replicas={share.of}, and no rank of the {len(numbers)} in "
            f"torch.distributed takes number {missing[0]}; make it with the group's own numbers"
        )
    return [numbers.index(number) for number in range(share.of)]


def _check_equal(where: str, name: str, found: list[int]) -> None:
    if len(set(found)) > 1:
        raise ValueError(f"at {where} ranks differ in {_told(name, found)}; {CURES[name]}")


def _told(name: str, found: list[int]) -> str:
    """A name with its values: ``seed: 0 on rank 0, 1 on ranks 1, 2``."""
    ranks: dict[int, list[str]] = {}
    for rank, value in enumerate(found):
        ranks.setdefault(value, []).append(str(rank))
    parts = []
    for value, those in list(ranks.items())[:4]:
        shown = ", ".join(those[:4]) + (" …" if len(those) > 4 else "")
        parts.append(f"{_in_words(name, value)} on rank{'s' * (len(those) > 1)} {shown}")
    return f"{name}: " + ", ".join(parts)


def _in_words(name: str, value: int) -> str:
    if name == "place":
        return f"the {('start', 'end')[value % 2]} of epoch {value // 2}"
    return f"#{value:08x}" if name in ("order", "policy", "signals", "shares") else str(value)


def _device() -> torch.device:
    """Where tensors must be to be sent: in memory if the group can, else on the accelerator."""
    config = str(distributed.get_backend_config())
    if any(f"cpu:{name}" in config for name in ("gloo", "mpi", "ucc", "fake")):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else _accelerator()


def _accelerator() -> torch.device:
    found = getattr(torch, "accelerator", None)
    device = None if found is None else found.current_accelerator()
    return torch.device("cpu") if device is None else device
