"""The conductor needs no framework: rounds by hand, and memory that does not grow with the cohort."""

import tracemalloc

import numpy as np
import pytest

from wellorder import PairGraB, RandomReshuffling
from wellorder._clients import Conductor, Tolerance

DIM = 300_000


def one_round(conductor, names):
    clients = conductor.choose(names, len(names), late=True)
    signal = conductor.signal()
    local = {c: {"w": conductor.model["w"] - np.float32(c + 1)} for c in clients}
    tracemalloc.start()
    visits = [conductor.measure(signal, client, arrays) for client, arrays in local.items()]
    figures = conductor.take(signal, visits, [], moved=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return figures, peak


def conductor_of(cohort, policy=None, **settings):
    conductor = Conductor.of(policy or PairGraB(), cohort, **settings)
    conductor.model = {"w": np.zeros(DIM, np.float32)}
    return conductor


@pytest.mark.parametrize("signals", ["exact", "sketch"])
def test_server_memory_does_not_grow_with_the_cohort(signals):
    names, peaks = [str(c) for c in range(32)], {}
    for cohort in (4, 16):
        conductor = conductor_of(cohort, signals=signals)
        one_round(conductor, names)
        _, peaks[cohort] = one_round(conductor, names)
    assert peaks[16] < 1.2 * peaks[4] + 20 * 1024 * 16
    assert peaks[16] < (40 if signals == "exact" else 2) * DIM


def test_rounds_by_hand_visit_everybody_once_an_epoch():
    conductor, seen = conductor_of(2, RandomReshuffling()), {}
    for _ in range(6):
        figures, _ = one_round(conductor, ["a", "b", "c", "d", "e", "f"])
        seen.setdefault(figures["epoch"], []).extend(figures["cohort"])
    assert [sorted(order) for order in seen.values()] == [list(range(6))] * 2


def test_a_model_without_floats_is_refused():
    conductor = Conductor.of(PairGraB(), 2)
    conductor.model = {"trees": np.zeros(9, np.uint8)}
    with pytest.raises(ValueError, match="no floating-point arrays"):
        conductor.signal()


def test_nobody_there_is_said_at_once_when_it_is_late_and_waited_for_before():
    conductor = conductor_of(2, tolerance=Tolerance())
    assert conductor.choose([], 2, late=False) is None
    assert conductor.choose([], 2, late=True) == ()
    assert conductor.choose(["a"], 2, late=False) is None
    assert conductor.choose(["a"], 2, late=True) == (0,)
