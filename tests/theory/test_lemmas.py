"""Lemmas 3–5 on vectors of any kind, against loops that read like the paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellorder import Deterministic, Walk
from wellorder.theory import check_lemmas


@st.composite
def herds(draw):
    n, dim = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    seed, centred = draw(st.integers(0, 2**32 - 1)), draw(st.booleans())
    generator = np.random.default_rng(seed)
    z = generator.standard_normal((n, dim)) * 10.0 ** generator.uniform(-3, 3, (n, 1))
    return z - z.mean(axis=0) * centred, generator.permutation(n)


@settings(max_examples=200, deadline=None)
@given(herds(), st.sampled_from([None, Deterministic(), Walk(0.5), Walk(1e9)]), st.integers(0, 5))
def test_the_relations_hold_for_any_vectors_and_any_rule(herd, rule, seed):
    z, order = herd
    n = len(order)
    cohort = next((s for s in (4, 2) if n % s == 0), None)
    checks = check_lemmas(z, order, cohort=cohort, rule=rule, seed=seed)
    assert len(checks) == 2 + 2 * (n % 2 == 0) + 2 * (cohort is not None)
    for check in checks:
        if check.what.endswith("relation"):
            assert check.holds.all(), check
        else:
            assert check.promised == (rule is None)


@settings(max_examples=200, deadline=None)
@given(herds(), st.integers(0, 1000))
def test_the_bounds_hold_with_the_papers_walk(herd, seed):
    z, order = herd
    assert all(check.holds.all() for check in check_lemmas(z, order, seed=seed, delta=1e-4))


def herding(z, order, every=1):
    total, worst = np.zeros(z.shape[1]), 0.0
    for step, unit in enumerate(order, start=1):
        total = total + z[unit]
        if step % every == 0:
            worst = max(worst, np.abs(total).max())
    return worst


def signed(vectors):
    s, signs = np.zeros(vectors.shape[1]), []
    for v in vectors:
        signs.append(1 if np.linalg.norm(s + v) < np.linalg.norm(s - v) else -1)
        s = s + signs[-1] * v
    return signs


def front_and_back(order, signs):
    plus = [u for u, e in zip(order, signs, strict=True) if e > 0]
    minus = [u for u, e in zip(order, signs, strict=True) if e < 0]
    return plus + minus[::-1]


@pytest.mark.parametrize("seed", range(5))
def test_both_sides_are_those_of_the_paper(seed):
    generator = np.random.default_rng(seed)
    z, order, S, delta = generator.standard_normal((24, 3)), generator.permutation(24), 4, 1e-3
    found = {c.what: c for c in check_lemmas(z, order, cohort=S, rule=Deterministic(), delta=delta)}
    a, b = np.linalg.norm(z, axis=1).max(), np.abs(z.sum(axis=0)).max()
    C, C2 = 30 * math.log(3 * 24 / delta), 30 * math.log(3 * 24 / (2 * delta))

    signs = signed(z[order])
    after, before = herding(z, front_and_back(order, signs)), herding(z, order)
    walk = np.abs(np.cumsum(np.array(signs)[:, None] * z[order], axis=0)).max()
    assert sides(found["Lemma 3, relation"]) == pytest.approx((after, before / 2 + walk / 2 + b))
    assert sides(found["Lemma 3, bound"]) == pytest.approx((after, before / 2 + C * a / 2 + b))

    differences = z[order][::2] - z[order][1::2]
    pair = signed(differences)
    both = [e for s in pair for e in (s, -s)]
    walk = np.abs(np.cumsum(np.array(pair)[:, None] * differences, axis=0)).max()
    for name, every in (("Lemma 4", 1), ("Lemma 5", S)):
        after = herding(z, front_and_back(order, both), every)
        before = herding(z, order, every)
        assert sides(found[f"{name}, relation"]) == pytest.approx((after, before / 2 + walk / 2 + b))
        assert sides(found[f"{name}, bound"]) == pytest.approx((after, before / 2 + C2 * a + b))


def sides(check):
    return check.left[0], check.right[0]


def test_the_relation_would_catch_a_wrong_reordering():
    """Not reversing the minus units breaks Lemma 3 soon: the check is not empty."""
    generator, broken = np.random.default_rng(0), 0
    for _ in range(50):
        z = generator.standard_normal((40, 1))
        z -= z.mean(axis=0)
        order = np.argsort(z[:, 0])
        signs = signed(z[order])
        plus = [u for u, e in zip(order, signs, strict=True) if e > 0]
        minus = [u for u, e in zip(order, signs, strict=True) if e < 0]
        right = check_lemmas(z, order, rule=Deterministic())[0].right[0]
        broken += herding(z, plus + minus) > right
        assert herding(z, plus + minus[::-1]) <= right
    assert broken > 0


def test_vectors_of_zeros_are_in_order():
    assert all(check.holds.all() for check in check_lemmas(np.zeros((4, 2)), np.arange(4), cohort=2))


@pytest.mark.parametrize("cohort", [3, 8, 0])
def test_cohorts_that_lemma_5_does_not_cover_are_refused(cohort):
    with pytest.raises(ValueError, match=rf"cohort={cohort}: Lemma 5 needs an even cohort that divides n=12"):
        check_lemmas(np.ones((12, 1)), np.arange(12), cohort=cohort)


def test_orders_that_are_no_permutations_are_refused():
    with pytest.raises(ValueError, match="pass a permutation"):
        check_lemmas(np.ones((3, 1)), [0, 1, 1])
