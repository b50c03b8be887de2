"""CD-GraB equals loops over servers and workers; one worker is PairGraB; coordination is what helps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from wellorder import CDGraB, PairGraB, Walk, load_state_dict, order_error, shuffled, state_dict
from wellorder._order import _checksum


class Server:
    """One running sum; signs whatever difference it is sent."""

    def __init__(self, dim):
        self.total = [0.0] * dim

    def sign(self, difference):
        along = sum(s * d for s, d in zip(self.total, difference, strict=True))
        sign = 1 if along < 0 else -1
        self.total = [s + sign * d for s, d in zip(self.total, difference, strict=True)]
        return sign


def transcribed(order, gradients, workers):
    """An epoch as server and workers live it: in every second round each worker sends a difference."""
    own = [list(order[w::workers]) for w in range(workers)]
    server, kept = Server(len(gradients[0])), [{} for _ in range(workers)]
    for late in range(1, max(map(len, own)), 2):
        for w in range(workers):
            if late < len(own[w]):
                a, b = own[w][late - 1], own[w][late]
                sign = server.sign([x - y for x, y in zip(gradients[a], gradients[b], strict=True)])
                kept[w][a], kept[w][b] = sign, -sign
    for w in range(workers):
        front = [u for u in own[w] if kept[w].get(u) == 1]
        middle = [u for u in own[w] if u not in kept[w]]
        back = [u for u in own[w] if kept[w].get(u) == -1]
        own[w] = front + middle + back[::-1]
    return [own[p % workers][p // workers] for p in range(len(order))]


@pytest.mark.parametrize(("n", "workers"), [(24, 4), (25, 4), (23, 3), (16, 16), (7, 9), (12, 1)])
def test_orders_equal_a_transcription_with_server_and_workers(n, workers):
    rows = np.random.default_rng(n).integers(-9, 10, (n, 3)).astype(float)  # sums are exact
    policy = CDGraB(workers)
    state = policy.init(n, seed=3)
    for _ in range(6):
        expected = transcribed(state.order.tolist(), rows.tolist(), workers)
        state = policy.advance(policy.observe(state, state.order, rows[state.order]))
        assert state.order.tolist() == expected
        assert (state.order % workers == np.arange(n) % workers).all()  # each worker keeps its units


@given(some.integers(2, 30), some.integers(0, 3), some.lists(some.integers(1, 7)), some.booleans())
@settings(max_examples=40, deadline=None)
def test_one_worker_is_pairgrab(n, seed, cuts, walking):
    rows = np.random.default_rng(seed).integers(-3, 4, (n, 2)).astype(np.float32)  # with ties
    rule = Walk(20.0) if walking else PairGraB().rule
    both = CDGraB(1, rule), PairGraB(rule)
    states = [policy.init(n, seed=seed) for policy in both]
    for _ in range(3):
        for at, policy in enumerate(both):
            order = states[at].order
            for part in np.split(order, np.cumsum(cuts)[np.cumsum(cuts) < n]):
                states[at] = policy.observe(states[at], part, rows[part])
            states[at] = policy.advance(states[at])
        assert states[0].order.tolist() == states[1].order.tolist()
        assert states[0].clipped == states[1].clipped


def test_the_first_order_is_a_shuffle_of_every_workers_own_units():
    first = CDGraB(4).init(21, seed=5).order
    random = shuffled(21, 5, 0)
    for w in range(4):
        assert first[w::4].tolist() == [u for u in random if u % 4 == w]


def test_coordination_keeps_what_workers_alone_lose():
    n, workers = 2048, 64
    rows = np.random.default_rng(0).normal(size=(n, 16))
    together, alone = CDGraB(workers), PairGraB()
    state = together.init(n)
    apart = [alone.init(n // workers, seed=w) for w in range(workers)]
    for _ in range(8):
        state = together.advance(together.observe(state, state.order, rows[state.order]))
        for w in range(workers):
            units = apart[w].order
            apart[w] = alone.advance(alone.observe(apart[w], units, rows[w::workers][units]))
    order = np.stack([apart[w].order * workers + w for w in range(workers)], 1).ravel()
    shuffle = order_error(rows, shuffled(n, 1, 0), every=workers)
    assert order_error(rows, state.order, every=workers) < 0.2 * shuffle
    assert order_error(rows, order, every=workers) > 0.5 * shuffle


def test_damaged_and_foreign_states_are_refused():
    policy = CDGraB(2)
    state = policy.init(6)
    state = policy.observe(state, state.order[:3], np.ones((3, 2)))
    saved = state_dict(policy, state)
    again = load_state_dict(policy, saved)
    assert (again.waiting == state.waiting).all()
    assert (again.pending == state.pending).all()
    for name, value, words in (
        ("waiting", [6, -1], "outside"),
        ("waiting", [0], "shape"),
        ("pairs", 7, "outside"),
    ):
        forged = {**saved, name: np.array(value) if name == "waiting" else value}
        forged["checksum"] = _checksum(
            {key: forged[key] for key in saved if key not in ("policy", "checksum")}
        )
        with pytest.raises(ValueError, match=f"damaged state.*{words}"):
            load_state_dict(policy, forged)
    with pytest.raises(ValueError, match=r"belongs to CDGraB\(workers=2"):
        load_state_dict(CDGraB(3), saved)


def test_bad_arguments_are_named():
    for workers in (0, -1, 2.5, "two"):
        with pytest.raises(ValueError, match="workers="):
            CDGraB(workers)
    policy = CDGraB(2)
    state = policy.init(4)
    state = policy.observe(state, state.order[:1], np.ones((1, 3)))
    with pytest.raises(ValueError, match="dimension 2"):
        policy.observe(state, state.order[1:2], np.ones((1, 2)))
    with pytest.raises(ValueError, match=r"signals\[0\] is NaN"):
        policy.observe(state, state.order[1:2], np.full((1, 3), np.nan))
