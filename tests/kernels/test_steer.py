"""Steering a window of rows that are blocks: as if their zeros were there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellorder._kernels.steer import Window
from wellorder._order import rng


def splitmix(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        x = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        yield x ^ (x >> 31)


def steered(rows, mean, size, candidates, bits):
    """Steering in lists, of rows with all their zeros: the numbers of the rows as they leave."""
    centred = rows - mean
    total, waiting, coming, out = np.zeros(len(mean)), list(range(len(rows)))[:size], size, []
    while waiting:
        best, least = 0, np.inf
        for _ in range(candidates):
            at = ((next(bits) >> 32) * len(waiting)) >> 32
            z = centred[waiting[at]]
            scale = np.float32(1 / np.sqrt(z @ z)) if z.any() else np.float32(0)
            along = np.float32(z @ total) * scale
            if along < least:
                best, least = at, along
        out.append(waiting[best])
        total += centred[waiting[best]]
        if coming < len(rows):
            waiting[best], coming = coming, coming + 1
        else:
            waiting[best] = waiting[-1]
            waiting.pop()
    return out


def passed_through(window, rows, mean, places=None, at_once=7):
    """All rows through a window, some at a time."""
    out = []
    for at in range(0, len(rows), at_once):
        some = slice(at, at + at_once)
        numbers = np.arange(len(rows))[some]
        where = None if places is None else places[some]
        out += window.take_in(rows[some], np.arange(len(numbers)), numbers, mean, where).tolist()
    return out + window.drain().tolist()


def with_zeros(blocks, places, labels):
    rows = np.zeros((len(blocks), labels, blocks.shape[1]), np.float32)
    rows[np.arange(len(blocks)), places] = blocks
    return rows.reshape(len(blocks), -1)


SETTINGS = st.tuples(
    st.integers(1, 60), st.integers(1, 5), st.integers(1, 6), st.integers(1, 30), st.integers(1, 9)
)


@settings(max_examples=40)
@given(SETTINGS)
def test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists(setting):
    n, labels, width, size, candidates = setting
    draw = np.random.default_rng(setting)
    # Small whole numbers about a mean in quarters, so that sums are exact in every precision, and ties tie.
    blocks = draw.integers(-3, 4, size=(n, width)).astype(np.float32)
    places = draw.integers(labels, size=n)
    mean = draw.integers(-2, 3, size=labels * width) / 4
    start = int(rng(1, 0, "s").integers(2**63, size=1, dtype=np.uint64)[0])
    rows = with_zeros(blocks, places, labels)
    expected = steered(rows.astype(np.float64), mean, size, candidates, splitmix(start))
    held = Window(size, labels * width, candidates, rng(1, 0, "s"), width)
    assert passed_through(held, blocks, mean, places) == expected
    assert passed_through(Window(size, labels * width, candidates, rng(1, 0, "s")), rows, mean) == expected


@pytest.mark.parametrize(("labels", "width"), [(10, 7), (3, 20), (40, 2)])
def test_of_real_numbers_the_orders_are_the_same_too(labels, width):
    draw = np.random.default_rng(labels)
    blocks, places = draw.normal(size=(1500, width)).astype(np.float32), draw.integers(labels, size=1500)
    blocks[:, 0] = 1
    rows = with_zeros(blocks, places, labels)
    mean = rows.mean(axis=0, dtype=np.float64)
    compact, whole = (Window(200, labels * width, 8, rng(0, 0, "s"), w) for w in (width, None))
    assert passed_through(compact, blocks, mean, places, 256) == passed_through(whole, rows, mean, None, 256)
    np.testing.assert_allclose(compact.total, whole.total, atol=1e-3)
    assert compact.rows.nbytes * labels == whole.rows.nbytes


@settings(max_examples=30)
@given(st.tuples(st.integers(1, 60), st.integers(1, 6), st.integers(1, 30), st.integers(1, 9)))
def test_weighed_rows_are_steered_as_rows_that_were_weighed_before(setting):
    n, dim, size, candidates = setting
    draw = np.random.default_rng(setting)
    rows = draw.integers(-3, 4, size=(n, dim)).astype(np.float32)
    mean, weights = draw.integers(-2, 3, size=dim) / 4, 2.0 ** draw.integers(-3, 4, size=dim)
    start = int(rng(1, 0, "s").integers(2**63, size=1, dtype=np.uint64)[0])
    expected = steered((rows - mean) * weights, np.zeros(dim), size, candidates, splitmix(start))
    assert (
        passed_through(Window(size, dim, candidates, rng(1, 0, "s"), None, weights), rows, mean) == expected
    )


def test_a_window_of_blocks_goes_on_from_its_sum_and_its_random_state_alone():
    draw = np.random.default_rng(5)
    blocks, places = draw.normal(size=(400, 3)).astype(np.float32), draw.integers(4, size=400)
    mean = with_zeros(blocks, places, 4).mean(axis=0, dtype=np.float64)
    held = Window(50, 12, 8, rng(0, 0, "s"), 3)
    held.take_in(blocks[:300], np.arange(300), np.arange(300), mean, places[:300])
    other = Window(50, 12, 8, rng(9, 9, "s"), 3)
    waiting = held.numbers.copy()
    other.take_in(blocks, waiting, waiting, mean, places)
    other.carry_on(held.total.copy(), int(held.draws[0]))
    rest = np.arange(300, 400)
    leaving = [
        w.take_in(blocks, rest, rest, mean, places).tolist() + w.drain().tolist() for w in (held, other)
    ]
    assert leaving[0] == leaving[1]
    assert sorted(leaving[0]) == sorted([*waiting.tolist(), *rest.tolist()])
