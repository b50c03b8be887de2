"""What single policies promise beyond the contract, each against a twin in loops and lists."""

import numpy as np
import pytest

from wellorder import (
    Deterministic,
    FlipFlop,
    GraB,
    Greedy,
    NicePermutation,
    PairGraB,
    Walk,
    balance,
    basic_br,
    order_error,
    reorder,
    shuffled,
)


def rows_of(n, dim=3, seed=0):
    return 2.0 + np.random.default_rng(seed).standard_normal((n, dim))


def show(policy, state, rows, skip=()):
    for unit in state.order.copy():
        if unit not in skip:
            state = policy.observe(state, [unit], rows[[unit]])
    return state


def greedy_twin(order, rows):
    """Always the unit that keeps the centred running sum shortest; the first such along the old order."""
    centred, left, total, new = rows - rows.mean(axis=0), list(order), np.zeros(rows.shape[1]), []
    while left:
        best = min(left, key=lambda unit: np.linalg.norm(total + centred[unit]))
        left.remove(best)
        new.append(int(best))
        total = total + centred[best]
    return new


@pytest.mark.parametrize("n", [1, 2, 9, 60])
def test_greedy_takes_what_keeps_the_running_sum_shortest(n):
    rows, policy = rows_of(n), Greedy()
    state = policy.init(n, seed=4)
    expected = greedy_twin(state.order, rows)
    assert policy.advance(show(policy, state, rows)).order.tolist() == expected


def test_greedy_survives_large_numbers_and_keeps_the_unseen_in_the_middle():
    rows, policy = 1e140 * rows_of(7), Greedy()
    state = policy.init(7)
    skipped = int(state.order[0])
    after = policy.advance(show(policy, state, rows, skip={skipped})).order.tolist()
    assert sorted(after) == list(range(7))
    assert after[3] == skipped


@pytest.mark.parametrize("passes", [1, 2, 5])
@pytest.mark.parametrize("n", [5, 40, 300])
def test_nice_permutation_is_basic_br_repeated(n, passes):
    rows, policy = rows_of(n), NicePermutation(passes)
    state = policy.init(n, seed=1)
    order = state.order.copy()
    for _ in range(passes):
        order = basic_br(order, rows)
    state = show(policy, state, rows)
    assert state.order.tolist() == order.tolist()
    assert policy.advance(policy.advance(state)).order.tolist() == order.tolist()
    if passes == 5 and n == 300:
        assert order_error(rows, order) < order_error(rows, policy.init(n, seed=1).order) / 4


def test_grabs_stale_mean_is_over_the_units_observed_and_outlives_an_epoch_without_any():
    rows, policy = rows_of(9), GraB()
    state = policy.init(9, seed=2)
    skip = {int(unit) for unit in state.order[2:5]}
    seen = [unit for unit in range(9) if unit not in skip]
    state = policy.advance(show(policy, state, rows, skip))
    assert state.stale == pytest.approx(rows[seen].mean(axis=0))
    state = policy.advance(state)
    assert state.stale == pytest.approx(rows[seen].mean(axis=0))
    order = state.order.copy()
    signs = np.zeros(9, np.int8)
    signs[order] = balance(rows[order] - rows[seen].mean(axis=0)).signs
    assert policy.advance(show(policy, state, rows)).order.tolist() == reorder(order, signs).tolist()


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=str)
def test_unobserved_units_keep_the_middle_in_their_old_order(policy):
    rows = rows_of(8)
    state = policy.init(8, seed=3)
    skipped = [int(state.order[1]), int(state.order[6])]
    signs = show(policy, state, rows, skipped).signs
    ahead = int((signs > 0).sum())
    after = policy.advance(show(policy, policy.init(8, seed=3), rows, skipped)).order.tolist()
    assert after[ahead : ahead + 2] == skipped


def test_a_lost_unit_does_not_break_later_pairs():
    rows, policy = rows_of(6), PairGraB()
    state = policy.init(6, seed=5)
    lost = int(state.order[1])
    kept = [int(unit) for unit in state.order if unit != lost]
    signs = show(policy, state, rows, {lost}).signs
    apart = rows[kept[0:4:2]] - rows[kept[1:4:2]]
    expected = balance(apart).signs
    steps = [0, 2, 3, 4]
    assert [int(signs[step]) for step in steps] == [expected[0], -expected[0], expected[1], -expected[1]]
    assert signs[1] == signs[5] == 0


@pytest.mark.parametrize("policy", [GraB(Walk(50.0)), PairGraB(Walk(50.0))], ids=str)
def test_the_walk_draws_anew_in_every_epoch_and_for_every_seed(policy):
    rows, drawn = np.zeros((40, 1)), {}
    for seed in (0, 1):
        state = policy.init(40, seed=seed)
        for epoch in (0, 1):
            state = show(policy, state, rows)
            drawn[seed, epoch] = tuple(state.signs)
            state = policy.advance(state)
    assert len(set(drawn.values())) == 4


@pytest.mark.parametrize("policy", [GraB(Walk(1e-3)), PairGraB(Walk(1e-3))], ids=str)
def test_clipped_decisions_are_counted_over_blocks_and_epochs(policy):
    rows = rows_of(12)
    state, counts = policy.init(12), []
    for _ in range(3):
        state = policy.advance(show(policy, state, rows))
        counts.append(state.clipped)
    assert 0 < counts[0] < counts[1] < counts[2]
    whole = policy.init(12)
    whole = policy.observe(whole, whole.order, rows[whole.order])
    assert whole.clipped == counts[0]


def test_flipflop_goes_back_and_then_draws_anew():
    policy = FlipFlop()
    first = policy.init(20, seed=6)
    second = policy.advance(first)
    third = policy.advance(second)
    assert second.order.tolist() == first.order.tolist()[::-1]
    assert third.order.tolist() == shuffled(20, 6, 2).tolist()


def test_the_deterministic_rule_is_the_comparison_of_norms():
    draw = np.random.default_rng(8)
    for _ in range(200):
        s, z = draw.standard_normal((2, 4))
        nearer = np.linalg.norm(s + z) < np.linalg.norm(s - z)
        assert balance(z[None], Deterministic(), total=s).signs[0] == (1 if nearer else -1)


@pytest.mark.parametrize("policy", [GraB(Walk(40.0)), PairGraB(Walk(40.0))], ids=str)
def test_the_walk_draws_for_units_that_are_observed_and_for_no_others(policy):
    """So blocks do not matter where units are passed over either: draws are counted by observations."""
    rows = rows_of(24) - 2.0
    for seed in range(8):
        first = policy.init(24, seed=seed)
        seen = [unit for step, unit in enumerate(first.order) if step % 4]
        whole = policy.observe(first, seen, rows[seen])
        parts = policy.init(24, seed=seed)
        for at in range(0, len(seen), 6):
            parts = policy.observe(parts, seen[at : at + 6], rows[seen[at : at + 6]])
        assert policy.advance(parts).order.tolist() == policy.advance(whole).order.tolist()
