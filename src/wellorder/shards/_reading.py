"""Reading shards: what a shard is called, and an error that names the one that failed."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import shown

Read = Callable[[Any], Iterable[Any]]
FAILED = ("raise", "skip")


class ShardError(ValueError):
    """A shard could not be read, or does not hold what the survey saw in it; ``shard`` is its name."""

    def __init__(self, shard: str, why: str) -> None:
        super().__init__(shard, why)
        self.shard, self.why = shard, why

    def __str__(self) -> str:
        return f"shard {self.shard!r}: {self.why}"


def name_of(shard: Any) -> str:
    """A shard's name: a path or a string as it is, anything else as it is printed."""
    return os.fspath(shard) if isinstance(shard, str | os.PathLike) else repr(shard)


def marks_of(shards: Sequence[Any]) -> npt.NDArray[np.uint64]:
    """64 bits of each name's hash: enough to tell a hundred thousand names apart, and to find a new one."""
    digests = [hashlib.blake2b(name_of(shard).encode(), digest_size=8).digest() for shard in shards]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def listed(shards: Any) -> list[Any]:
    """Take the list of shards; refuses an empty one, and a name that comes twice."""
    if isinstance(shards, str | bytes | os.PathLike):
        raise ValueError(
            f"shards={shown(shards)}: pass a list of shards, e.g. sorted(glob.glob('data/*.tar'))"
        )
    try:
        found = list(shards)
    except TypeError:
        raise ValueError(f"shards={shown(shards)}: pass a list of shards") from None
    if not found:
        raise ValueError("shards=[]: pass at least one shard; did a pattern match no file?")
    marks = marks_of(found)
    order = np.argsort(marks, kind="stable")
    twice = np.flatnonzero(marks[order][1:] == marks[order][:-1])
    if len(twice):
        raise ValueError(f"shards: {name_of(found[order[twice[0]]])!r} is there twice; list each shard once")
    return found


class TableRows:
    """The rows of a table as examples: dicts by column."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = columns

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = zip(*self.columns.values(), strict=True)
        return map(dict, map(zip, itertools.repeat(self.columns), rows))

    def some(self, start: int, stop: int) -> SomeRows:
        """Rows that follow each other; copies, so that the last one to wait does not keep the whole table."""
        part = TableRows({name: copy(values[start:stop]) for name, values in self.columns.items()})
        rows = SomeRows(part)
        rows.columns = part.columns
        return rows


class SomeRows(list[Any]):
    """Rows of a table that follow each other, and the columns that they were made of."""

    columns: Mapping[str, Sequence[Any]]


class TableIterator:
    """The rows of a table that are left."""

    def __init__(self, table: TableRows) -> None:
        self._table, self._at = table, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        for row in self.take(1):
            return row
        raise StopIteration

    def take(self, count: int) -> SomeRows:
        """The next few."""
        rows = self._table.some(self._at, self._at + count)
        self._at += len(rows)
        return rows


@contextmanager
def _named(shard: Any) -> Iterator[None]:
    """Whatever goes wrong within is told with the shard's name."""
    try:
        yield
    except ShardError:
        raise
    except Exception as error:
        cure = 'mend the shard or read=, or pass failed="skip" to go on without it'
        what = f"reading failed with {type(error).__name__}: {error}"
        raise ShardError(name_of(shard), f"{what}; {cure}") from error


def reading(shard: Any, read: Read) -> Iterator[Any]:
    """The shard's examples; whatever goes wrong in reading them is told with the shard's name."""
    with _named(shard):
        yield from read(shard)


def opened(shard: Any, read: Read) -> Iterator[Any]:
    """The shard's examples, for `taken`; errors are told as by `reading`."""
    with _named(shard):
        examples = read(shard)
    return TableIterator(examples) if isinstance(examples, TableRows) else reading(shard, lambda _: examples)


def taken(examples: Iterator[Any], count: int) -> tuple[list[Any], ShardError | None]:
    """Some more examples of a shard, and the error that came after them, if one did."""
    if isinstance(examples, TableIterator):
        return examples.take(count), None
    some: list[Any] = []
    try:
        some.extend(itertools.islice(examples, count))  # an error leaves what was read before it
    except ShardError as error:
        return some, error
    return some, None


def checked_failed(failed: Any) -> str:
    """Take what to do about a shard that cannot be read."""
    if not isinstance(failed, str) or failed not in FAILED:
        raise ValueError(f'failed={shown(failed)}: pass "raise", or "skip" to go on without the shard')
    return str(failed)
