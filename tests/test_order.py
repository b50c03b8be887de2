"""The contract's own functions: randomness, visits, and saved states."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from wellorder import (
    Arbitrary,
    GraB,
    GraBProto,
    Greedy,
    Herding,
    NicePermutation,
    PairGraB,
    RandomReshuffling,
    ShuffleOnce,
    Walk,
    balance,
    basic_br,
    load_state_dict,
    pair_br,
    rng,
    state_dict,
)
from wellorder._order import describe, shuffled, uniforms, visit


def test_streams_epochs_and_seeds_are_independent_of_one_another():
    draws = {
        (seed, epoch, stream): rng(seed, epoch, stream).integers(2**62)
        for seed in range(20)
        for epoch in range(20)
        for stream in ("order", "walk")
    }
    assert len(set(draws.values())) == len(draws)


def test_randomness_is_the_same_in_every_process():
    """Orders are part of what users reproduce: changing the generator must be a decision, not an accident."""
    assert shuffled(10, 3, 2).tolist() == [1, 9, 6, 7, 3, 2, 8, 0, 4, 5]


def test_uniforms_can_be_drawn_from_any_place_of_their_stream():
    whole = uniforms(1, 2, "walk", 0, 100)
    assert (uniforms(1, 2, "walk", 37, 20) == whole[37:57]).all()


def test_orders_are_uniform():
    first = [tuple(shuffled(3, seed, 0)) for seed in range(3000)]
    counts = [first.count(order) for order in set(first)]
    assert len(counts) == 6
    assert min(counts) > 400


def test_small_orders_take_four_bytes_a_unit():
    assert shuffled(5, 0, 0).dtype == np.int32


@pytest.mark.parametrize(
    ("units", "steps"), [([], []), ([1], [1]), ([0, 2], [2, 3]), ([1, 0, 2], [1, 2, 3]), ([2], [3])]
)
def test_visits_match_forward_and_may_pass_units_over(units, steps):
    assert visit(np.array([3, 1, 0, 2]), 1, units).tolist() == steps


@pytest.mark.parametrize(
    ("units", "cause"),
    [
        ([4], "units\\[0\\]=4: unknown unit; pass units of the order, 0..3"),
        ([1, -1], "units\\[1\\]=-1: unknown unit"),
        ([1, 1], "units\\[1\\]=1: given twice"),
        ([3], "units\\[0\\]=3: its turn in this epoch has passed"),
        ([2, 0], "units\\[1\\]=0: out of turn"),
        ([0.5], "1-D array of unit numbers"),
        ([[1]], "1-D array of unit numbers"),
    ],
)
def test_visits_out_of_turn_say_what_is_wrong_and_what_to_do(units, cause):
    with pytest.raises(ValueError, match=cause):
        visit(np.array([3, 1, 0, 2]), 1, units)


def middle_of_an_epoch(policy, n=9):
    state = policy.init(n, seed=3)
    rows = np.random.default_rng(0).standard_normal((n, 4))
    return policy.observe(state, state.order[:5], rows[state.order[:5]]), rows


@pytest.mark.parametrize("policy", [GraB(), PairGraB(Walk(50.0)), Greedy(), RandomReshuffling()], ids=str)
@pytest.mark.parametrize("through", ["json", "npz", "torch"])
def test_a_state_survives_plain_file_formats(policy, through, tmp_path):
    state, rows = middle_of_an_epoch(policy)
    saved = state_dict(policy, state)
    if through == "json":
        text = json.dumps({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in saved.items()})
        loaded = json.loads(text)
    elif through == "npz":
        np.savez(tmp_path / "state.npz", **saved)
        with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
            loaded = dict(file)
    else:
        buffer = io.BytesIO()
        torch.save(
            {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in saved.items()}, buffer
        )
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=True)
    again = load_state_dict(policy, loaded)
    rest = state.order[5:].copy()
    after = [policy.advance(policy.observe(s, rest, rows[rest])).order.tolist() for s in (state, again)]
    assert after[0] == after[1]


@pytest.mark.parametrize("policy", [Greedy(), Herding(), GraBProto(), NicePermutation(), PairGraB()], ids=str)
def test_a_state_survives_json_at_an_epochs_start_too(policy):
    saved = state_dict(policy, policy.init(5, seed=2))
    text = json.dumps({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in saved.items()})
    assert load_state_dict(policy, json.loads(text)).order.tolist() == saved["order"].tolist()


def test_equal_policies_load_each_others_states():
    one, other = PairGraB(Walk(5)), PairGraB(Walk(np.float64(5.0)))
    assert one == other
    assert load_state_dict(other, state_dict(one, one.init(4))).epoch == 0


def test_a_saved_state_is_a_copy():
    policy = PairGraB()
    state, rows = middle_of_an_epoch(policy)
    saved = state_dict(policy, state)
    before = {k: np.array(v) for k, v in saved.items()}
    policy.advance(policy.observe(state, state.order[5:], rows[state.order[5:]]))
    assert all(np.array_equal(saved[k], before[k]) for k in saved)


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        ({"policy": "GraB(rule=Walk(c=1.0), reorders=1)"}, "belongs to GraB"),
        ({"order": np.arange(9)}, "checksum"),
        ({"order": np.arange(8)}, "damaged"),
        ({"signs": np.zeros(3, np.int8)}, "damaged state: signs"),
        ({"epoch": "three"}, "damaged state: epoch"),
        ({"seen": 2}, "checksum"),
        ({"total": np.zeros((2, 2))}, "damaged state: total"),
        ({"checksum": 1}, "checksum"),
        ({"order": None}, "damaged"),
        ({"order": [None] * 9}, "damaged"),
        ({"signs": [300] * 9}, "damaged state: signs"),
        ({"seed": None}, "damaged"),
        ({"seed": -4}, "seed=-4"),
        ({"seed": math.inf}, "damaged"),
        ({"seen": math.inf}, "damaged state: seen=inf"),
        ({"order": np.full(9, np.nan)}, "damaged"),
        ({"checksum": None}, "damaged state: checksum=None"),
        ({"checksum": "x"}, "damaged state: checksum='x'"),
        ({"policy": np.zeros(3)}, "belongs to"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused(damage, cause):
    policy = PairGraB()
    saved = state_dict(policy, middle_of_an_epoch(policy)[0])
    with pytest.raises(ValueError, match=cause):
        load_state_dict(policy, {**saved, **damage})
    for name in saved:
        with pytest.raises(ValueError, match=r"no policy|damaged"):
            load_state_dict(policy, {k: v for k, v in saved.items() if k != name})


def test_policies_are_named_by_their_settings_whatever_the_process():
    assert describe(PairGraB(Walk(3.0))) == "PairGraB(rule=Walk(c=3.0), reorders=1)"
    long = Arbitrary([np.arange(100)])
    assert describe(long) == describe(Arbitrary([np.arange(100)]))
    assert describe(long) != describe(Arbitrary([np.arange(100)[::-1]]))


def shown_then_too_large(policy):
    state = policy.init(2)
    return policy.observe(state, state.order[:1], np.array([[1e160]]))


def zeros(*shape):
    return np.zeros(shape)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: RandomReshuffling().init(0), "n=0: there must be at least one unit; pass"),
        (lambda: GraB().init(-2), "n=-2"),
        (lambda: GraB().init(True), "n=True"),
        (lambda: ShuffleOnce().init(3, seed=-1), "seed=-1: seeds are non-negative ints, .*pass"),
        (
            lambda: Arbitrary([[0, 1, 1]]),
            "orders\\[0\\]=.*not a permutation of 0..2; list each unit exactly once",
        ),
        (lambda: Arbitrary([[0, 1, 2]]).init(4), "orders\\[0\\]=.*not a permutation of 0..3"),
        (lambda: Arbitrary([]), "orders=\\[\\]: pass at least one"),
        (lambda: Arbitrary(lambda epoch: [0, 0]).init(2), "not a permutation"),
        (
            lambda: Arbitrary([[0, 1]]).advance(Arbitrary([[0, 1]]).init(2)),
            "1 given, but epoch 1 was opened; give",
        ),
        (lambda: Greedy().init(10**6), "n=1000000: greedy ordering takes.*use PairGraB"),
        (lambda: GraB(reorders=0), "reorders=0: .*an int >= 1"),
        (lambda: NicePermutation(passes=0), "passes=0.*or use ShuffleOnce"),
        (lambda: Walk(0.0), "c=0.0.*positive number; try"),
        (lambda: Walk(np.nan), "c=nan"),
        (lambda: balance(zeros(3)), "signals of shape \\(3,\\): pass a 2-D array"),
        (lambda: balance(zeros(3, 0)), "signals of shape"),
        (lambda: balance(np.array([["a"]])), "signals of dtype .*pass real numbers"),
        (lambda: balance(np.array([[1.0], [np.nan]])), "signals\\[1\\] is NaN or infinite .*; leave"),
        (lambda: balance(torch.tensor([[1.0], [torch.inf]])), "signals\\[1\\] is NaN or infinite"),
        (lambda: balance(zeros(2, 2), total=np.zeros(3)), "total of 3 numbers: signals have 2"),
        (lambda: basic_br([0, 0], zeros(2, 1)), "order=.*pass a permutation"),
        (lambda: pair_br([0, 1], zeros(3, 1)), r"order=array.*: pass a permutation of 0..2"),
        (
            lambda: basic_br([2, 1, 0], np.array([[0.0], [np.inf], [0.0]])),
            "vectors\\[1\\] is NaN or infinite",
        ),
        (lambda: pair_br([0, 1, 2], np.array([[0.0], [1.0], [np.nan]])), "vectors\\[2\\] is NaN or infinite"),
        (lambda: basic_br([0, 1], zeros(2, 1), mean=1.0), "mean of shape \\(\\): pass 1 finite"),
        (lambda: pair_br([0, 1], zeros(2, 1), mean=[np.nan]), "mean of shape"),
        (lambda: ShuffleOnce().init(3, seed=None), "seed=None"),
        (lambda: ShuffleOnce().init(3, seed=np.nan), "seed=nan"),
        (lambda: Greedy().init("5"), "n='5'"),
        (lambda: GraB("walk"), "rule='walk': pass a sign rule"),
        (lambda: PairGraB(Walk), "rule=.*Walk.*: pass a sign rule"),
        (lambda: GraB(reorders=1.5), "reorders=1.5"),
        (lambda: NicePermutation(passes=2.5), "passes=2.5"),
        (lambda: Walk("3"), "c='3'"),
        (lambda: Arbitrary(iter([[0, 1]])), "orders=.*pass a list of permutations"),
        (lambda: Arbitrary(np.arange(3)), "orders=.*\\[order\\] if only one"),
        (lambda: Arbitrary([np.array([], int)]), "not a permutation"),
        (lambda: balance(torch.zeros((2, 2), dtype=torch.complex64)), "pass real numbers"),
        (lambda: shown_then_too_large(Herding()), "signals\\[0\\] is NaN or infinite"),
        (lambda: shown_then_too_large(GraBProto()), "signals\\[0\\] is NaN or infinite"),
    ],
)
def test_bad_input_is_refused_by_a_message_with_argument_value_and_cure(call, named):
    with pytest.raises(ValueError, match=named):
        call()


class SingleProducts:
    """Signals that combine in float32."""

    def __init__(self, rows):
        self.rows = rows.astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def gram(self):
        return self.rows @ self.rows.T

    def dot(self, vector):
        return self.rows @ vector.astype(np.float32)

    def combine(self, weights):
        return weights.astype(np.float32) @ self.rows


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=str)
def test_a_state_whose_signals_combine_in_float32_is_loaded_again(policy):
    state = policy.init(9)
    units = state.order[:5]
    state = policy.observe(state, units, SingleProducts(np.random.default_rng(0).normal(size=(5, 3))))
    again = load_state_dict(policy, state_dict(policy, state))
    np.testing.assert_array_equal(again.total, state.total)


FORGED = {
    "seen": -(10**9), "observed": 10, "waiting": 9, "epoch": -1, "signs": np.full(9, 5, np.int8),
    "total": np.array([np.nan]), "order": np.zeros(9, np.int32),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_state_is_refused_even_with_the_right_checksum(name):
    policy = PairGraB()
    state = replace(policy.init(9), **{name: FORGED[name]})
    with pytest.raises(ValueError, match="damaged state"):
        load_state_dict(policy, state_dict(policy, state))
