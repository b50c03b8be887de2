"""One stream of shards: read piece by piece, steered in a window, resumable without reading all again."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._balanced import SteeringBuffer
from wellorder._order import rng
from wellorder.shards._reading import Read, ShardError, name_of, opened, taken
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
        """The last that have left the window."""
        self._left: Iterator[Any] = iter(())
        """What of these, or of what is repeated after them, is not given out yet."""
        self._given = 0
        """Examples that are given out, when all of ``_left`` are."""
        self._next = (0, 0)
        """The piece and the place that are read next."""
        self._examples = itertools.chain.from_iterable(self._some())

    def __iter__(self) -> Iterator[Any]:
        """Always the same iterator; not a method of this class, because one that is compiled is quicker."""
        return self._examples

    @property
    def emitted(self) -> int:
        """How many examples were given out."""
        return self._given - length_hint(self._left)

    def _some(self) -> Iterator[Iterator[Any]]:
        """All examples, some at a time: as they leave the window, and those that are repeated after them."""
        yield map(self._waiting.pop, self._left)  # of a state that was loaded
        for number, block in self._blocks(*self._next):
            following = number + len(block)
            self._leave(self._buffer.push(block, np.arange(number, following)))
            self._next = (following >> PLACES, following & ((1 << PLACES) - 1))
            del block
            yield map(self._waiting.pop, self._left)
        self._next = (len(self.pieces), 0)
        self._leave(self._buffer.drain())
        yield map(self._waiting.pop, self._left)
        self._leaving = []
        while self._given < self.length:
            for again in self._again():
                self._give(again)
                yield self._left

    def _leave(self, numbers: list[int]) -> None:
        self._leaving = self._give(numbers)

    def _give(self, some: list[Any]) -> list[Any]:
        """Let some more go out, if these are not more than were promised."""
        if self.length >= 0:
            some = some[: self.length - self._given]
        self._given += len(some)
        self._left = iter(some)
        return some

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
        examples = opened(self._shards[shard], self._read)
        here = sum(1 for _ in itertools.islice(examples, start + place))
        while stop < 0 or here < stop:
            wanted = AT_ONCE if stop < 0 else min(AT_ONCE, stop - here)
            block, error = taken(examples, wanted)
            count = len(block)
            if block:
                yield (at << PLACES) + here - start, block
            del block  # else what was given out would stay while more is read
            here += count
            if error is not None:
                raise error
            if count < wanted:
                break
        if here < stop:
            raise self._changed(shard, f"{here}")
        if stop == self._sizes[shard] and next(examples, self) is not self:
            raise self._changed(shard, "more")

    def _changed(self, shard: int, count: str) -> ShardError:
        counted = int(self._sizes[shard])
        why = f"it has {count} examples, and the survey counted {counted}; survey the shards again"
        return ShardError(name_of(self._shards[shard]), why)

    def _again(self) -> Iterator[list[Any]]:
        """Examples that were given out before: what is missing to the length that was promised."""
        some = False
        for _, block in self._blocks(0, 0):
            some = True
            yield block
            if self._given == self.length:
                return
        if not some:
            names = ", ".join(repr(name_of(self._shards[piece.shard])) for piece in self.pieces[:3])
            raise ShardError(names, "nothing of this worker's share can be read")

    def state(self) -> dict[str, Any]:
        """Where the stream is: numbers of examples, never the examples themselves."""
        window = self._buffer.window
        given_out = len(self._leaving) - min(length_hint(self._left), len(self._leaving))
        filled = 0 if window is None else window.filled
        return {
            "next": list(self._next),
            "emitted": self.emitted,
            "leaving": np.array(self._leaving[given_out:], np.int64),
            "window": np.zeros(0, np.int64) if window is None else window.numbers[:filled].copy(),
            "total": np.zeros(0) if window is None else window.total / self._buffer.unit,
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
        if lost and self._failed == "raise":
            name = name_of(self._shards[self.pieces[lost[0] >> PLACES].shard])
            raise ShardError(name, "an example that was in flight is not there any more; survey again")
        self._given = int(state["emitted"])
        self._leave([number for number in leaving.tolist() if number in self._waiting])
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
        window.carry_on(total * buffer.unit, draws)

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
