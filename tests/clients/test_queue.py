"""One policy over clients that come and go: its units are whoever really came, and nobody is lost."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellorder import (
    BalancedCohorts,
    FlipFlop,
    GraB,
    Herding,
    PairGraB,
    RandomCohorts,
    RandomReshuffling,
    ShuffleOnce,
    pair_br,
)
from wellorder._clients.availability import Always, Diurnal, DropOut
from wellorder._clients.queue import Queue, plan_epoch
from wellorder._order import Needs
from wellorder._saving import load_state, save_state

POLICIES = [PairGraB(), GraB(), RandomReshuffling(), ShuffleOnce(), FlipFlop(), Herding()]


def opened(policy, n, seed=0):
    queue = Queue(policy, seed)
    queue.open(n)
    return queue


def lived(queue, came, missed=()):
    """Close an epoch in which these came, in this order, and those did not."""
    queue.settle(list(came))
    queue.settle([], list(missed), attempts=1)
    assert not len(queue)


def in_a_circle(order, missed):
    """Whoever was missed, then the others of the order, from the last who was missed on round the circle."""
    after = order.index(missed[-1]) + 1 if missed else 0
    return list(missed) + [c for c in order[after:] + order[:after] if c not in missed]


@given(st.permutations(range(7)), st.integers(0, 7), st.integers(0, 9))
def test_the_next_order_follows_from_who_really_came(came, count, seed):
    signals = np.random.default_rng(seed).standard_normal((7, 3))
    queue = opened(PairGraB(), 7, seed)
    queue.observe(0, came[:count], signals[list(came[:count])])
    lived(queue, came[:count], came[count:])
    expected = (
        [came[step] for step in pair_br(np.arange(count), signals[list(came[:count])])] if count else []
    )
    half = list(came[count:])
    queue.close()
    order = queue.units[queue.state.order].tolist()
    assert [c for c in order if c not in half] == expected
    assert queue.waiting.tolist() == in_a_circle(order, half)


@given(st.permutations(range(7)), st.integers(1, 7), st.integers(0, 9))
def test_a_policy_that_keeps_rows_keeps_them_for_a_client_whenever_it_came(came, count, seed):
    signals = np.random.default_rng(seed).standard_normal((7, 3))
    policy, queue = Herding(), opened(Herding(), 7, seed)
    for at in range(0, count, 2):
        some = came[at : min(at + 2, count)]
        queue.observe(at, some, signals[list(some)])
    lived(queue, came[:count], came[count:])
    queue.close()
    state = policy.init(7, seed=seed)
    known = np.array([unit for unit in state.order if unit in came[:count]])
    state = policy.advance(policy.observe(state, known, signals[known]))
    assert (queue.state.order == state.order).all()
    assert (queue.units == np.arange(7)).all()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(st.permutations(range(6)), st.integers(0, 6), st.integers(0, 3))
def test_an_epoch_holds_everybody_once_whoever_was_missed_or_joined(policy, came, count, newcomers):
    queue = opened(policy, 6)
    lived(queue, came[:count], came[count:])
    queue.close(range(6, 6 + newcomers))
    assert sorted(queue.waiting) == list(range(6 + newcomers))
    assert queue.waiting[: 6 - count].tolist() == list(came[count:])
    assert queue.epoch == 1
    assert queue.generation == bool(newcomers)


def test_shuffle_once_keeps_its_order_after_somebody_was_missed():
    queue = opened(ShuffleOnce(), 6)
    order = queue.waiting
    lived(queue, order[1:], order[:1])
    queue.close()
    lived(queue, queue.waiting)
    queue.close()
    assert queue.waiting.tolist() == order.tolist()


def test_newcomers_draw_other_random_numbers_than_the_first_epochs():
    queue = opened(RandomReshuffling(), 50)
    lived(queue, range(50))
    queue.close([50])
    assert queue.waiting.tolist() != opened(RandomReshuffling(), 51).waiting.tolist()


@dataclass(frozen=True)
class Twice:
    """Says nothing about its orders, which hold a unit twice."""

    needs = Needs.NOTHING

    def init(self, n, *, seed=0):
        state = RandomReshuffling().init(n, seed=seed)
        return type(state)(seed, 0, np.zeros(n, np.int32))


def test_a_policy_that_visits_clients_twice_is_refused():
    with pytest.raises(ValueError, match="does not visit each of 9 clients once"):
        opened(Twice(), 9)


@given(st.permutations(range(8)), st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_a_turn_is_the_first_of_the_queue_that_are_present(line, size, present):
    queue = opened(RandomReshuffling(), 8)
    queue.line_up(np.array(line))
    chosen = queue.next(size, lambda clients: np.isin(clients, [*present]))
    assert len(chosen) == min(size, len(present))
    assert [c for c in line if c in present][: len(chosen)] == chosen.tolist()
    assert queue.waiting.tolist() == list(line)


def test_a_client_that_keeps_failing_is_missed_after_its_attempts():
    queue = opened(RandomReshuffling(), 3)
    queue.line_up(np.arange(3))
    queue.settle([0], [1], attempts=2)
    assert (queue.waiting.tolist(), queue.visited.tolist(), queue.missed.tolist()) == ([2, 1], [0], [])
    queue.settle([2], [1], attempts=2)
    assert (queue.waiting.tolist(), queue.visited.tolist(), queue.missed.tolist()) == ([], [0, 2], [1])


def test_a_client_that_was_missed_before_has_one_attempt():
    queue = opened(RandomReshuffling(), 2)
    lived(queue, [0], [1])
    queue.close()
    queue.settle([0], [1], attempts=5)
    assert queue.missed.tolist() == [1]


def test_giving_up_misses_the_rest():
    queue = opened(RandomReshuffling(), 4)
    queue.line_up(np.array([0, 2, 3, 1]))
    queue.settle([0], [2], attempts=1)
    queue.give_up()
    assert (queue.waiting.tolist(), queue.visited.tolist(), queue.missed.tolist(), queue.size) == (
        [], [0], [2, 3, 1], 4,
    )  # fmt: skip


@dataclass(frozen=True)
class Jealous:
    """PairGraB that accepts no state but the one it made last, as it made it."""

    inner = PairGraB()
    needs = Needs.SIGNALS
    keeps = PairGraB.keeps
    made: ClassVar = []

    def mine(self, state):
        assert self.made, "a state from nowhere"
        last, order = self.made.pop()
        assert state is last
        assert state.order is order

    def keep(self, state):
        self.made.append((state, state.order))
        return state

    def init(self, n, *, seed=0):
        self.made.clear()
        return self.keep(self.inner.init(n, seed=seed))

    def observe(self, state, units, signals):
        self.mine(state)
        return self.keep(self.inner.observe(state, units, signals))

    def advance(self, state):
        self.mine(state)
        return self.keep(self.inner.advance(state))


def test_a_policy_is_shown_no_state_that_it_did_not_make():
    queue, draw = opened(Jealous(), 9), np.random.default_rng(0)
    for _ in range(5):
        at, here = 0, draw.random(9) < 0.7
        while len(came := queue.next(2, here.__getitem__)):
            queue.observe(at, came, draw.standard_normal((len(came), 3)))
            queue.settle(came)
            at += len(came)
        queue.give_up()
        assert sorted([*queue.visited, *queue.missed]) == list(range(9))
        queue.close()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_saved_queue_goes_on_to_the_same_orders(policy, stop, tmp_path):
    def rounds(queue, epochs, until=None):
        seen = []
        for epoch in range(epochs):
            at, turn = len(queue.visited), 0
            while len(came := queue.next(2, lambda clients, away=queue.epoch % 5: clients % 5 != away)):
                if until is not None and (epoch, turn) == (1, until):
                    return seen
                good, bad = (came[:1], came[1:]) if turn < 2 else (came, [])
                queue.observe(at, good, np.outer(good + 1.0, [1.0, -2.0, epoch]) + queue.epoch)
                queue.settle(good, bad, attempts=2)
                at, turn = len(queue.visited), turn + 1
            queue.give_up()
            seen.append([*queue.visited, *queue.missed])
            queue.close()
        return seen

    queue = opened(policy, 11)
    rounds(queue, 2, until=stop)
    save_state(tmp_path / "queue.npz", queue.saved())
    other = Queue(policy)
    other.restore(load_state(tmp_path / "queue.npz"))
    assert rounds(queue, 3) == rounds(other, 3)


def brought_forward(line, wanted, count, rows):
    """With lists: in the first places the wanted, each in that of the one whom it is most like."""
    line = list(line)
    for place in range(min(count, len(line))):
        behind = [at for at in range(count, len(line)) if line[at] in wanted]
        if line[place] not in wanted and behind:
            own = rows.get(line[place])
            far = [
                sum((a - b) ** 2 for a, b in zip(own, rows[line[at]], strict=True))
                if own and line[at] in rows
                else np.inf
                for at in behind
            ]
            other = behind[far.index(min(far))]
            line[place], line[other] = line[other], line[place]
    return line


@given(st.permutations(range(9)), st.sets(st.integers(0, 8)), st.integers(1, 9), st.integers(0, 9))
def test_whoever_is_away_or_was_missed_changes_places_with_the_one_most_like_it(came, present, size, seed):
    rows = np.random.default_rng(seed).integers(-9, 9, (9, 2)).astype(float)
    queue = opened(Herding(), 9, seed)
    queue.observe(0, came[:7], rows[list(came[:7])])
    lived(queue, came[:7], came[7:])
    queue.close()
    known = {c: tuple(rows[c]) for c in came[:7]}
    line = brought_forward(queue.state.order.tolist(), came[7:], 2, known)
    assert queue.waiting.tolist() == line
    line = brought_forward(line, present, size, known)
    assert (
        queue.next(size, lambda clients: np.isin(clients, [*present])).tolist()
        == [c for c in line if c in present][:size]
    )
    assert queue.waiting.tolist() == line


@pytest.mark.parametrize("policy", [Herding(), PairGraB()], ids=repr)
def test_the_first_who_are_there_are_found_however_many_sleep_before_them(policy):
    queue, clock = opened(policy, 2000), 0
    for _ in range(3):
        rounds, clock = plan_epoch(queue, 20, Diurnal(2, 10_000, 0.5), clock)
        assert (rounds.counts == 20).all()
        assert sorted(queue.visited) == list(range(0, 2000, 2))
        for at, came in enumerate(rounds.clients):
            queue.observe(20 * at, came, np.outer(came, [1.0, -1.0]))
        queue.close()


def test_balanced_cohorts_stay_balanced_when_clients_are_away():
    kinds, counted = np.arange(60) % 6, {}
    for policy in (BalancedCohorts(6), RandomReshuffling()):
        queue, clock, seen = opened(policy, 60), 0, []
        for epoch in range(12):
            rounds, clock = plan_epoch(queue, 6, DropOut(0.3), clock)
            for at, came in enumerate(rounds.clients):
                queue.observe(6 * at, came, np.eye(6)[kinds[came]])
                seen += [len({*kinds[came].tolist()})] if epoch > 1 else []
            queue.close()
        counted[type(policy)] = np.mean(seen)
    assert counted[BalancedCohorts] > 5.5
    assert counted[RandomReshuffling] < 4.5


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("rule", [DropOut(0.3), Diurnal(4, 40, 0.5)], ids=repr)
def test_rounds_are_full_and_clients_come_equally_often_whoever_is_away(policy, rule):
    queue, clock, visits, draw = opened(policy, 60), 0, Counter(), np.random.default_rng(0)
    for _ in range(60):
        rounds, clock = plan_epoch(queue, 6, rule, clock)
        assert (rounds.counts == 6).all()
        for at, came in enumerate(rounds.clients):
            visits.update(came.tolist())
            queue.observe(6 * at, came, draw.standard_normal((6, 3)) + (came % 10)[:, None])
        queue.close()
    mean = sum(visits.values()) / 60
    assert min(visits.values()) > 0.75 * mean
    assert max(visits.values()) < 1.25 * mean


def test_a_round_is_short_only_where_no_more_can_be_reached_or_the_order_ends():
    queue = opened(RandomReshuffling(), 7)
    queue.line_up(np.arange(7))
    assert not queue.cut_short(queue.next(3), 3)
    assert queue.cut_short(queue.next(3, lambda clients: clients > 4), 3)
    queue.settle([0, 1, 2])
    queue.settle([3, 4, 5])
    assert not queue.cut_short(queue.next(3), 3), "seven clients make two rounds of three and one of one"
    queue = opened(RandomReshuffling(), 7)
    queue.line_up(np.arange(7))
    queue.settle([0, 1], [2], attempts=2)
    queue.settle([3, 4, 5])
    assert queue.next(3).tolist() == [6, 2]
    assert queue.cut_short(queue.next(3), 3), "2 has failed and would be one of two"


def cohorts_of(availability, epochs=1, n=30, cohort=4, seed=3):
    queue, clock, found = Queue(RandomCohorts(cohort), seed), 0, []
    queue.open(n)
    for _ in range(epochs):
        before = clock
        rounds, clock = plan_epoch(queue, cohort, availability, clock)
        found.append((before, rounds, queue.visited.copy()))
        queue.close()
    return found


def test_random_cohorts_of_all_clients_are_the_policys_order_whoever_is_asked():
    for rule in (Always(), DropOut(0.0)):
        for epoch, (_, rounds, visited) in enumerate(cohorts_of(rule, epochs=3)):
            state = RandomCohorts(4).init(30, seed=3)
            for _ in range(epoch):
                state = RandomCohorts(4).advance(state)
            assert (visited == state.order).all()
            assert (rounds.counts == [4] * 7 + [2]).all()


def test_random_cohorts_are_drawn_from_those_who_can_be_reached():
    rule, seen = DropOut(0.6), Counter()
    for before, rounds, visited in cohorts_of(rule, epochs=200):
        assert len(visited) == 30  # as many visits an epoch as there are clients
        for turn, (row, count) in enumerate(zip(rounds.clients, rounds.counts, strict=True)):
            now = row[:count]
            assert len(set(now.tolist())) == count
            assert rule.reachable(now, before + turn, seed=3).all()
            seen.update(now.tolist())
    assert min(seen.values()) > 150  # 200 each on average, whoever they are
    assert max(seen.values()) < 250
