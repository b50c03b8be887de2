"""Whoever can be reached is visited once an epoch; whoever missed a turn comes first in the next."""

import numpy as np
import pytest

from wellorder import Arbitrary, IncrementalGradient, PairGraB
from wellorder._clients.queue import Queue, plan_epoch
from wellorder._order import shuffled
from wellorder.federated import Always, Diurnal, DropOut, Trace


def slow_epoch(order, late, cohort, up, turn):
    """The rule, with lists: returns the rounds, who was missed, and the next turn."""
    after = order.index(late[-1]) + 1 if late else 0
    queue = list(late) + [u for u in order[after:] + order[:after] if u not in set(late)]
    rounds = []
    while queue:
        chosen = [u for u in queue if up(u, turn)][:cohort]
        usual = len(chosen) == cohort or (len(chosen) == len(queue) == len(order) % cohort)
        if not usual and sum(up(u, turn) for u in order) >= cohort:
            break
        if not chosen and rounds:
            break
        turn += 1
        if chosen:
            rounds.append(chosen)
            queue = [u for u in queue if u not in set(chosen)]
    return rounds, queue, turn


def planned(queue, cohort, availability, turn):
    """The rounds of the queue's epoch as lists, and the turn after them."""
    rounds, after = plan_epoch(queue, cohort, availability, turn)
    return [row[:count].tolist() for row, count in zip(rounds.clients, rounds.counts, strict=True)], after


def some_availability(draw, n, tmp_path, case):
    kind = case % 4
    if kind == 0:
        return Always()
    if kind == 1:
        return Diurnal(int(draw.integers(1, 5)), int(draw.integers(1, 12)), float(draw.uniform(0.2, 1)))
    if kind == 2:
        return DropOut(float(draw.uniform(0, 0.95)))
    spans = [(u, int(a), int(a + draw.integers(0, 6))) for u in range(n) for a in draw.integers(0, 9, 1)]
    file = tmp_path / f"{case}.csv"
    file.write_text("client,first,last\n" + "\n".join(f"{u},{a},{b}" for u, a, b in spans))
    return Trace(file)


def test_a_thousand_random_settings_visit_exactly_who_can_be_reached(tmp_path):
    draw = np.random.default_rng(0)
    for case in range(1000):
        n = int(draw.integers(1, 40))
        cohort, seed = int(draw.integers(1, n + 1)), int(draw.integers(100))
        rule = some_availability(draw, n, tmp_path, case)
        queue = Queue(Arbitrary(lambda epoch, n=n, seed=seed: shuffled(n, seed, epoch)), seed)
        queue.open(n)
        turn, late, passed = 0, [], np.zeros(n, int)
        for epoch in range(4):
            order = shuffled(n, seed, epoch)
            rounds, after = planned(queue, cohort, rule, turn)

            awake = {}

            def up(unit, when, rule=rule, seed=seed, awake=awake, n=n):
                if when not in awake:
                    awake[when] = rule.reachable(np.arange(n), when, seed).tolist()
                return awake[when][unit]

            missed = queue.missed.tolist()
            slow = slow_epoch(order.tolist(), late, cohort, up, turn)
            assert (rounds, missed, after) == slow
            visits = [u for r in rounds for u in r]
            assert sorted(visits + missed) == list(range(n))
            assert queue.visited.tolist() == visits
            assert sum(up(u, after) for u in missed) < cohort
            assert all(len(r) <= cohort for r in rounds)
            if isinstance(rule, Always):
                assert [len(r) for r in rounds] == [cohort] * (n // cohort) + [n % cohort] * bool(n % cohort)
                assert visits == order.tolist()
            idle = after - turn - len(rounds)
            for when, chosen in enumerate(rounds, turn + idle):  # an epoch's idle rounds come first
                up(0, when)
                passed += np.array(awake[when]) & (len(chosen) == cohort)
                passed[chosen] = 0
            assert passed.max() <= 3 * (n // cohort)  # nobody is passed over for ever who can be reached
            late, turn = missed, after
            queue.close()


def published_epochs(n, cohort, epochs):
    """The published experiments' bookkeeping: whole rounds and pairs only; what does not fit falls out."""
    order = list(range(n))
    for _ in range(epochs):
        visited = order[: n // cohort * cohort]
        pairs = [visited[i : i + 2] for i in range(0, len(visited) - 1, 2)]
        order = [a for a, _ in pairs] + [b for _, b in reversed(pairs)]
    return order


@pytest.mark.parametrize(("n", "cohort"), [(1003, 10), (1000, 7), (101, 2), (9, 3), (7, 7)])
def test_clients_lost_by_the_published_code_are_kept_here(n, cohort):
    assert len(published_epochs(n, cohort, 3)) < n
    queue, draw = Queue(PairGraB()), np.random.default_rng(0)
    queue.open(n)
    for _ in range(3):
        rounds, _ = planned(queue, cohort, Always(), 0)
        assert sorted(u for r in rounds for u in r) == list(range(n))
        at = 0
        for chosen in rounds:
            queue.observe(at, chosen, draw.standard_normal((len(chosen), 3)))
            at += len(chosen)
        queue.close()


def test_night_clients_come_first_when_their_day_breaks():
    rule, n = Diurnal(groups=2, period=10, awake=0.5), 20
    queue = Queue(IncrementalGradient())
    queue.open(n)
    rounds, _ = planned(queue, 2, rule, 0)
    assert [u for r in rounds for u in r] == list(range(0, n, 2)) + list(range(1, n, 2))
    queue.close()
    planned(queue, 5, rule, 0)
    assert queue.missed.tolist() == list(range(1, n, 2))
    queue.close()
    later, _ = planned(queue, 5, rule, 5)
    assert [u for r in later for u in r][:10] == list(range(1, n, 2))


def test_traces_are_equal_if_they_hold_the_same_times(tmp_path):
    one, other, third = (tmp_path / f"{name}.csv" for name in "abc")
    one.write_text("client,first,last\n0,1,2\n1,0,4\n")
    other.write_text("1,0,4\n0,1,2\n")
    third.write_text("0,1,2\n1,0,5\n")
    assert Trace(one) == Trace(other)
    assert hash(Trace(one)) == hash(Trace(other))
    assert Trace(one).content() == Trace(other).content()
    assert Trace(one) != Trace(third)
    assert Trace(one).content() != Trace(third).content()


def test_who_can_be_reached_does_not_depend_on_who_else_is_asked(tmp_path):
    draw = np.random.default_rng(1)
    for case in range(4):
        rule = some_availability(draw, 20, tmp_path, case)
        together = rule.reachable(np.arange(20), 3, 5)
        assert [bool(rule.reachable(np.array([u]), 3, 5)[0]) for u in range(20)] == together.tolist()


def test_bad_availability_is_refused(tmp_path):
    for make in (lambda: Diurnal(0), lambda: Diurnal(awake=0.0), lambda: DropOut(1.0)):
        with pytest.raises(ValueError, match="pass"):
            make()
    file = tmp_path / "trace.csv"
    for text, message in (
        ("", "names no client"),
        ("0,1,x", "line 1"),
        ("client,first,last\n0,5,2", "line 2"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            Trace(file)
