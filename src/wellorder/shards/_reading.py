"""Reading shards: what a shard is called, and an error that names the one that failed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def reading(shard: Any, read: Read) -> Iterator[Any]:
    """The shard's examples; whatever goes wrong in reading them is told with the shard's name."""
    try:
        yield from read(shard)
    except ShardError:
        raise
    except Exception as error:
        cure = 'mend the shard or read=, or pass failed="skip" to go on without it'
        what = f"reading failed with {type(error).__name__}: {error}"
        raise ShardError(name_of(shard), f"{what}; {cure}") from error


def checked_failed(failed: Any) -> str:
    """Take what to do about a shard that cannot be read."""
    if not isinstance(failed, str) or failed not in FAILED:
        raise ValueError(f'failed={shown(failed)}: pass "raise", or "skip" to go on without the shard')
    return str(failed)
