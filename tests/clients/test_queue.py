"""A policy over clients that come and go: its units are whoever really came, in that order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellorder import FlipFlop, GraB, PairGraB, RandomReshuffling, ShuffleOnce, WithReplacement, pair_br
from wellorder._clients.course import Course, close, observe, open_first
from wellorder._clients.roster import Roster, join

POLICIES = [PairGraB(), GraB(), RandomReshuffling(), ShuffleOnce(), FlipFlop()]


def opened(policy, n, seed=0):
    return open_first(Course(policy, seed, roster=join(Roster(), map(str, range(n)))))


def lived(course, came, missed=()):
    return replace(course, roster=replace(course.roster, queue=(), visited=tuple(came), missed=tuple(missed)))


@given(st.permutations(range(7)), st.integers(0, 7), st.integers(0, 9))
def test_the_next_order_follows_from_who_really_came(came, count, seed):
    signals = np.random.default_rng(seed).standard_normal((7, 3))
    course = opened(PairGraB(), 7, seed)
    course = lived(observe(course, 0, signals[list(came[:count])]), came[:count], came[count:])
    expected = (
        [came[step] for step in pair_br(np.arange(count), signals[list(came[:count])])] if count else []
    )
    half = list(came[count:])
    queue = close(course).roster.queue
    assert queue[: len(half)] == tuple(half)
    assert [c for c in queue if c not in half] == [c for c in expected if c not in half]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(st.permutations(range(6)), st.integers(0, 6), st.integers(0, 3))
def test_an_epoch_holds_everybody_once_whoever_was_missed_or_joined(policy, came, count, newcomers):
    course = lived(opened(policy, 6), came[:count], came[count:])
    names = map(str, range(6 + newcomers))
    course = close(replace(course, roster=join(course.roster, names)))
    assert sorted(course.roster.queue) == list(range(6 + newcomers))
    assert course.roster.queue[: 6 - count] == tuple(came[count:])
    assert course.roster.epoch == 1
    assert course.generation == bool(newcomers)


def test_shuffle_once_keeps_its_order_after_somebody_was_missed():
    course = opened(ShuffleOnce(), 6)
    order = course.roster.queue
    course = close(lived(course, order[1:], order[:1]))
    course = close(lived(course, course.roster.queue))
    assert course.roster.queue == order


def test_newcomers_draw_other_random_numbers_than_the_first_epochs():
    course = lived(opened(RandomReshuffling(), 50), range(50))
    grown = close(replace(course, roster=join(course.roster, ["50"])))
    fresh = opened(RandomReshuffling(), 51)
    assert grown.roster.queue != fresh.roster.queue


def test_a_policy_that_visits_clients_twice_is_refused():
    with pytest.raises(ValueError, match="does not visit each of 9 clients once"):
        opened(WithReplacement(), 9)
