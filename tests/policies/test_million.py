"""Many settings of the policies, and a million of what they are made of: no unit is lost or doubled.

A setting of a whole policy takes half a millisecond of Python, so tens of thousands of them are tried, saved
and loaded too; the compiled flow from signals to signs to the next order is tried a million times.
"""

import numba
import numpy as np
import pytest

from wellorder import (
    CDGraB,
    Deterministic,
    FlipFlop,
    GraB,
    GraBProto,
    Greedy,
    Herding,
    IncrementalGradient,
    NicePermutation,
    PairGraB,
    PairGraBProto,
    RandomReshuffling,
    ShuffleOnce,
    Steering,
    Walk,
    load_state_dict,
    state_dict,
)  # fmt: skip
from wellorder._kernels.balance import _balance_differences, _balance_rows
from wellorder._kernels.reorder import _place

SAVED = 100
"""Every so-manyth setting is saved and loaded in mid-epoch as well: that takes ten times as long."""


def policies(draw):
    rule = Walk(float(draw.uniform(0.1, 50))) if draw.random() < 0.5 else Deterministic()
    times = int(draw.integers(1, 4))
    return [
        RandomReshuffling(), ShuffleOnce(), IncrementalGradient(), FlipFlop(), Greedy(), GraBProto(rule),
        PairGraBProto(rule), GraB(rule, reorders=times), PairGraB(rule, reorders=times),
        NicePermutation(times, rule), Herding(times, rule), Steering(int(draw.integers(1, 9)), times),
        CDGraB(times, rule),
    ]  # fmt: skip


def lost(policy, n, dim, seed, draw, *, save):
    """Whether two epochs, cut and partly unobserved, lose a unit, or saving changes the order."""
    state = policy.init(n, seed=seed)
    every = list(range(n))
    for _ in range(2):
        order = state.order
        cut, end = sorted(draw.integers(0, n + 1, 2).tolist())
        rows = draw.integers(-3, 4, (n, dim)).astype(np.float64)
        state = policy.observe(state, order[:cut], rows[:cut])
        twin = load_state_dict(policy, state_dict(policy, state)) if save else None
        state = policy.advance(policy.observe(state, order[cut:end], rows[cut:end]))
        if sorted(state.order.tolist()) != every:
            return True
        if twin is not None:
            twin = policy.advance(policy.observe(twin, order[cut:end], rows[cut:end]))
            if twin.order.tolist() != state.order.tolist():
                return True
    return False


def settings(count, seed=0):
    """Settings that lost something, of so many drawn."""
    draw, bad, done = np.random.default_rng(seed), [], 0
    while done < count:
        for policy in policies(draw):
            n, dim, own = int(draw.integers(1, 12)), int(draw.integers(1, 4)), int(draw.integers(2**31))
            if lost(policy, n, dim, own, draw, save=done % SAVED == 0):
                bad.append((policy, n, dim, own))
            done += 1
    return bad


def test_no_setting_loses_a_unit():
    assert settings(1_500) == []


@pytest.mark.slow
def test_none_of_many_settings_loses_a_unit():
    assert settings(60_000, seed=1) == []


@numba.njit
def _flows(count, seed):
    """How many of so many random flows lost a unit: balance (alone, centred or in pairs), then reorder."""
    np.random.seed(seed)
    lost = 0
    for _ in range(count):
        n, dim = np.random.randint(1, 14), np.random.randint(1, 4)
        rows = np.floor(np.random.random((n, dim)) * 7) - 3.0
        kind = np.random.randint(0, 3)
        sums, center = np.zeros(dim), np.zeros(dim if kind == 1 else 0)
        if kind == 1:
            center[:] = np.random.random(dim)
        limit = 0.1 + 5 * np.random.random()
        thresholds = limit * (1 - 2 * np.random.random(n)) if np.random.random() < 0.5 else np.zeros(n)
        signs = np.zeros(n, np.int8)
        if kind == 2:
            pairs = np.zeros(n // 2, np.int8)
            _balance_differences(rows, 0, sums, thresholds, limit, pairs)
            signs[0 : 2 * len(pairs) : 2], signs[1 : 2 * len(pairs) : 2] = pairs, -pairs
        else:
            _balance_rows(rows, center, sums, thresholds, limit, signs)
        for t in range(n):
            if np.random.random() < 0.1:
                signs[t] = 0
        order, new = np.random.permutation(n), np.full(n, -1)
        _place(order, signs, new)
        met = np.zeros(n, np.bool_)
        for unit in new:
            met[unit] = 0 <= unit < n
        lost += not met.all() or not (np.abs(signs) <= 1).all() or not np.isfinite(sums).all()
    return lost


@pytest.mark.slow
def test_a_million_flows_from_signals_to_orders_lose_no_unit():
    assert _flows(1_000_000, 0) == 0
