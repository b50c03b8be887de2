"""Small steps side by side: what a layer was given and got back in eight of them, to be sketched at once.

A small layer's sketch is made by a handful of tiny operations, each of which costs its call and little else.
So the step only copies what is to be projected, and the products are made for eight steps together. Of a
large layer the step projects both, which then wait to be multiplied (`stacked`). All have
the same shape whatever was asked for in between, and a step always lies in the same place: its row comes out
the same, bit for bit, whether a run was saved, interrupted, looked at or left alone. (Where several batches
share one backward pass, a step may find its place taken, and be projected at once: then up to rounding.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wellorder.torch._batch_record import BatchRecord

STEPS = 8
MOST = {"cpu": 1 << 16}
"""Numbers of a layer in a step, in and out, from which on copying them costs more than the calls."""
MOST_ON_DEVICE = 1 << 18
USES = 2
"""A layer that has more parts in a step, as a recurrent one has, multiplies them all at once in that step."""


class Slots:
    """Inputs of one kind (shape, precision, device) and their gradients; ``batch`` examples a step."""

    def __init__(self, seen: Tensor, dtype: torch.dtype, batch: int, stands_for: int) -> None:
        self._batch, self.stands_for = batch, stands_for
        self.given = torch.zeros(STEPS * batch, *seen.shape[1:], dtype=dtype, device=seen.device)
        self.back: Tensor | None = None
        self._places = self.given.split(batch), tuple[Tensor, ...]()
        self.owners: list[BatchRecord | None] = [None] * STEPS
        self.whole = [False] * STEPS

    def rows(self, record: BatchRecord) -> slice:
        """Where a batch's examples lie."""
        start = place_of(record) * self._batch
        return slice(start, start + record.size)

    def keep(self, record: BatchRecord, seen: Tensor) -> bool:
        """Copy what a layer was given, unless the place is taken by another call or a batch that waits."""
        place = place_of(record)
        owner = self.owners[place]
        if record.size > self._batch or owner is record or (owner is not None and not owner.done):
            return False
        self.owners[place], self.whole[place] = record, False
        self._put(self._places[0][place], seen)
        return True

    def take(self, record: BatchRecord, felt: Tensor) -> bool:
        """Copy the gradient that came back, unless one came before."""
        place = place_of(record)
        if self.whole[place] or self.owners[place] is not record:
            return False
        if self.back is None:
            shape = (STEPS * self._batch, *felt.shape[1:])
            self.back = torch.zeros(shape, dtype=felt.dtype, device=felt.device)
            self._places = self._places[0], self.back.split(self._batch)
        if self.back.shape[1:] != felt.shape[1:] or self.back.dtype != felt.dtype:
            return False
        self._put(self._places[1][place], felt)
        self.whole[place] = True
        return True

    def _put(self, place: Tensor, rows: Tensor) -> None:
        count = rows.shape[0]  # a tensor's len() takes several times as long
        (place if count == self._batch else place[:count]).copy_(rows)

    def shown(self, records: Sequence[BatchRecord]) -> tuple[Tensor, Tensor] | None:
        """Inputs and gradients, zero for those of these batches that have none; None if none of them has any.

        A place may hold a later batch's by now, which waits for its own turn: then these are copies.
        """
        missing = [r for r in records if self.owners[place_of(r)] is not r or not self.whole[place_of(r)]]
        if self.back is None or len(missing) == len(records):
            return None
        given, back = self.given, self.back
        owners = [
            owner for r in missing if (owner := self.owners[place_of(r)]) is not None and owner is not r
        ]
        if any(not owner.done for owner in owners):
            given, back = given.clone(), back.clone()
        for record in missing:
            for rows in (given, back):
                rows[self.rows(record)].zero_()
        return given, back


class SideBySide:
    """One layer's `Slots`, by the kind of its input."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.kinds: dict[Any, Slots] = {}

    def keep(
        self, record: BatchRecord, seen: Tensor, output: Tensor, stands_for: Callable[[Tensor], int]
    ) -> Slots | None:
        """Copy what is looked at of an input; None where it is to be projected at once.

        Each position that is looked at ``stands_for`` so many of the output's.
        """
        key = (seen.shape[1:], output.shape[1:], output.dtype, seen.device)
        slots = self.kinds.get(key)
        if slots is None:
            positions = stands_for(output)
            each = math.prod(seen.shape[1:]) + math.prod(output.shape[1:]) // positions
            plain = type(seen) in (Tensor, nn.Parameter) and type(output) is Tensor
            plain = plain and seen.layout is torch.strided  # a sparse input is projected as it is
            if not plain or self._batch * each > MOST.get(seen.device.type, MOST_ON_DEVICE):
                return None
            slots = self.kinds[key] = Slots(seen, output.dtype, self._batch, positions)
        return slots if slots.keep(record, seen) else None

    def in_order(self) -> list[Slots]:
        """All kinds, in an order that does not depend on which came first."""
        if len(self.kinds) < 2:
            return list(self.kinds.values())
        return [self.kinds[key] for key in sorted(self.kinds, key=str)]

    def takes_room(self) -> bool:
        """Whether several kinds are kept and none is needed: with many they would take memory without end."""
        owners = [owner for slots in self.kinds.values() for owner in slots.owners]
        return len(self.kinds) > 1 and all(owner is None or owner.done for owner in owners)


def stacked(records: Sequence[BatchRecord], batch: int) -> list[Any]:
    """Parts of several steps, which are taken from their records, as parts of all of them.

    They come by their use in a step, the first or the second, and by their place in the rows, and a step
    without such a part has zeros there: what its row is added up of does not depend on the steps beside it.
    What is large stays where it is.
    """
    found: dict[Any, dict[int, Any]] = {}
    for record in records:
        uses = Counter(part.place for part in record.parts)
        some = record.size <= batch and 0 < max(uses.values(), default=0) <= USES
        if not some or not all(_may_wait(part.left, part.right) for part in record.parts):
            continue
        for part in record.parts:
            uses[part.place] -= 1
            both = part.left, part.right
            kind = (uses[part.place], part.place, part.scale, *(x.shape[1:] for x in both))
            key = (*kind, *(str(each) for x in both for each in (x.dtype, x.device)))
            found.setdefault(key, {})[place_of(record)] = part
        record.parts = []
    return [_beside(found[key], batch) for key in sorted(found)]


def _may_wait(*both: Tensor) -> bool:
    most = MOST.get(both[0].device.type, MOST_ON_DEVICE)
    return sum(x.numel() for x in both) <= most and all(type(x) is Tensor for x in both)


def _beside(parts: dict[int, Any], batch: int) -> Any:
    """One part of all steps, made of those of some of them."""
    some = next(iter(parts.values()))

    def whole(which: str) -> Tensor:
        rows: dict[int, Tensor] = {step: getattr(part, which) for step, part in parts.items()}
        like = next(iter(rows.values()))
        if len(rows) == STEPS and all(x.shape[0] == batch for x in rows.values()):
            return torch.cat([rows[step] for step in range(STEPS)])
        filled = like.new_zeros(STEPS * batch, *like.shape[1:])
        for step, x in rows.items():
            filled[step * batch : step * batch + x.shape[0]] = x
        return filled

    return some._replace(left=whole("left"), right=whole("right"))


def place_of(record: BatchRecord) -> int:
    """A batch's place, by its step in the epoch."""
    return record.step % STEPS
