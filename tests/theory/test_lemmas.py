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


def coordinated(z, orders):
    """CD-GraB's pass: worker by worker, pairs of consecutive rounds, one running sum for all of them."""
    rounds = orders.shape[1]
    s, signs, sums = np.zeros(z.shape[1]), np.zeros(orders.shape, int), []
    for t in range(0, rounds, 2):
        for w in range(len(orders)):
            d = z[orders[w, t]] - z[orders[w, t + 1]]
            sign = 1 if s @ d < 0 else -1
            signs[w, t], signs[w, t + 1] = sign, -sign
            s = s + sign * d
        sums.append(np.abs(s).max())
    return np.array([front_and_back(orders[w], signs[w]) for w in range(len(orders))]), max(sums)


@pytest.mark.parametrize(("workers", "rounds"), [(1, 8), (3, 6), (4, 10), (5, 2)])
def test_coordinated_pairs_keep_lemma_5_at_the_rounds(workers, rounds):
    """docs/theory.md, "CD-GraB": pairs across rounds serve as well as pairs within them."""
    for seed in range(30):
        generator = np.random.default_rng(seed)
        z = generator.standard_normal((workers * rounds, 3)) * 10.0 ** generator.uniform(-1, 1)
        orders = np.arange(workers * rounds).reshape(workers, rounds)
        after, signed_sum = coordinated(z, orders)
        left, before = (herding(z, o.T.ravel(), workers) for o in (after, orders))
        assert sorted(after.ravel()) == list(range(workers * rounds))
        assert left <= before / 2 + signed_sum / 2 + np.abs(z.sum(axis=0)).max() + 1e-9


def basic_signs():
    """The paper's figure: 24 vectors, S = 8; 7, 5 and 5 of each eight carry a plus."""
    signs = -np.ones(24, int)
    signs[[*range(7), *range(8, 13), *range(16, 21)]] = 1
    return signs


def at_rounds(z, order, signs=None, every=8):
    rows = z[order] if signs is None else signs[:, None] * z[order]
    return np.abs(np.cumsum(rows, axis=0)[every - 1 :: every]).max()


def test_the_papers_figure_why_basic_balancing_does_not_serve_rounds():
    """``fig:FL:balancing-reordering-instance``: sums at the rounds' ends do not tell the new rounds' sums."""
    order, signs = np.arange(24), basic_signs()
    after = np.array(front_and_back(order, signs))
    assert list(after[:8]) == [*range(7), 8]  # the sum over {0..6, 8} is needed, and not known
    z = np.zeros((24, 1))
    z[8], z[9] = 1.0, -1.0  # all sums over whole rounds are 0, plain and signed
    assert at_rounds(z, order) == at_rounds(z, order, signs) == 0
    assert at_rounds(z, after) == 1.0  # and yet the new first round strays: Lemma 5 fails for such signs
    assert (
        herding(z, after) <= herding(z, order) / 2 + herding(signs[:, None] * z, order) / 2
    )  # Lemma 3 holds

    pair = np.random.default_rng(0).choice([-1, 1], 12)
    both = np.column_stack([pair, -pair]).ravel()
    assert [both[at : at + 8].sum() for at in (0, 8, 16)] == [0, 0, 0]  # as many plus as minus in each round
    for seed in range(20):
        z = np.random.default_rng(seed).standard_normal((24, 2))
        z -= z.mean(axis=0)
        after = np.array(front_and_back(order, both))
        assert at_rounds(z, after) <= at_rounds(z, order) / 2 + at_rounds(z, order, both, every=2) / 2 + 1e-12
