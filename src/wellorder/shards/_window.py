"""How many examples must wait in the window: a rehearsal on the survey, before anything is read again.

Every shard is played by a few grains, each a stretch of its examples that all have the shard's mean row. They
are ordered and steered as the examples will be. How far their sum strays, beside a full shuffle of the
examples, is what shards that are alike inside add to the order error; what differs inside a shard, steering
levels in any window.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import isnan, nan

import numpy as np

from wellorder._arguments import whole_number
from wellorder._kernels.steer import Window
from wellorder._order import rng
from wellorder.shards._order import ordered_shards
from wellorder.shards._survey import Survey

LEAST, MOST, STEP = 1024, 8192, 1.25
MOST_ADVISED = 1 << 16
"""Examples in a window, beyond which it is not looked for how many would do."""
TOO_FAR = 1.25
"""Times a full shuffle's order error, above which a window is warned of."""
STRETCH = 1 << 15
"""Examples over which a full shuffle is compared with. In a longer epoch it strays farther, and a class that
does not come for a hundred thousand examples would look harmless beside that; but a model forgets it."""
SHUFFLE = 0.55
"""A full shuffle's order error over √(n · spread): 0.5 for rows of very many directions, more for few, and
0.87 for one (the mean of a Brownian bridge's largest distance)."""
GRAINS, SHARDS = 8192, 2048
"""Grains and shards that take part, at most."""
CANDIDATES = 16


def expected_error(survey: Survey, window: int) -> float:
    """The order error to expect of ordered shards in a steered ``window``, relative to a full shuffle's.

    About 1 or less: as good as a full shuffle. More: the window is too small to see the mix, because shards
    are of more kinds than it holds. It counts what shards add, so well below 1 it says no more than that.
    NaN if the survey does not know how far rows spread.

    >>> from wellorder.shards import survey
    >>> found = survey(range(400), lambda shard: [(None, shard // 10)] * 100)   # 40 kinds of 1,000 examples
    >>> bool(expected_error(found, 500) > 1.5), bool(expected_error(found, 4000) < 1)
    (True, True)
    """
    size = whole_number("window", window, least=1)
    return _Rehearsal(survey).error(size)


def suggested_window(survey: Survey, *, most: int = MOST) -> int:
    """The smallest window, of 1,024 to ``most`` examples, in which ordered shards are as good as a shuffle.

    It is the default of ``wellorder.torch.ShardedDataset``. ``most`` where none is large enough.

    >>> from wellorder.shards import survey
    >>> few, many = (survey(range(400), lambda shard: [(None, shard % kinds)] * 100) for kinds in (5, 40))
    >>> suggested_window(few), suggested_window(many)
    (1024, 2500)
    """
    return _Rehearsal(survey).enough(LEAST, whole_number("most", most, least=1))


def chosen_window(survey: Survey, window: int | None) -> int:
    """The window of a data set: the one given, or the one suggested; warns where it is too small."""
    rehearsal = _Rehearsal(survey)
    size = rehearsal.enough(LEAST, MOST) if window is None else whole_number("window", window, least=1)
    expected = rehearsal.error(size)
    if expected > TOO_FAR:
        larger = rehearsal.enough(max(size, LEAST), MOST_ADVISED)
        cure = f"pass window={larger}" if rehearsal.error(larger) <= 1 else "pass a larger window"
        warnings.warn(
            f"window={size}{' (the default)' * (window is None)} is too small for shards of so many kinds: "
            f"an order error of {expected:.1f} times a full shuffle's is to be expected; {cure} if there is "
            "memory for so many examples in every worker, or store the data in more and smaller shards",
            UserWarning,
            stacklevel=3,
        )
    return size


class _Rehearsal:
    """Grains in the order in which their shards are read."""

    def __init__(self, survey: Survey) -> None:
        if not isinstance(survey, Survey):
            raise ValueError(f"survey={type(survey).__name__}: pass what wellorder.shards.survey returned")
        weights = survey.weights
        self.chance = SHUFFLE * np.sqrt(min(weights.sum(), STRETCH) * survey.spread)
        if isnan(self.chance) or self.chance <= 0:
            return
        some = _some(survey)
        weights = some.weights
        rows = (some.rows - some.mean).astype(np.float32)
        unlike = np.sqrt((weights @ np.square(rows).sum(axis=1)) / weights.sum())
        # The sum must be seen four times finer than what it is compared with.
        grain = max(self.chance / (4 * max(unlike, 1e-30)), 1.0)
        counts = np.ceil(weights / grain).astype(np.int64)
        order = ordered_shards(some, seed=0, epoch=0).astype(np.int64)
        self.which = np.repeat(order, counts[order])[:GRAINS]
        self.grain = float(weights.sum() / max(counts.sum(), 1))
        self.rows = rows * (weights / np.maximum(counts, 1))[:, None].astype(np.float32)

    def enough(self, window: int, most: int) -> int:
        """The first window, from one on, that is as good as a full shuffle; ``most`` if none is."""
        window = min(window, most)
        while window < most and self.error(window) > 1:
            window = min(most, int(window * STEP))
        return window

    def error(self, window: int) -> float:
        """What is expected of a window, relative to a full shuffle."""
        if isnan(self.chance):
            return nan
        if self.chance <= 0:
            return 0.0
        size, dim = max(1, round(window / self.grain)), self.rows.shape[1]
        held = Window(min(size, len(self.which)), dim, CANDIDATES, rng(0, 0, "shards.window"))
        leaving = held.take_in(self.rows, self.which, self.which, np.zeros(dim))
        total, farthest = np.zeros(dim), 0.0
        for at in range(0, len(leaving), 1024):
            path = total + np.cumsum(self.rows[leaving[at : at + 1024]], axis=0, dtype=np.float64)
            total, farthest = path[-1], max(farthest, float(np.square(path).sum(axis=1).max()))
        if len(self.which) < GRAINS:
            path = total + np.cumsum(self.rows[held.drain()], axis=0, dtype=np.float64)
            farthest = max(farthest, float(np.square(path).sum(axis=1).max()))
        return float(np.sqrt(farthest) / self.chance)


def _some(survey: Survey) -> Survey:
    """The survey, or a random part of its shards about their own mean."""
    if len(survey) <= SHARDS:
        return survey
    chosen = np.sort(rng(0, 1, "shards.window").choice(len(survey), SHARDS, replace=False))
    rows, weights = survey.rows[chosen], survey.weights[chosen]
    mean = weights @ rows.astype(np.float64) / max(weights.sum(), 1e-30)
    return replace(survey, rows=rows, sizes=survey.sizes[chosen], marks=survey.marks[chosen], mean=mean)
