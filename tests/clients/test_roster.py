"""The roster's books: names are numbered once, turns follow the queue, failures are counted."""

from hypothesis import given
from hypothesis import strategies as st

from wellorder._clients.roster import Roster, give_up, join, natural, settle, turn


def test_names_are_numbered_once_in_natural_order():
    roster = join(Roster(), ["10", "9", "node-2", "node-10"])
    assert roster.names == ("9", "10", "node-2", "node-10")
    assert join(roster, ["8", "9"]).names == ("9", "10", "node-2", "node-10", "8")
    assert join(roster, []) is roster


@given(st.lists(st.text(max_size=6), unique=True))
def test_any_names_can_be_sorted(names):
    assert sorted(join(Roster(), names).names, key=natural) == list(join(Roster(), names).names)


@given(st.permutations(range(8)), st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_a_turn_is_the_first_of_the_queue_that_are_present(queue, size, present):
    chosen = turn(Roster(queue=tuple(queue)), size, present)
    assert len(chosen) == min(size, len(present))
    assert [c for c in queue if c in present][: len(chosen)] == list(chosen)


def test_a_client_that_keeps_failing_is_missed_after_its_attempts():
    roster = Roster(queue=(0, 1, 2))
    roster = settle(roster, [0], [1], attempts=2)
    assert (roster.queue, roster.visited, roster.missed) == ((2, 1), (0,), ())
    roster = settle(roster, [2], [1], attempts=2)
    assert (roster.queue, roster.visited, roster.missed) == ((), (0, 2), (1,))


def test_a_client_that_was_missed_before_has_one_attempt():
    roster = settle(Roster(queue=(0, 1), absent=(1,)), [0], [1], attempts=5)
    assert roster.missed == (1,)


def test_giving_up_misses_the_rest():
    roster = give_up(Roster(queue=(3, 1), visited=(0,), missed=(2,)))
    assert (roster.queue, roster.visited, roster.missed, roster.size) == ((), (0,), (2, 3, 1), 4)
