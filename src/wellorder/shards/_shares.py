"""Who reads what: pieces of shards for every worker of every rank, of equal length, each in a good order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wellorder.shards._order import dealt
from wellorder.shards._survey import Survey

REMAINDERS = ("repeat", "drop", "keep")


class Piece(NamedTuple):
    """Examples ``start`` to ``stop`` of a shard; to its end, wherever that is, if ``stop`` is -1."""

    shard: int
    start: int
    stop: int


class Share(NamedTuple):
    """What one worker reads, and how many examples it must give out: where they lack, it repeats some.

    -1 promises nothing: it gives out what it reads.
    """

    pieces: list[Piece]
    length: int


def lengths(
    examples: int, ranks: int, workers: int, batch_size: int, remainder: str
) -> tuple[list[int], int]:
    """How many examples each worker of each rank reads (rank by rank), and how many a rank gives out, or -1.

    Ranks differ by one example at most. If that would make a batch more on some of them, the remainder is
    repeated or dropped, unless it is to be kept. A rank's workers take turns by whole batches, as a
    DataLoader draws them.

    >>> lengths(10, 2, 1, 1, "repeat"), lengths(11, 2, 1, 4, "repeat"), lengths(11, 2, 2, 1, "drop")
    (([5, 5], 5), ([6, 5], -1), ([3, 2, 3, 2], 5))
    """
    least, more = divmod(examples, ranks)
    even = more == 0 or (least % batch_size > 0 and (least + 1) % batch_size > 0)
    settled = even or remainder == "keep"
    out: list[int] = []
    for rank in range(ranks):
        mine = least + (rank < more and (settled or remainder == "repeat"))
        out += by_turns(mine, workers, batch_size)
    if settled:
        return out, least if not more else -1
    return out, least + (remainder == "repeat")


def by_turns(examples: int, workers: int, batch_size: int) -> list[int]:
    """How many examples of a rank each worker has, if they give out batches in turn; the last may be short.

    >>> by_turns(10, 3, 2), by_turns(9, 2, 4)
    ([4, 4, 2], [5, 4])
    """
    batches = -(-examples // batch_size)
    out = [len(range(worker, batches, workers)) * batch_size for worker in range(workers)]
    if batches:
        out[(batches - 1) % workers] -= batches * batch_size - examples
    return out


def shares(
    survey: Survey, ranks: int, workers: int, batch_size: int, remainder: str, *, seed: int, epoch: int
) -> list[Share]:
    """The share of every worker, rank by rank, in one epoch."""
    lists = dealt(survey, ranks * workers, seed=seed, epoch=epoch)
    if (survey.sizes < 0).any():
        return [Share([Piece(int(shard), 0, -1) for shard in each], -1) for each in lists]
    read, given = lengths(int(survey.sizes.sum()), ranks, workers, batch_size, remainder)
    cut = cut_to(lists, survey.sizes, read)
    out = read if given < 0 else by_turns(given, workers, batch_size) * ranks
    if (
        ranks == 1 or remainder == "keep"
    ):  # nobody waits for this rank: what cannot be read is not made up for
        out = [-1] * len(read)
    full = int(np.argmax(survey.sizes))
    for stream, (pieces, length) in enumerate(zip(cut, out, strict=True)):
        if length > 0 and not pieces:  # something to repeat for a worker that has nothing of its own
            at = stream % int(survey.sizes[full])
            pieces.append(Piece(full, at, at + 1))
    return [Share(pieces, length) for pieces, length in zip(cut, out, strict=True)]


def cut_to(
    lists: Sequence[npt.NDArray[np.int64]], sizes: npt.NDArray[np.int64], wanted: Sequence[int]
) -> list[list[Piece]]:
    """Cut each list of shards after as many examples as are wanted; what is left over goes where some lack.

    >>> cut_to([np.array([0, 1]), np.array([2])], np.array([5, 4, 3]), [6, 6])
    [[Piece(shard=0, start=0, stop=5), Piece(shard=1, start=0, stop=1)],
     [Piece(shard=2, start=0, stop=3), Piece(shard=1, start=1, stop=4)]]
    """
    out: list[list[Piece]] = [[] for _ in lists]
    lacking = list(wanted)
    over: list[Piece] = []

    def give(stream: int, piece: Piece) -> Piece | None:
        taken = min(lacking[stream], piece.stop - piece.start)
        lacking[stream] -= taken
        if taken:
            out[stream].append(Piece(piece.shard, piece.start, piece.start + taken))
        return None if piece.start + taken == piece.stop else piece._replace(start=piece.start + taken)

    for stream, shards in enumerate(lists):
        for shard in shards.tolist():
            rest = give(stream, Piece(shard, 0, int(sizes[shard])))
            if rest is not None:
                over.append(rest)
    stream = 0
    for piece in over:
        left: Piece | None = piece
        while left is not None:
            while stream < len(lacking) and not lacking[stream]:
                stream += 1
            if stream == len(lacking):
                break  # a remainder that is dropped
            left = give(stream, left)
    return out
