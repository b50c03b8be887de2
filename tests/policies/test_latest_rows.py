"""Herding and Steering: a fresh shuffle every epoch, arranged by the latest row of each unit, however old."""

from dataclasses import replace

import numpy as np
import pytest

from wellorder import (
    BalancedCohorts,
    Herding,
    PairGraB,
    RandomReshuffling,
    Steering,
    Walk,
    basic_br,
    load_state_dict,
    order_error,
    rng,
    state_dict,
)
from wellorder._order import shuffled

BOTH = [Herding(), Herding(passes=3, rule=Walk(40.0)), Steering(), Steering(window=5, candidates=3)]


def rows_of(n, dim=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def shown(policy, state, rows, block=7):
    for at in range(0, len(rows), block):
        units = state.order[at : at + block]
        state = policy.observe(state, units, rows[units])
    return state


@pytest.mark.parametrize("n", [1, 2, 9, 400, 601])
@pytest.mark.parametrize("passes", [1, 4])
def test_herding_is_basic_br_repeated_from_a_fresh_shuffle(n, passes):
    rows, policy = rows_of(n, seed=n), Herding(passes)
    state = policy.advance(shown(policy, policy.init(n), rows))
    mean = rows.sum(axis=0, dtype=np.float64) / n
    for epoch in (1, 2, 3):
        order = shuffled(n, 0, epoch)
        for _ in range(passes):
            order = basic_br(order, rows, mean=mean)
        np.testing.assert_array_equal(state.order, order)
        state = policy.advance(state)


def steered(rows, order, window, candidates, bits, counts):
    """Steering in lists: ``bits()`` gives 64 random bits at a time; ``counts``: what lengths count."""
    mean = rows[order].sum(axis=0, dtype=np.float64) / len(order)
    centred = (rows.astype(np.float64) - mean).astype(np.float32)
    lengths = np.sqrt((centred.astype(np.float64) ** 2).sum(axis=1))
    beside, excess = counts * (lengths - lengths[order].mean()), 0.0
    lengths = np.hypot(lengths, beside)
    lengths[lengths == 0] = np.inf
    beside = beside.astype(np.float32)
    total, waiting, out = np.zeros(rows.shape[1]), list(order[:window]), []
    coming = list(order[window:])
    while waiting:
        best, least = 0, np.inf
        for _ in range(candidates):
            at = ((bits() >> 32) * len(waiting)) >> 32
            z = centred[waiting[at]]
            product = np.float32(z @ total.astype(np.float32)) + beside[waiting[at]] * np.float32(excess)
            along = product * np.float32(1 / lengths[waiting[at]])
            if along < least:
                best, least = at, along
        out.append(waiting[best])
        total += centred[waiting[best]]
        excess += np.float64(beside[waiting[best]])
        if coming:
            waiting[best] = coming.pop(0)
        else:
            waiting[best] = waiting[-1]
            waiting.pop()
    return out


def splitmix(seed, epoch):
    state = int(rng(seed, epoch, "steering").integers(2**63, size=1, dtype=np.uint64)[0])

    def bits():
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        x = state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    return bits


@pytest.mark.parametrize(
    ("n", "window", "candidates"), [(1, 4, 2), (7, 3, 2), (50, 8, 4), (50, 500, 7), (60, 1, 3)]
)
@pytest.mark.parametrize("lengths", [0, 0.5, 2])
def test_steering_is_its_transcription_in_lists(n, window, candidates, lengths):
    rows = np.random.default_rng(n).integers(-4, 5, size=(n, 3)).astype(np.float32)
    rows -= rows.mean(axis=0).round()  # small whole numbers, so that sums are exact in every precision
    policy = Steering(window, candidates, lengths)
    state = policy.init(n, seed=3, rows=rows)
    for epoch in range(3):
        expected = steered(rows, shuffled(n, 3, epoch), window, candidates, splitmix(3, epoch), lengths)
        assert state.order.tolist() == expected
        state = policy.advance(state)


@pytest.mark.parametrize("policy", BOTH, ids=str)
def test_without_rows_the_orders_are_those_of_random_reshuffling(policy):
    state, plain = policy.init(40, seed=5), RandomReshuffling().init(40, seed=5)
    for _ in range(4):
        np.testing.assert_array_equal(state.order, plain.order)
        state, plain = policy.advance(state), RandomReshuffling().advance(plain)


@pytest.mark.parametrize("policy", BOTH, ids=str)
def test_units_without_a_row_keep_their_random_place(policy):
    rows, state = rows_of(60), policy.init(60, seed=1)
    seen = np.delete(state.order, np.arange(0, 60, 4))
    unseen = np.setdiff1d(np.arange(60), seen)
    state = policy.advance(policy.observe(state, seen, rows[seen]))
    plain = shuffled(60, 1, 1)
    places = np.isin(plain, unseen)
    np.testing.assert_array_equal(state.order[places], plain[places])
    assert state.order.tolist() != plain.tolist()


@pytest.mark.parametrize("policy", BOTH, ids=str)
def test_rows_live_on_in_epochs_that_show_nothing_and_may_be_renewed_in_part(policy):
    old, new = rows_of(30, seed=1), rows_of(30, seed=2)
    state = policy.advance(shown(policy, policy.init(30), old))
    state = policy.advance(policy.advance(state))
    np.testing.assert_array_equal(state.rows, old)
    some = state.order[:10]
    state = policy.advance(policy.observe(state, some, new[some]))
    mixed = old.copy()
    mixed[some] = new[some]
    np.testing.assert_array_equal(state.rows, mixed)
    again = policy.init(30, rows=mixed)
    while again.epoch < state.epoch:
        again = policy.advance(again)
    np.testing.assert_array_equal(state.order, again.order)


@pytest.mark.parametrize("policy", BOTH, ids=str)
def test_rows_known_before_training_shape_the_first_epoch_and_stay_beside_observed_ones(policy):
    given, observed = rows_of(300, dim=4), rows_of(300, dim=9, seed=1)
    state = policy.init(300, seed=2, rows=given)
    plain = policy.init(300, seed=2)
    assert state.order.tolist() != plain.order.tolist()
    assert policy.open(plain, 7).order.tolist() == shuffled(300, 2, 7).tolist()
    state = policy.advance(shown(policy, state, observed))
    np.testing.assert_array_equal(state.rows, np.hstack([given, observed]).astype(np.float32))
    np.testing.assert_array_equal(state.latest, observed.astype(np.float32))
    state = policy.advance(shown(policy, state, 2 * observed))
    np.testing.assert_array_equal(state.rows, np.hstack([given, 2 * observed]).astype(np.float32))
    assert state.known.all()


def signs(n, dim, seed):
    """Plus and minus ones, as many of each in every column."""
    draw = np.random.default_rng(seed)
    return np.stack([draw.permutation(np.repeat([1.0, -1.0], n // 2)) for _ in range(dim)], axis=1)


@pytest.mark.parametrize("policy", [*BOTH, BalancedCohorts(5)], ids=str)
@pytest.mark.parametrize(("given_size", "observed_size"), [(1, 1), (2.0**40, 2.0**-40), (4.0, 2.0**60)])
def test_of_rows_given_and_observed_each_kind_counts_as_much(policy, given_size, observed_size):
    """Less their mean, both kinds are brought to length 1; with four and sixteen signs that is exact."""
    given, observed = signs(300, 4, 0), signs(300, 16, 1)
    state = policy.init(300, seed=2, rows=3 + given_size * given)
    state = policy.advance(shown(policy, state, observed_size * observed))
    together = np.hstack([given / 2, observed / 4])
    np.testing.assert_array_equal(state.order, policy.open(policy.init(300, seed=2, rows=together), 1).order)
    alone = policy.open(policy.init(300, seed=2, rows=observed), 1)
    assert state.order.tolist() != alone.order.tolist()


@pytest.mark.parametrize("policy", [*BOTH, BalancedCohorts(5)], ids=str)
def test_units_that_were_not_observed_go_by_what_was_given_of_them(policy):
    """In what was not seen of them they count as the mean: not as zero, which is far from all others here."""
    given, observed = signs(300, 4, 0), signs(300, 16, 1)
    state = policy.init(300, seed=2, rows=given)
    seen = np.concatenate(
        [np.flatnonzero(observed[:, 0] > 0)[:100], np.flatnonzero(observed[:, 0] < 0)[:100]]
    )
    for k in range(16):  # as many of each sign among those that are seen, too
        observed[seen, k] = np.random.default_rng(k).permutation(np.repeat([1.0, -1.0], 100))
    visits = state.order[np.isin(state.order, seen)]
    state = policy.advance(policy.observe(state, visits, 64 + observed[visits]))
    together = np.hstack([given / 2, observed / 4])
    together[np.setdiff1d(np.arange(300), seen), 4:] = 0
    np.testing.assert_array_equal(state.order, policy.open(policy.init(300, seed=2, rows=together), 1).order)
    assert (state.known != 0).all()
    assert int((state.known > 0).sum()) == 200


@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_few_observed_units_do_not_spoil_what_was_given(policy):
    given = rows_of(400, dim=4)
    state = policy.init(400, rows=given)
    some = state.order[:16]
    state = policy.advance(policy.observe(state, some, rows_of(16, dim=9)))
    shuffle = np.median([order_error(given, shuffled(400, s, 0)) for s in range(9)])
    assert order_error(given, state.order) < 0.3 * shuffle


@pytest.mark.parametrize("power", [-90, -70, 70, 120])
def test_rows_of_any_size_are_steered_alike(power):
    """Products of rows of 2^±70 and their sum are outside of float32; these are not the rows' fault."""
    rows, policy = rows_of(500), Steering(window=100)
    rows[:300] = 0  # the first of them say nothing about size
    usual = policy.init(500, rows=rows)
    np.testing.assert_array_equal(policy.init(500, rows=rows * np.float32(2.0**power)).order, usual.order)
    assert order_error(rows, usual.order) < 0.5 * order_error(rows, shuffled(500, 0, 0))


@pytest.mark.parametrize("power", [-60, -31, 31, 60])
def test_a_walks_c_is_for_rows_as_they_are(power):
    """Else the walk would clip, or sign at random, and what the theory promises of it would not hold."""
    size, rows = 2.0**power, rows_of(500)
    usual = Herding(rule=Walk(300.0)).init(500, rows=rows)
    scaled = Herding(rule=Walk(300.0 * size**2)).init(500, rows=rows * np.float32(size))
    np.testing.assert_array_equal(scaled.order, usual.order)
    assert scaled.clipped == usual.clipped == 0


@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_a_kind_in_which_all_units_are_alike_decides_nothing(policy):
    observed = rows_of(50, dim=6)
    state = policy.advance(shown(policy, policy.init(50, rows=np.full((50, 3), 7.0)), observed))
    alone = policy.advance(shown(policy, policy.init(50), observed))
    assert state.order.tolist() == alone.order.tolist()


@pytest.mark.parametrize("policy", BOTH, ids=str)
@pytest.mark.parametrize("given", [-1, 8])
def test_a_state_that_was_given_more_than_its_rows_hold_is_refused(policy, given):
    state = replace(policy.init(5, rows=rows_of(5, dim=7)), given=given)
    with pytest.raises(ValueError, match=f"given={given} of 7"):
        load_state_dict(policy, state_dict(policy, state))


@pytest.mark.parametrize("policy", BOTH, ids=str)
@pytest.mark.parametrize("mark", [-1, 1])
def test_a_state_that_marks_units_without_rows_is_refused(policy, mark):
    state = replace(policy.init(5), known=np.full(5, mark, np.int8))
    with pytest.raises(ValueError, match="known marks units that have no rows"):
        load_state_dict(policy, state_dict(policy, state))


@pytest.mark.parametrize("policy", BOTH, ids=str)
def test_an_epoch_can_be_opened_from_its_number_alone(policy):
    state = policy.init(50, seed=4, rows=rows_of(50))
    there = policy.open(state, 6)
    for _ in range(6):
        state = policy.advance(state)
    np.testing.assert_array_equal(there.order, state.order)


@pytest.mark.parametrize("policy", BOTH, ids=str)
def test_advance_leaves_the_old_state_valid(policy):
    state = shown(policy, policy.init(25), rows_of(25))
    before = state_dict(policy, state)
    policy.advance(state)
    assert state_dict(policy, state)["checksum"] == before["checksum"]
    again = load_state_dict(policy, before)
    np.testing.assert_array_equal(policy.advance(again).order, policy.advance(state).order)


@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_one_epoch_reaches_what_pair_balancing_reaches_after_many(policy):
    rows = rows_of(2000, dim=10, seed=1)
    arranged = np.median([order_error(rows, policy.init(2000, seed=s, rows=rows).order) for s in range(5)])
    pairs, errors = PairGraB(), []
    state = pairs.init(2000)
    for _ in range(12):
        state = pairs.advance(pairs.observe(state, state.order, rows[state.order]))
        errors.append(order_error(rows, state.order))
    assert arranged < errors[0] / 4
    assert arranged < 1.3 * errors[-1]


@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_lengths_do_not_drift_along_the_epoch(policy):
    """The trap: the smallest ‖s + z‖ takes short rows first, and leaves the hard examples to the end."""
    n = 8000
    rows = rows_of(n, dim=20) * np.random.default_rng(1).lognormal(sigma=0.8, size=(n, 1)).astype(np.float32)
    lengths = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    orders = [policy.init(n, seed=seed, rows=rows).order for seed in range(4)]
    tenths = np.mean([lengths[order].reshape(10, -1).mean(axis=1) for order in orders], axis=0)
    assert np.abs(tenths / lengths.mean() - 1).max() < 0.12


def gradients_of_a_classifier(steps, seed=0):
    """Each example's gradient and loss in softmax regression on noisy digits, after so many steps."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    draw = np.random.default_rng(seed)
    x = np.concatenate([digits.data / 16 + 0.3 * draw.normal(size=digits.data.shape) for _ in range(4)])
    y, weights = np.tile(digits.target, 4), np.zeros((64, 10))
    for _ in range(steps):
        scores = np.exp(x @ weights)
        right = scores / scores.sum(axis=1, keepdims=True)
        weights -= 0.5 * x.T @ (right - np.eye(10)[y]) / len(x)
    losses = -np.log(right[np.arange(len(y)), y])
    rows = x[:, :, None] * (right - np.eye(10)[y])[:, None, :]
    return rows.reshape(len(x), -1).astype(np.float32), losses


def tenths_of(values, orders):
    """Means over the tenths of an epoch, by the mean of all."""
    tenths = [[part.mean() for part in np.array_split(values[order], 10)] for order in orders]
    return np.mean(tenths, axis=0) / values.mean()


@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_on_real_gradients_lengths_and_losses_stay_near_their_means(policy):
    """Half-way through training."""
    rows, losses = gradients_of_a_classifier(60)
    lengths = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    orders = [policy.init(len(rows), seed=seed, rows=rows).order for seed in range(4)]
    for values in (lengths, losses):
        tenths = tenths_of(values, orders)
        assert np.abs(tenths[:9] - 1).max() < 0.1
        assert 0.75 < tenths[-1] < 1.1


@pytest.mark.parametrize("steps", [60, 300, 1000])
def test_on_real_gradients_lengths_and_losses_stay_at_their_means_along_the_epoch(steps):
    """From half-way through training to near its end, where most examples are fitted and few are long."""
    rows, losses = gradients_of_a_classifier(steps)
    lengths = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
    orders = [Steering().init(len(rows), seed=seed, rows=rows).order for seed in range(4)]
    assert np.abs(tenths_of(lengths, orders) - 1).max() < 0.02
    assert np.abs(tenths_of(losses, orders) - 1).max() < 0.1
    if steps == 1000:  # by directions alone, easy examples are left for the end
        alone = [Steering(lengths=0).init(len(rows), seed=seed, rows=rows).order for seed in range(4)]
        assert tenths_of(lengths, alone)[-1] < 0.6
        assert tenths_of(losses, alone)[-1] < 0.6


def test_herding_drifts_in_no_direction():
    rows, losses = gradients_of_a_classifier(300)
    orders = [Herding().init(len(rows), seed=seed, rows=rows).order for seed in range(8)]
    for values in (np.linalg.norm(rows - rows.mean(axis=0), axis=1), losses):
        assert np.abs(tenths_of(values, orders) - 1).max() < 0.15


def test_the_trap_itself_would_be_noticed():
    rows = rows_of(2000, dim=20) * np.random.default_rng(1).lognormal(sigma=0.8, size=(2000, 1))
    rows -= rows.mean(axis=0)
    lengths, total, left, out = np.linalg.norm(rows, axis=1), np.zeros(20), list(range(2000)), []
    draw = np.random.default_rng(0)
    while left:
        some = draw.integers(len(left), size=16)
        at = min(some, key=lambda i: np.linalg.norm(total + rows[left[i]]))
        out.append(left[at])
        total += rows[left[at]]
        left[at] = left[-1]
        left.pop()
    tenths = lengths[out].reshape(10, -1).mean(axis=1)
    assert tenths[-1] / lengths.mean() > 1.3


@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_rows_cost_four_bytes_a_number(policy):
    state = policy.observe(policy.init(50), policy.init(50).order, np.ones((50, 8)))
    assert state.rows.nbytes == 50 * 8 * 4


BAD = [
    (lambda p: p.init(4, rows=rows_of(3)), r"rows of shape \(3, .*one row for each of the 4"),
    (lambda p: p.init(3, rows=np.full((3, 2), np.nan)), "rows.0. is NaN"),
    (lambda p: p.init(3, rows=np.full((3, 2), 1e39)), "rows.0. is NaN or infinite"),
    (lambda p: p.observe(p.init(3), [9], np.ones((1, 2))), "units"),
    (lambda p: p.observe(p.init(3), p.init(3).order, np.full((3, 2), np.nan)), "NaN"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
@pytest.mark.parametrize("policy", [Herding(), Steering()], ids=str)
def test_bad_input_is_named_with_its_cure(policy, call, words):
    with pytest.raises(ValueError, match=words):
        call(policy)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Herding(passes=0), "passes=0"),
        (lambda: Steering(window=0), "window=0"),
        (lambda: Steering(candidates=2.5), "candidates=2.5"),
        (lambda: Steering(lengths=1e38), "lengths=1e.38: pass at most"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
