"""Reordering, and the lemmas that say why balance and reorder shrink the herding error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellorder import basic_br, order_error, pair_br, reorder
from wellorder._kernels.reorder import place

norms = st.sampled_from([1, 2, np.inf])


def lists(n_max=30):
    return st.builds(
        lambda n, dim, seed: np.random.default_rng(seed).standard_normal((n, dim)),
        st.integers(1, n_max),
        st.integers(1, 5),
        st.integers(0, 10**6),
    )


def herding(rows, p, every=1):
    sums = np.cumsum(rows, axis=0)[every - 1 :: every]
    return np.linalg.norm(sums, ord=p, axis=1).max()


def draw_signs(rows, seed):
    return np.random.default_rng(seed).choice([-1, 1], len(rows)).astype(np.int8)


@given(lists(), st.integers(0, 10**6), norms, st.sampled_from([0.0, 1.0]))
def test_lemma_3_holds_for_any_signs(z, seed, p, shift):
    """lem:basic-balancing-reordering: ≤ half before + half signed + ‖total‖, centred or not."""
    z = z + shift
    order = np.random.default_rng(seed).permutation(len(z))
    signs = draw_signs(z, seed + 1)
    new = reorder(order, signs)
    signed = signs[order, None] * z[order]
    right = herding(z[order], p) / 2 + herding(signed, p) / 2 + np.linalg.norm(z.sum(axis=0), ord=p)
    assert herding(z[new], p) <= right * (1 + 1e-12) + 1e-12


def pair_signs(order, seed):
    signs = np.zeros(len(order), np.int8)
    tilde = np.random.default_rng(seed).choice([-1, 1], len(order) // 2)
    signs[order[0::2]], signs[order[1::2]] = tilde, -tilde
    return signs


@given(st.integers(1, 15), st.integers(1, 5), st.integers(0, 10**6), norms)
def test_lemma_4_holds_for_any_pair_signs(pairs, dim, seed, p):
    """lem:pair-balancing-reordering."""
    draw = np.random.default_rng(seed)
    z, order = draw.standard_normal((2 * pairs, dim)), draw.permutation(2 * pairs)
    signs = pair_signs(order, seed)
    new = reorder(order, signs)
    signed = signs[order, None] * z[order]
    right = herding(z[order], p) / 2 + herding(signed, p) / 2 + np.linalg.norm(z.sum(axis=0), ord=p)
    assert herding(z[new], p) <= right * (1 + 1e-12) + 1e-12


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6), norms)
def test_lemma_5_holds_at_multiples_of_the_cohort(rounds, half, dim, seed, p):
    """lem:FL:pair-balancing-reordering: S even and dividing N, all errors at multiples of S (or even S/2)."""
    S = 2 * half
    draw = np.random.default_rng(seed)
    z, order = draw.standard_normal((rounds * S, dim)), draw.permutation(rounds * S)
    signs = pair_signs(order, seed)
    new = reorder(order, signs)
    signed = signs[order, None] * z[order]
    right = herding(z[order], p, S) / 2 + herding(signed, p, S) / 2 + np.linalg.norm(z.sum(axis=0), ord=p)
    assert herding(z[new], p, S) <= herding(z[new], p, half) <= right * (1 + 1e-12) + 1e-12


@given(st.integers(1, 30), st.integers(0, 10**6))
def test_reorder_loses_nobody_and_keeps_the_unobserved_in_the_middle(n, seed):
    draw = np.random.default_rng(seed)
    order, signs = draw.permutation(n), draw.choice([-1, 0, 1], n)
    new = reorder(order, signs).tolist()
    plus, minus = [u for u in order if signs[u] > 0], [u for u in order if signs[u] < 0]
    assert new == plus + [u for u in order if signs[u] == 0] + minus[::-1]


def test_reorder_takes_signs_by_unit_and_place_takes_them_by_step():
    order, signs = np.array([4, 3, 1, 0, 2]), np.array([-1, 1, 1, -1, 0], np.int8)
    assert reorder(order, signs).tolist() == place(order, signs[order]).tolist() == [1, 2, 4, 0, 3]


@pytest.mark.parametrize("method", [basic_br, pair_br])
@pytest.mark.parametrize("n", [1, 2, 257, 1024])
def test_balance_and_reorder_shrink_the_order_error_by_passes(method, n):
    z = np.random.default_rng(0).standard_normal((n, 4))
    order = np.random.default_rng(1).permutation(n)
    errors = [order_error(z, order)]
    for _ in range(10):
        order = method(order, z)
        errors.append(order_error(z, order))
    assert sorted(order.tolist()) == list(range(n))
    if n > 2:
        assert errors[-1] < errors[0] / 3


def test_a_given_mean_centres_basic_br_and_leaves_pair_br_alone():
    z = 5.0 + np.random.default_rng(3).standard_normal((50, 3))
    order = np.arange(50)
    assert basic_br(order, z).tolist() == basic_br(order, z, z.mean(axis=0)).tolist()
    assert basic_br(order, z).tolist() != basic_br(order, z, np.zeros(3)).tolist()
    assert pair_br(order, z).tolist() == pair_br(order, z, z.mean(axis=0)).tolist()


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (([0, 0, 1], [1, 1, 1]), "order=.*pass a permutation"),
        (([0, 1, 2], [1, 1]), "signs of shape .*pass one of -1, 0, \\+1"),
        (([0, 1, 2], [1, 2, 1]), "signs of shape .*pass one of -1, 0, \\+1"),
    ],
)
def test_reorder_refuses_what_is_no_order_or_no_signs(arguments, cure):
    with pytest.raises(ValueError, match=cure):
        reorder(*arguments)
