"""Balanced orders for any loop: fresh every epoch, resumable; and streams, each example once."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellorder import Herding, PairGraB, Steering, balanced, balanced_stream, features, order_error
from wellorder._kernels.steer import Window
from wellorder._order import rng, shuffled


def take(orders, count):
    return [order.tolist() for order in itertools.islice(orders, count)]


@pytest.mark.parametrize("policy", [None, Herding(passes=2), Steering(window=9)], ids=str)
def test_it_is_an_endless_stream_of_fresh_permutations(policy):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    orders = take(balanced(rows, policy=policy, seed=1), 6)
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert orders != take(balanced(rows, policy=policy, seed=2), 6)


def test_who_waits_long_for_an_order_is_told_so(monkeypatch, capsys):
    monkeypatch.setattr("wellorder._waiting.PATIENCE", 0.02)

    class Late(Herding):
        def open(self, state, epoch):
            time.sleep(0.2)
            return super().open(state, epoch)

    orders = balanced(np.eye(8), policy=Late())
    assert "wellorder: waiting for the order of epoch 0: under way" in capsys.readouterr().err
    next(orders)
    assert capsys.readouterr().err == ""
    next(orders)
    assert "wellorder: waiting for the order of epoch 1: under way" in capsys.readouterr().err


@pytest.mark.parametrize("policy", [None, Herding()], ids=str)
@pytest.mark.parametrize("start", [0, 1, 5])
def test_starting_at_k_is_skipping_k(policy, start):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    whole = take(balanced(rows, policy=policy, seed=1), 9)
    assert take(balanced(rows, policy=policy, seed=1, start=start), 9 - start) == whole[start:]


def test_a_policy_of_ones_own_needs_no_more_than_the_contract():
    class Own:
        needs, remembers = Steering.needs, True
        init, observe, advance = Steering().init, Steering().observe, Steering().advance

    rows = np.random.default_rng(0).normal(size=(40, 3))
    for start in (0, 3):
        ours = take(balanced(rows, policy=Own(), start=start), 3)
        assert ours == take(balanced(rows, start=start), 3)


def test_the_caller_may_change_the_rows_afterwards():
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    orders, before = balanced(rows), rows.copy()
    next(orders)
    rows[:] = 0
    assert next(orders).tolist() == take(balanced(before), 2)[1]


def test_labels_are_balanced_at_every_moment():
    labels = np.random.default_rng(0).integers(4, size=2000)
    rows = features(None, labels)
    for order in itertools.islice(balanced(rows), 3):
        counts = np.cumsum(np.eye(4)[labels[order]], axis=0)
        fair = np.arange(1, 2001)[:, None] * np.bincount(labels) / 2000
        assert np.abs(counts - fair).max() < 8  # a shuffle strays by about 30


BAD = [
    (lambda: balanced(np.ones((3, 2)), policy=PairGraB()), "takes no rows"),
    (lambda: balanced(np.ones((3, 2)), start=-1), "start=-1"),
    (lambda: balanced(np.ones((3, 2)), seed=None), "seed=None"),
    (lambda: balanced(np.array([[1.0], [np.nan]])), "NaN"),
    (lambda: balanced_stream([1], 5), "row=5"),
    (lambda: balanced_stream([1], lambda e: [e], window=0), "window=0"),
    (lambda: list(balanced_stream([1], lambda e: [e], mean=[1.0, 2.0])), "mean of shape"),
    (lambda: list(balanced_stream([1.0, np.nan], lambda e: [e])), "row.example..1. is NaN"),
    (lambda: list(balanced_stream([1.0] * 300 + [np.nan], lambda e: [e])), "row.example..300. is NaN"),
    (lambda: list(balanced_stream([2] * 256 + [3], lambda e: [e] * e)), "of 3 numbers, where others have 2"),
    (lambda: balanced_stream([1], lambda e: [e], mean=[np.nan]), "mean=array..nan..: pass finite"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_input_is_named_with_its_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@given(st.integers(0, 300), st.integers(1, 80), st.integers(1, 6), st.integers(1, 90), st.booleans())
def test_a_stream_gives_every_example_exactly_once(n, window, candidates, at_once, known):
    values = np.random.default_rng(n).normal(size=(max(n, 1), 3))
    out = list(
        balanced_stream(
            iter(range(n)),
            values.__getitem__,
            window=window,
            candidates=candidates,
            at_once=at_once,
            mean=values[:n].mean(axis=0) if known and n else None,
        )
    )
    assert sorted(out) == list(range(n))


def test_a_stream_whose_mean_is_known_is_steering_in_the_order_of_arrival():
    rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    policy = Steering(window=64, candidates=8, lengths=0)
    arrival, mean = shuffled(500, 3, 2), rows.sum(axis=0, dtype=np.float64) / 500
    out = balanced_stream(arrival, rows.__getitem__, window=64, candidates=8, seed=3, epoch=2, mean=mean)
    assert [int(u) for u in out] == policy.open(policy.init(500, seed=3, rows=rows), 2).order.tolist()


@pytest.mark.parametrize("size", [1e-60, 1e-25, 1e25, 1e60])
@pytest.mark.parametrize("known", [True, False])
def test_a_stream_of_rows_of_any_size_is_steered_alike(size, known):
    rows = np.random.default_rng(0).normal(size=(900, 4))
    rows[:300] = 0  # a whole block that says nothing about size
    power = 2.0 ** round(np.log2(size))

    def out(rows):
        mean = rows.mean(axis=0) if known else None
        return list(balanced_stream(range(900), rows.__getitem__, window=200, mean=mean))

    assert out(rows * power) == out(rows)


def test_a_row_may_be_written_where_the_last_one_was():
    rows, own = np.random.default_rng(0).normal(size=(600, 4)), np.empty(4)

    def row(i):
        own[:] = rows[i]
        return own

    out = list(balanced_stream(range(600), row, window=100))
    assert out == list(balanced_stream(range(600), rows.__getitem__, window=100))


def test_a_running_mean_holds_for_all_that_came_before():
    rows = np.random.default_rng(0).normal(2, 1, size=(300, 3)).astype(np.float32)
    held, gone = Window(50, 3, 4, rng(0, 0, "steering")), []
    for at in range(0, 300, 60):
        which = np.arange(at, at + 60)
        mean = rows[: at + 60].mean(axis=0, dtype=np.float64)
        gone += held.take_in(rows, which, which, mean).tolist()
        np.testing.assert_allclose(held.total, (rows[gone] - mean).sum(axis=0), atol=1e-3)
        np.testing.assert_allclose(held.rows, rows[held.numbers] - mean, atol=1e-5)
        lengths = np.linalg.norm(rows[held.numbers] - mean, axis=1)
        np.testing.assert_allclose(held.scales, 1 / lengths, rtol=1e-4)


def test_a_stream_without_a_known_mean_is_no_worse_than_a_shuffle():
    rows = np.random.default_rng(0).normal(1, 1, size=(6000, 8))
    out = np.array(list(balanced_stream(range(6000), rows.__getitem__, window=500)))
    assert order_error(rows, out) < 1.3 * order_error(rows, shuffled(6000, 0, 0))


def test_a_stream_reads_no_further_ahead_than_its_window_and_one_block():
    read = []

    def examples():
        for i in range(10_000):
            read.append(i)
            yield i

    stream = balanced_stream(examples(), lambda i: [i % 7, i % 3], window=100, at_once=32)
    for given_out, _ in enumerate(itertools.islice(stream, 5000)):
        assert len(read) <= given_out + 100 + 2 * 32


def test_sorted_data_comes_out_almost_as_good_as_shuffled_where_the_window_sees_all_kinds():
    labels = np.repeat(np.arange(4), 250)
    rows = features(None, labels)
    out = list(balanced_stream(range(1000), rows.__getitem__, window=1000, mean=rows.mean(axis=0)))
    assert order_error(rows, np.array(out)) < order_error(rows, shuffled(1000, 0, 0)) / 2
