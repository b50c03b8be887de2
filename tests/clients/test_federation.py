"""A federation needs no framework: rounds by hand, and memory that does not grow with the cohort."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellorder import BalancedCohorts, IncrementalGradient, PairGraB, RandomReshuffling, WithReplacement
from wellorder._clients.federation import Federation, natural
from wellorder._clients.tolerance import Tolerance

DIM = 300_000


def one_round(federation, names):
    clients = federation.choose(names, len(names), late=True)
    signal = federation.signal()
    local = {c: {"w": federation.model["w"] - np.float32(c + 1)} for c in clients}
    tracemalloc.start()
    visits = [federation.measure(signal, client, arrays) for client, arrays in local.items()]
    figures = federation.take(signal, visits, [], moved=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return figures, peak


def federation_of(cohort, policy=None, **settings):
    federation = Federation(policy or PairGraB(), cohort, **settings)
    federation.model = {"w": np.zeros(DIM, np.float32)}
    return federation


@pytest.mark.parametrize("signals", ["exact", "sketch"])
def test_server_memory_does_not_grow_with_the_cohort(signals):
    names, peaks = [str(c) for c in range(32)], {}
    for cohort in (4, 16):
        federation = federation_of(cohort, signals=signals)
        one_round(federation, names)
        _, peaks[cohort] = one_round(federation, names)
    assert peaks[16] < 1.2 * peaks[4] + 20 * 1024 * 16
    assert peaks[16] < (40 if signals == "exact" else 2) * DIM


def test_rounds_by_hand_visit_everybody_once_an_epoch():
    federation, seen = federation_of(2, RandomReshuffling()), {}
    for _ in range(6):
        figures, _ = one_round(federation, ["a", "b", "c", "d", "e", "f"])
        seen.setdefault(figures["epoch"], []).extend(figures["cohort"])
    assert [sorted(order) for order in seen.values()] == [list(range(6))] * 2


def test_a_policy_that_keeps_every_clients_signal_is_shown_sketches():
    names = ["a", "b", "c", "d"]
    ours, pairs = federation_of(2, BalancedCohorts(2)), federation_of(2)
    for _ in range(4):
        one_round(ours, names)
        one_round(pairs, names)
    assert ours.queue.state.rows.shape == (4, 1024)
    assert pairs.sketch is None


def test_a_model_without_floats_is_refused_where_a_direction_is_asked_for():
    federation = Federation(PairGraB(), 2)
    federation.model = {"trees": np.zeros(9, np.uint8)}
    with pytest.raises(ValueError, match=r"no floating-point arrays.*use RandomReshuffling\(\)"):
        federation.check_model()
    federation = Federation(RandomReshuffling(), 2)
    federation.model = {"trees": np.zeros(9, np.uint8)}
    federation.check_model()
    assert not federation.measure(federation.signal(), 0, federation.model).fault


def test_nobody_there_is_said_at_once_when_it_is_late_and_waited_for_before():
    federation = federation_of(2, tolerance=Tolerance())
    assert federation.choose([], 2, late=False) is None
    assert federation.choose([], 2, late=True) == ()
    assert federation.choose(["a"], 2, late=False) is None
    assert federation.choose(["a"], 2, late=True) == (0,)


def test_a_few_train_alone_only_where_no_more_are_present():
    federation, names = Federation(IncrementalGradient(), 3), ["a", "b", "c", "d", "e", "f"]
    federation.model = {"w": np.zeros(2, np.float32)}
    one_round(federation, names)
    assert federation.choose(["a", "b", "d", "e"], 6, late=False) is None, "f may come"
    assert federation.choose(["d", "e"], 6, late=True) == (3, 4), "there is nobody else"
    assert federation.choose(["a", "b", "d", "e"], 6, late=True) == (3, 4, 0)
    assert federation.queue.epoch == 1


def test_names_are_numbered_once_in_natural_order():
    federation = federation_of(4)
    assert federation.choose(["10", "9", "node-2", "node-10"], 4, late=False) is not None
    assert federation.names == ["9", "10", "node-2", "node-10"]
    one_round(federation, ["8", "9", "10", "node-2", "node-10"])
    assert federation.names == ["9", "10", "node-2", "node-10", "8"]


@given(st.lists(st.text(max_size=6), unique=True, min_size=1))
def test_any_names_can_be_sorted(names):
    federation = Federation(RandomReshuffling(), 1)
    federation.model = {"w": np.zeros(2)}
    federation.choose(names, 1, late=True)
    assert sorted(federation.names, key=natural) == federation.names
    assert sorted(federation.names) == sorted(names)


def test_ten_thousand_clients_are_chosen_from_without_comparing_them_all_with_all():
    class Name(str):
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    federation, names = federation_of(10, RandomReshuffling()), [Name(c) for c in range(10_000)]
    federation.choose(names, len(names), late=False)
    Name.compared = 0
    assert len(federation.choose([Name(name) for name in names], len(names), late=False)) == 10
    assert Name.compared < 20 * len(names)


def test_a_policy_that_visits_clients_twice_is_refused():
    with pytest.raises(ValueError, match="visits clients twice in an epoch"):
        Federation(WithReplacement(), 3)
