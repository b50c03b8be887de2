"""One stream of shards: read piece by piece, steered in a window, resumable without reading all again."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._balanced import SteeringBuffer
from wellorder._order import rng
from wellorder.shards._reading import Read, ShardError, name_of, reading
from wellorder.shards._shares import Share

AT_ONCE = 256
"""Examples between two calls of the compiled kernel."""
PLACES = 40
"""Bits of an example's number that tell its place in the shard; those above tell the piece."""

Ints = npt.NDArray[np.int64]
Block = tuple[int, list[Any]]
"""The number of the first of some examples that follow each other, and the examples."""


class ShardStream:
    """An iterator over the examples of a share, each exactly once, in steered order.

    An example goes by a number that tells where it was read, so a saved state holds numbers alone: those that
    wait, those that have left the window and are not given out yet, and how far reading has come.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        read: Read,
        share: Share,
        row: Callable[[Any], Any],
        mean: npt.NDArray[np.float64],
        *,
        sizes: npt.NDArray[np.int64],
        window: int,
        candidates: int,
        draws: tuple[int, int, int],
        failed: str,
    ) -> None:
        self._shards, self._read, self._sizes, self._failed = shards, read, sizes, failed
        self.pieces, self.length = share
        seed, epoch, stream = draws
        draw = rng(seed, epoch, f"shards.{stream}")
        self._buffer: SteeringBuffer[Any] = SteeringBuffer(row, window, candidates, draw, mean)
        self._waiting = self._buffer.waiting
        self._leaving: list[int] = []
        """Those that have left the window and are not given out yet, the next one last."""
        self.emitted = 0
        self._next = (0, 0)
        """The piece and the place that are read next."""
        self._reader: Iterator[Block] | None = None
        self._again: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._leaving:
            if not self._refill():
                return self._repeated()
        if self.emitted == self.length:
            raise StopIteration
        self.emitted += 1
        return self._waiting.pop(self._leaving.pop())

    def _refill(self) -> bool:
        """Read some more; whether anything leaves, now or later."""
        if self._reader is None:
            self._reader = self._blocks(*self._next)
        number, block = next(self._reader, (len(self.pieces) << PLACES, []))
        following = number + len(block)
        self._next = (following >> PLACES, following & ((1 << PLACES) - 1))
        if block:
            self._leaving = self._buffer.push(block, np.arange(number, following))[::-1]
        else:
            self._leaving = self._buffer.drain()[::-1]
        return bool(block or self._leaving)

    def _blocks(self, first: int, place: int) -> Iterator[Block]:
        """The examples of all pieces from one on."""
        for at in range(first, len(self.pieces)):
            try:
                yield from self._piece(at, place)
            except ShardError as error:
                if self._failed == "raise":
                    raise
                warnings.warn(f"the rest was skipped of {error}", UserWarning, stacklevel=2)
            place = 0

    def _piece(self, at: int, place: int) -> Iterator[Block]:
        """The examples of a piece from a place on; what was read before an error is given out before it."""
        shard, start, stop = self.pieces[at]
        examples = reading(self._shards[shard], self._read)
        here = sum(1 for _ in itertools.islice(examples, start + place))
        while stop < 0 or here < stop:
            wanted = AT_ONCE if stop < 0 else min(AT_ONCE, stop - here)
            block: list[Any] = []
            error = None
            try:
                block.extend(itertools.islice(examples, wanted))  # an error leaves what was read before it
            except ShardError as told:
                error = told
            if block:
                yield (at << PLACES) + here - start, block
            here += len(block)
            if error is not None:
                raise error
            if len(block) < wanted:
                break
        if here < stop:
            raise self._changed(shard, f"{here}")
        if stop == self._sizes[shard] and next(examples, self) is not self:
            raise self._changed(shard, "more")

    def _changed(self, shard: int, count: str) -> ShardError:
        counted = int(self._sizes[shard])
        why = f"it has {count} examples, and the survey counted {counted}; survey the shards again"
        return ShardError(name_of(self._shards[shard]), why)

    def _repeated(self) -> Any:
        """An example that was given out before: what is missing to the length that was promised."""
        if self.length < 0 or self.emitted >= self.length:
            raise StopIteration
        if self._again is None:
            self._again = self._round_and_round()
        example = next(self._again)
        self.emitted += 1
        return example

    def _round_and_round(self) -> Iterator[Any]:
        while True:
            some = False
            for _, block in self._blocks(0, 0):
                some = True
                yield from block
            if not some:
                names = ", ".join(repr(name_of(self._shards[piece.shard])) for piece in self.pieces[:3])
                raise ShardError(names, "nothing of this worker's share can be read")

    def state(self) -> dict[str, Any]:
        """Where the stream is: numbers of examples, never the examples themselves."""
        window = self._buffer.window
        filled = 0 if window is None else window.filled
        return {
            "next": list(self._next),
            "emitted": self.emitted,
            "leaving": np.array(self._leaving[::-1], np.int64),
            "window": np.zeros(0, np.int64) if window is None else window.numbers[:filled].copy(),
            "total": np.zeros(0) if window is None else window.total.copy(),
            "draws": 0 if window is None else int(window.draws[0]),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where the stream was whose `state` this is; reads again the shards of what was in flight."""
        held, leaving = np.asarray(state["window"], np.int64), np.asarray(state["leaving"], np.int64)
        piece, place = (int(number) for number in state["next"])
        needed = np.concatenate([held, leaving])
        by_piece = self._by_piece(needed, piece, place)
        for at in sorted(by_piece):
            self._gather(at, by_piece[at])
        self._next = (piece, place)
        lost = [number for number in needed.tolist() if number not in self._waiting]
        held = np.array([number for number in held.tolist() if number in self._waiting], np.int64)
        self._leaving = [number for number in leaving[::-1].tolist() if number in self._waiting]
        if lost and self._failed == "raise":
            name = name_of(self._shards[self.pieces[lost[0] >> PLACES].shard])
            raise ShardError(name, "an example that was in flight is not there any more; survey again")
        self.emitted = int(state["emitted"])
        if len(state["total"]):
            self._restore(held, np.asarray(state["total"], np.float64), int(state["draws"]))

    def _restore(self, held: Ints, total: npt.NDArray[np.float64], draws: int) -> None:
        buffer = self._buffer
        if total.shape != buffer.mean.shape or not np.isfinite(total).all() or len(held) > buffer.size:
            raise ValueError("this state does not fit the survey and the window; load it where it was saved")
        for at in range(0, len(held), AT_ONCE):
            some = held[at : at + AT_ONCE]
            buffer.push([buffer.waiting[number] for number in some.tolist()], some)
        window = buffer.opened(len(total))
        window.carry_on(total, draws)

    def _by_piece(self, needed: Ints, piece: int, place: int) -> dict[int, set[int]]:
        """The numbers by their pieces; refuses what this share cannot have given."""
        out: dict[int, set[int]] = {}
        for number in needed.tolist():
            at, where = number >> PLACES, number & ((1 << PLACES) - 1)
            known = 0 <= at < len(self.pieces) and (at, where) < (piece, place)
            if not known or 0 <= self.pieces[at].stop - self.pieces[at].start <= where:
                raise ValueError("this state does not fit the shards; load it where it was saved")
            out.setdefault(at, set()).add(number)
        if len(needed) != sum(map(len, out.values())):
            raise ValueError("this state holds an example twice; load an intact copy")
        return out

    def _gather(self, at: int, wanted: set[int]) -> None:
        """Read the wanted examples of a piece that was read before."""
        last = max(wanted)
        try:
            for number, block in self._piece(at, 0):
                found = {n: example for n, example in enumerate(block, number) if n in wanted}
                self._waiting.update(found)
                if number + len(block) > last:
                    return
        except ShardError as error:
            if self._failed == "raise":
                raise
            warnings.warn(f"the rest was skipped of {error}", UserWarning, stacklevel=2)
