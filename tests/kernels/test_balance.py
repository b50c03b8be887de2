"""Balancing: fast equals the sequential loop, for rows, tensors and products, in any block."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wellorder import Deterministic, GraB, PairGraB, Walk, balance, load_state_dict, state_dict
from wellorder._kernels.sign_rules import SignRule
from wellorder._kernels.signals import TensorRows


class Products:
    """The rows as somebody who never shows them: Gram, dot and combine only."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def gram(self):
        return self.rows @ self.rows.T

    def dot(self, vector):
        return self.rows @ vector

    def combine(self, weights):
        return weights @ self.rows


def sequential(rows, rule: SignRule, seed=0):
    """alg:balancing, one vector after the other, in float64."""
    s, signs, clipped = np.zeros(rows.shape[1]), [], 0
    for z, threshold in zip(rows.astype(float), rule.thresholds(seed, 0, 0, len(rows)), strict=True):
        v = s @ z
        signs.append(1 if v < threshold else -1)
        clipped += abs(v) > rule.limit
        s = s + signs[-1] * z
    return signs, s, clipped


def matrices(dtype=np.float64):
    def build(n, dim, seed, shift):
        return (shift + np.random.default_rng(seed).standard_normal((n, dim))).astype(dtype)

    return st.builds(
        build, st.integers(1, 40), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([0.0, 2.0])
    )


rules = st.sampled_from([Deterministic(), Walk(5.0), Walk(300.0)])


@given(matrices(), rules)
def test_the_fused_pass_equals_the_sequential_loop(rows, rule):
    signs, s, clipped = sequential(rows, rule, seed=4)
    result = balance(rows, rule, seed=4)
    assert result.signs.tolist() == signs
    assert result.total == pytest.approx(s, abs=1e-12)
    assert result.clipped == clipped


@given(matrices(), rules)
def test_gram_and_dot_give_the_signs_of_the_sequential_loop(rows, rule):
    signs, s, clipped = sequential(rows, rule, seed=4)
    result = balance(Products(rows), rule, seed=4)
    assert result.signs.tolist() == signs
    assert result.total == pytest.approx(s, abs=1e-10)
    assert result.clipped == clipped


@given(matrices(np.float32), rules)
def test_float32_rows_are_balanced_as_if_they_were_float64(rows, rule):
    exact = balance(rows.astype(np.float64), rule)
    for shown in (rows, torch.from_numpy(rows), np.asfortranarray(rows)):
        result = balance(shown, rule)
        assert result.signs.tolist() == exact.signs.tolist()
        assert result.total.dtype == np.float64
        assert result.total.tolist() == exact.total.tolist()


@given(matrices(), rules)
def test_tensors_in_products_equal_rows(rows, rule):
    by_rows, by_products = balance(rows, rule), balance(TensorRows(torch.from_numpy(rows)), rule)
    assert by_products.signs.tolist() == by_rows.signs.tolist()
    assert by_products.total.tolist() == pytest.approx(by_rows.total, abs=1e-10)


@given(matrices(), rules, st.lists(st.integers(0, 40), max_size=4))
def test_blocks_follow_one_another_bit_for_bit(rows, rule, cuts):
    whole, signs, total = balance(rows, rule, seed=2), [], np.empty(0)
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    for start, stop in itertools.pairwise(edges):
        part = balance(rows[start:stop], rule, total=total, seed=2, start=start)
        signs, total = signs + part.signs.tolist(), part.total
    assert signs == whole.signs.tolist()
    assert total.tolist() == whole.total.tolist()


@given(
    st.integers(0, 10**6),
    st.integers(2, 17),
    st.sampled_from([GraB(), PairGraB(), GraB(Walk(100.0)), PairGraB(Walk(100.0))]),
)
@settings(max_examples=60)
def test_policies_see_the_same_in_rows_products_and_tensors(seed, n, policy):
    draw = np.random.default_rng(seed)
    states = {kind: policy.init(n, seed=seed) for kind in ("rows", "products", "tensors")}
    shown = {
        "rows": lambda rows: rows,
        "products": Products,
        "tensors": lambda rows: TensorRows(torch.from_numpy(rows)),
    }
    for _ in range(3):
        rows = 1.0 + draw.standard_normal((n, 5))
        cut = int(draw.integers(0, n + 1))
        order = states["rows"].order.copy()
        for kind, state in states.items():
            for units in (order[:cut], order[cut:]):
                if len(units):
                    state = policy.observe(state, units, shown[kind](rows[units]))
                state = load_state_dict(policy, state_dict(policy, state))
            states[kind] = policy.advance(state)
        assert (
            states["rows"].order.tolist()
            == states["products"].order.tolist()
            == states["tensors"].order.tolist()
        )


def test_a_tie_gives_minus_in_rows_and_in_products():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.1, 0.3], [0.0, 0.0]])
    for shown in (rows, Products(rows), torch.from_numpy(rows)):
        assert balance(shown).signs.tolist()[:2] == [-1, -1]
        assert balance(shown).signs.tolist()[3] == -1


def test_duplicates_that_cancel_are_ties_in_products_too():
    z = np.random.default_rng(0).standard_normal((1, 50))
    rows = np.repeat(z, 6, axis=0)
    assert balance(rows).signs.tolist() == balance(Products(rows)).signs.tolist() == [-1, 1] * 3


@pytest.mark.parametrize("wrap", [Products, lambda rows: TensorRows(torch.from_numpy(rows))])
@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=str)
def test_whole_number_products_get_the_same_orders_in_blocks_of_any_size(policy, wrap):
    """Ties are common among them, and a stale mean makes each a sum that rounding would decide."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        n, dim = int(draw.integers(2, 24)), int(draw.integers(1, 5))
        epochs, found = draw.integers(-3, 4, (3, n, dim)).astype(float), []
        for width in (1, 2, 3, 7, n):
            state = policy.init(n)
            for rows in epochs:
                order = state.order
                for at in range(0, n, width):
                    units = order[at : at + width]
                    state = policy.observe(state, units, wrap(rows[units]))
                state = policy.advance(state)
            found.append(state.order.tolist())
        assert all(order == found[0] for order in found)


def test_a_product_that_is_small_but_true_is_no_tie():
    rows = np.array([[1.0, 0.0], [-1e-9, 1.0]])
    for shown in (rows, Products(rows)):
        assert balance(shown).signs.tolist() == [-1, -1]
        assert balance(shown, total=np.array([2.0, 0.0])).signs.tolist() == [-1, 1]


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e305])
@pytest.mark.parametrize("kind", ["rows", "tensors", "device tensors", "products"])
def test_the_row_that_cannot_be_balanced_is_named_and_nothing_is_kept_of_it(policy, count, value, kind):
    """The last row of an odd block has no partner yet, so no product of a pair shows what is in it."""
    wrap = {"rows": np.array, "tensors": torch.tensor, "products": Products}.get(
        kind, lambda rows: TensorRows(torch.tensor(rows))
    )
    rows = np.arange(3.0 * count).reshape(count, 3)
    rows[-1, 1] = value
    state = policy.init(5)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=rf"signals\[{count - 1}\] is NaN or inf"):
        policy.observe(state, state.order[:count], wrap(rows))
    good = policy.observe(state, state.order, wrap(np.eye(5, 3)))
    assert np.isfinite(policy.advance(good).order).all()


def test_the_walk_clips_and_counts():
    rows = np.full((4, 1), 10.0)
    assert balance(rows, Walk(1.0)).clipped == 2
    assert balance(rows, Walk(1e6)).clipped == 0
    state = GraB(Walk(1e-3)).init(4)
    state = GraB(Walk(1e-3)).observe(state, state.order, rows)
    assert state.clipped == 2


def test_the_walk_gives_plus_with_the_papers_probability():
    s, z, c = np.array([2.0]), np.array([[3.0]]), 20.0
    plus = [balance(z, Walk(c), total=s, start=start).signs[0] == 1 for start in range(4000)]
    assert np.mean(plus) == pytest.approx(0.5 - 6.0 / (2 * c), abs=0.025)


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.bool_])
def test_other_number_types_are_taken_as_floats(dtype):
    rows = np.array([[1, 0], [0, 1], [1, 1]], dtype)
    assert balance(rows).signs.tolist() == balance(rows.astype(np.float64)).signs.tolist()


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=str)
def test_float32_tensors_far_from_zero_lose_no_order(policy):
    """Rows are centred or paired before the Gram matrix, so that its float32 products do not cancel."""
    draw = np.random.default_rng(2)
    rows = (1000.0 + draw.standard_normal((64, 50))).astype(np.float32)
    here, there = policy.init(64), policy.init(64)
    for _ in range(3):
        order = here.order.copy()
        for at in range(0, 64, 7):
            units = order[at : at + 7]
            here = policy.observe(here, units, rows[units])
            there = policy.observe(there, units, TensorRows(torch.from_numpy(rows[units])))
        here, there = policy.advance(here), policy.advance(there)
        assert here.order.tolist() == there.order.tolist()


def test_tensors_of_another_dimension_are_refused():
    policy = PairGraB()
    state = policy.init(6)
    state = policy.observe(state, state.order[:3], TensorRows(torch.randn(3, 4)))
    with pytest.raises(ValueError, match="dimension 5: this epoch's others had 4"):
        policy.observe(state, state.order[3:], TensorRows(torch.randn(3, 5)))


def test_a_pair_of_a_float64_and_a_float32_row_is_exact():
    z = np.array([[0.1], [0.3]])
    policy = PairGraB()
    state = policy.init(2)
    state = policy.observe(state, state.order[:1], z[:1])
    state = policy.observe(state, state.order[1:], z[1:].astype(np.float32))
    assert state.total[0] == -(0.1 - float(np.float32(0.3)))


def test_no_rows_get_no_signs():
    for shown in (np.zeros((0, 3)), Products(np.zeros((0, 3)))):
        assert balance(shown).signs.tolist() == []


def test_half_precision_tensors_are_taken():
    rows = torch.tensor([[1.0, 2.0], [0.5, -1.0], [2.0, 1.0]])
    assert balance(rows.bfloat16()).signs.tolist() == balance(rows).signs.tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_stay_on_their_device_and_give_the_same_signs():
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((64, 200)))
    for policy in (GraB(), PairGraB()):
        here, there = policy.init(64), policy.init(64)
        for _ in range(3):
            order = here.order.copy()
            for at in range(0, 64, 9):
                units = order[at : at + 9]
                here = policy.observe(here, units, rows[units.tolist()])
                there = policy.observe(there, units, rows[units.tolist()].cuda())
            assert there.total.device.type == "cuda"
            here, there = (
                policy.advance(here),
                policy.advance(load_state_dict(policy, state_dict(policy, there))),
            )
            assert here.order.tolist() == there.order.tolist()


@pytest.mark.parametrize("policy", [GraB(Walk(3.0)), PairGraB(Walk(3.0))], ids=str)
def test_the_walk_draws_by_decision_and_not_by_step(policy):
    """Units that are passed over use up no draw: skipping them is as if they had never been."""
    rows = np.random.default_rng(3).standard_normal((12, 2))
    state = policy.init(12, seed=4)
    shown = state.order[[0, 1, 4, 5, 8, 9]]
    for units in (shown[:2], shown[2:4], shown[4:]):
        state = policy.observe(state, units, rows[units])
    whole = policy.init(12, seed=4)
    whole = policy.observe(whole, shown, rows[shown])
    assert state.signs.tolist() == whole.signs.tolist()
    z = rows[shown] if isinstance(policy, GraB) else rows[shown[0::2]] - rows[shown[1::2]]
    signs, *_ = sequential(z, policy.rule, seed=4)
    taken = state.signs[[0, 1, 4, 5, 8, 9]]
    assert taken[:: 1 if isinstance(policy, GraB) else 2].tolist() == signs
