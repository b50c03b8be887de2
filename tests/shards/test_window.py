"""How large a window must be: what a rehearsal on the survey foretells, the examples' order then does."""

import math
import warnings

import numpy as np
import pytest

from wellorder import balanced_stream
from wellorder._measure import error_vs_shuffle
from wellorder.shards import Survey, expected_error, ordered_shards, suggested_window, survey
from wellorder.shards._reading import marks_of


def stored(kinds, shards, each, own=1.0):
    """Examples (input, label) by shard; ``own`` is the part of a shard that is of its own kind."""
    draw = np.random.default_rng(0)
    labels = np.where(
        draw.random((shards, each)) < own,
        np.arange(shards)[:, None] % kinds,
        draw.integers(kinds, size=(shards, each)),
    )
    return [[(draw.normal(size=3), int(y)) for y in shard] for shard in labels]


def measured(data, found, window):
    """The order error itself, of all examples, relative to full shuffles."""
    every = [example for shard in data for example in shard]
    rows = found.row.many(every)
    starts = np.cumsum([0, *map(len, data)])
    stream = [u for s in ordered_shards(found, seed=3, epoch=1) for u in range(starts[s], starts[s + 1])]
    out = list(balanced_stream(stream, rows.__getitem__, window=window, mean=found.mean))
    return error_vs_shuffle(rows, np.array(out))


@pytest.mark.parametrize(
    ("kinds", "window"), [(60, 100), (60, 400), (30, 100)], ids=["60, small", "60, larger", "30"]
)
def test_where_a_window_is_too_small_the_error_is_foretold(kinds, window):
    data = stored(kinds, 120, 50)
    found = survey(range(120), data.__getitem__)
    foretold, error = expected_error(found, window), measured(data, found, window)
    assert error > 1.2
    assert foretold == pytest.approx(error, rel=0.35)


@pytest.mark.parametrize(("kinds", "own"), [(60, 0.0), (5, 1.0)], ids=["mixed shards", "few kinds"])
def test_where_a_window_is_large_enough_it_says_so(kinds, own):
    data = stored(kinds, 120, 50, own)
    found = survey(range(120), data.__getitem__)
    assert measured(data, found, 600) < 1
    assert expected_error(found, 600) < 1
    assert suggested_window(found) == 1024


def test_the_suggested_window_is_the_first_that_will_do():
    found = survey(range(400), lambda shard: [(None, shard % 40)] * 100)
    window = suggested_window(found)
    assert 1024 < window < 8192
    assert expected_error(found, window) <= 1 < expected_error(found, int(window / 1.3))
    assert suggested_window(found, most=1500) == 1500
    assert suggested_window(found, most=100) == 100


def test_an_epoch_of_millions_is_judged_by_its_stretches():
    few, many = (made(np.eye(50)[np.arange(n) % 50], 10_000, 0.98) for n in (100, 9000))
    assert expected_error(few, 1000) > 3
    assert expected_error(many, 1000) == pytest.approx(expected_error(few, 1000), rel=0.5)


def made(rows, each, spread=math.nan):
    rows = np.asarray(rows, np.float32)
    sizes = np.full(len(rows), each)
    return Survey(rows, sizes, rows.mean(axis=0, dtype=float), marks_of(range(len(rows))), spread=spread)


def test_where_nobody_counted_the_spread_nothing_is_claimed():
    found = made(np.eye(20), 100)
    assert math.isnan(expected_error(found, 10))
    assert suggested_window(found) == 1024
    alike = survey(range(3), lambda _: [(None, 0)] * 5)
    assert (alike.spread, expected_error(alike, 1)) == (0, 0)


DATA = stored(4, 12, 30, 0.5)
EVERY = [example for shard in DATA for example in shard]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size": 3},
        {"xy": lambda e: (None, e[1])},
        {"xy": lambda e: (e[0], None)},
        {"row": lambda e: np.array([e[0][0], e[1], 2.0])},
        {"row": lambda e: e[0], "sizes": [30] * 12, "failed": "skip"},
    ],
    ids=["features", "shared", "labels", "inputs", "own rows", "own rows, skip"],
)
def test_the_spread_is_the_rows_variance(options, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # inputs alone
        found = survey(range(12), DATA.__getitem__, path=tmp_path / "s.npz", **options)
    rows = np.stack([found.row(example) for example in EVERY]).astype(float)
    assert found.spread == pytest.approx(np.square(rows - rows.mean(axis=0)).sum(axis=1).mean(), rel=1e-3)
    assert Survey.load(tmp_path / "s.npz", row=found.row).spread == found.spread


def test_a_data_set_takes_the_window_that_its_shards_need_and_warns_of_a_smaller_one():
    pytest.importorskip("torch")
    from wellorder.torch import ShardedDataset

    def read(shard):
        return [(None, shard % 40)] * 100

    found = survey(range(400), read)
    data = ShardedDataset(range(400), read, survey=found)
    assert data.window == suggested_window(found) > 1024
    with pytest.warns(UserWarning, match=rf"window=500 is too small .* pass window={data.window} if"):
        assert ShardedDataset(range(400), read, survey=found, window=500).window == 500
    big = made(np.eye(100)[np.arange(200) % 100], 50_000, 1.0)
    with pytest.warns(UserWarning, match=r"window=8192 \(the default\) .* pass a larger window if"):
        ShardedDataset(range(200), read, survey=big, row=lambda _: np.zeros(100))


def test_bad_input_is_named():
    for ask in (lambda s: expected_error(s, 5), suggested_window):
        with pytest.raises(ValueError, match="survey=list"):
            ask([1])
    with pytest.raises(ValueError, match="window=0"):
        expected_error(made(np.eye(2), 5), 0)
    with pytest.raises(ValueError, match="most=0"):
        suggested_window(made(np.eye(2), 5), most=0)
