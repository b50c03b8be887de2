"""Herding: the epoch's rows, balanced and reordered several times."""

import numpy as np
import pytest

from wellorder import Herding, PairGraB, balance, basic_br, order_error, reorder


def one_epoch(policy, rows, block=7, seed=0):
    state = policy.init(len(rows), seed=seed)
    for at in range(0, len(rows), block):
        units = state.order[at : at + block]
        state = policy.observe(state, units, rows[units])
    return policy.advance(state)


@pytest.mark.parametrize("n", [1, 2, 9, 400, 601])
@pytest.mark.parametrize("passes", [1, 4])
def test_an_epoch_is_basic_br_repeated_on_the_same_rows(n, passes):
    rows = np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)
    order = Herding().init(n).order
    mean = rows.sum(axis=0, dtype=np.float64) / n
    for _ in range(passes):
        order = basic_br(order, rows, mean=mean)
    np.testing.assert_array_equal(one_epoch(Herding(passes), rows).order, order)


def test_one_epoch_reaches_what_pair_balancing_reaches_after_many():
    rows = np.random.default_rng(1).normal(size=(2000, 10)).astype(np.float32)
    herded = order_error(rows, one_epoch(Herding(passes=12), rows).order)
    policy, errors = PairGraB(), []
    state = policy.init(2000)
    for _ in range(12):
        state = policy.advance(policy.observe(state, state.order, rows[state.order]))
        errors.append(order_error(rows, state.order))
    assert herded < errors[0] / 4
    assert herded < 1.2 * errors[-1]


def test_units_that_were_not_observed_stay_between_the_two_groups_and_do_not_disturb_the_others():
    rows = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
    policy = Herding(passes=1)
    state = policy.init(20)
    missed = state.order[[4, 11]]
    seen = np.delete(state.order, [4, 11])
    mean = rows[seen].sum(axis=0, dtype=np.float64) / 18
    signs = np.zeros(20, np.int8)
    signs[seen] = balance(rows[seen] - mean).signs
    expected = reorder(state.order, signs)
    after = policy.advance(policy.observe(state, seen, rows[seen])).order
    np.testing.assert_array_equal(after, expected)
    assert set(after[(signs > 0).sum() :][:2]) == set(missed)


def test_an_epoch_in_which_nothing_was_seen_keeps_its_order():
    state = Herding().init(6)
    np.testing.assert_array_equal(Herding().advance(state).order, state.order)


def test_the_rows_cost_four_bytes_a_number_and_are_given_back_at_the_epochs_end():
    policy = Herding()
    state = policy.observe(policy.init(50), policy.init(50).order, np.ones((50, 8)))
    assert state.rows.nbytes == 50 * 8 * 4
    assert policy.advance(state).rows.size == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Herding(passes=0), "passes=0"),
        (lambda: Herding().observe(Herding().init(3), [9], np.ones((1, 2))), "units"),
        (
            lambda: Herding().observe(Herding().init(3), Herding().init(3).order, np.full((3, 2), np.nan)),
            "NaN",
        ),
    ],
)
def test_bad_input_is_named_with_its_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()
