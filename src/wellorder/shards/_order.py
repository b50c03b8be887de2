"""The order of shards: always the next, of many, whose examples turn the running sum back.

The trap that steering avoids is here too: the shard that keeps ‖s + z‖ smallest is a small one, or one that
is like the whole, so the others pile up at the end, and every epoch begins alike. Going by direction,
⟨z, s⟩/‖z‖, strays no farther, keeps sizes and norms level along the epoch, and makes another order each time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wellorder._arguments import seed_of, whole_number
from wellorder._compiled import fast, jit
from wellorder._kernels.steer import draw as _draw
from wellorder._order import Order, frozen, rng
from wellorder.shards._survey import Survey

CANDIDATES = 256
"""Shards that are looked at for each choice; all that are left, if those are fewer."""

Ints = npt.NDArray[np.int64]


def ordered_shards(survey: Survey, *, seed: int = 0, epoch: int = 0) -> Order:
    """An order of the shards in which every stretch holds about what the whole does; fresh every epoch.

    Greedy over shard sums: the next shard, of 256 random ones that are left, is the one with the smallest
    ⟨z, s⟩/‖z‖, where z = size · (mean row − mean of all) and s the sum of those chosen so far. O(n·k) memory
    and O(256·n·k) time: 10⁵ shards of 128 numbers take seconds.

    >>> import numpy as np
    >>> from wellorder.shards import survey
    >>> found = survey(range(40), lambda shard: [(None, shard // 10)] * 5)   # four kinds, stored one by one
    >>> kinds = ordered_shards(found, seed=0, epoch=3) // 10
    >>> [sorted(kinds[i : i + 4].tolist()) for i in (0, 4, 20)]
    [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    """
    return frozen(dealt(survey, 1, seed=seed, epoch=epoch)[0].astype(np.int32))


def dealt(survey: Survey, streams: int, *, seed: int, epoch: int) -> list[Ints]:
    """Deal the shards to streams that are read side by side; each list is a good order, and all together are.

    The stream with the fewest examples takes the next shard, by its own sum and the sum of all.
    """
    if not isinstance(survey, Survey):
        raise ValueError(f"survey={type(survey).__name__}: pass what wellorder.shards.survey returned")
    whole_number("streams", streams, least=1)
    chance = rng(seed_of(seed), whole_number("epoch", epoch, least=0), "shards")
    draws, left = chance.integers(2**63, size=1, dtype=np.uint64), chance.permutation(len(survey))
    weights = survey.weights
    rows = (survey.rows - survey.mean.astype(np.float32)) * weights[:, None].astype(np.float32)
    n = len(rows)
    order, taker = np.empty(n, np.int64), np.empty(n, np.int64)
    _deal(rows, weights, streams, CANDIDATES, draws, left, order, taker)
    return [order[taker == stream] for stream in range(streams)]


@jit
def _deal(rows, weights, streams, candidates, draws, left, order, taker):  # type: ignore[no-untyped-def]
    n, dim = rows.shape
    scales = np.zeros(n, np.float32)
    for i in range(n):
        scales[i] = _one_over_length(rows[i])
    own, total, goal = np.zeros((streams, dim)), np.zeros(dim), np.zeros(dim, np.float32)
    load = np.zeros(streams)
    for step in range(n):
        stream = 0
        for other in range(1, streams):
            if load[other] < load[stream]:
                stream = other
        for k in range(dim):
            goal[k] = np.float32(own[stream, k] + total[k])
        at = _best(left, n - step, candidates, draws, rows, scales, goal)
        shard = left[at]
        left[at] = left[n - step - 1]
        order[step], taker[step] = shard, stream
        load[stream] += weights[shard]
        for k in range(dim):
            own[stream, k] += np.float64(rows[shard, k])
            total[k] += np.float64(rows[shard, k])


@fast
def _best(left, count, candidates, draws, rows, scales, goal):  # type: ignore[no-untyped-def]
    """The place in ``left`` of the shard that points most against ``goal``; one of those that tie."""
    best, least = np.int64(0), np.float32(np.inf)
    every = count <= candidates
    start = np.int64(((_draw(draws) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
    for i in range(count if every else candidates):
        if every:
            at = start + i if start + i < count else start + i - count
        else:
            at = np.int64(((_draw(draws) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
        row, along = rows[left[at]], np.float32(0.0)
        for k in range(len(goal)):
            along += row[k] * goal[k]
        along *= scales[left[at]]
        if along < least:
            best, least = at, along
    return best


@fast
def _one_over_length(row):  # type: ignore[no-untyped-def]
    length = 0.0
    for k in range(len(row)):
        length += np.float64(row[k]) * np.float64(row[k])
    return np.float32(1.0 / np.sqrt(length)) if length > 0.0 else np.float32(0.0)
