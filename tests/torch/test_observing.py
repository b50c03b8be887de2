"""Rows that wait: in the order of their visits, whatever came when."""

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from wellorder import Herding, PairGraB, Steering
from wellorder.torch import _observing, ordered
from wellorder.torch._observing import ROOM, Observer, PendingRows
from wellorder.torch._schedule import StateInTheMaking


@pytest.mark.parametrize("counts", [[4, 4, 4], [4, 4, 2], [4, 2, 4], [5], [1, 1]])
def test_rows_come_back_with_their_sums(counts):
    pending, rows, at = PendingRows(20), torch.randn(sum(counts), 3), 0
    for step, count in enumerate(counts):
        pending.add(step, np.arange(at, at + count), rows[at : at + count])
        at += count
    taken = pending.take()
    assert torch.equal(taken.rows, rows)
    assert taken.units.tolist() == list(range(at))
    sums = torch.stack([part.sum(0) for part in rows.split(counts)])
    np.testing.assert_allclose(taken.totals(), sums.numpy(), rtol=1e-5, atol=1e-6)
    assert pending.take() is None


@pytest.mark.parametrize("policy", [Herding(), PairGraB()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("asked", [False, True])
def test_a_late_batch_finds_its_place(policy, asked):
    """A gradient that comes late counts where its batch was visited; a question in between moves nothing."""
    on_time, late = (Observer(policy, policy.init(12)) for _ in range(2))
    order, rows = on_time.state.order, torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    for observer, steps in ((on_time, (0, 1, 2)), (late, (1, 2, 0))):
        for step in steps:
            units = order[4 * step : 4 * step + 4]
            observer.take(step, units, rows[units.tolist()])
            if asked:
                observer.counts(), observer.error_so_far(), observer.memory()
        observer.advance()
    assert (on_time.state.order == late.state.order).all()
    assert on_time.errors == late.errors
    assert late.observed == 12


def test_a_batch_larger_than_all_before_has_room():
    pending = PendingRows(3 * ROOM)
    assert not pending.add(0, np.arange(2), torch.zeros(2, 8))
    assert pending.add(1, np.arange(2, ROOM // 8 + 9), torch.ones(ROOM // 8 + 7, 8))
    assert float(pending.take().rows.sum()) == ROOM + 56


# ---- rows that a policy is shown in a thread beside the training ----


@pytest.fixture
def beside(monkeypatch):
    """Rows on the host go the way of those on a GPU, two batches of four rows of three numbers at a time."""
    monkeypatch.setattr(_observing, "BESIDE", {"cpu"})
    monkeypatch.setattr(_observing, "ROOM_IF_KEPT", 24)


def seen(policy, rows, steps, *, ask=False):
    """An observer that was shown an epoch of batches of four, whose gradients came in this order."""
    observer = Observer(policy, policy.init(len(rows), seed=1))
    order = observer.state.order
    for step in sorted(steps):
        observer.give_out(step)
    for step in steps:
        units = order[4 * step : 4 * step + 4]
        observer.take(step, units, rows[units.tolist()])
        if ask:
            assert sum(observer.counts().values()) == 4 * (steps.index(step) + 1)
            observer.error_so_far(), observer.memory()
    observer.advance()
    return observer


@pytest.mark.parametrize("policy", [Steering(), Herding(3)], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("steps", [(0, 1, 2, 3, 4), (1, 2, 3, 4, 0), (0, 2, 3, 1, 4)])
@pytest.mark.parametrize("ask", [False, True])
def test_rows_that_are_shown_beside_the_training_make_the_same_state(policy, steps, ask, beside, monkeypatch):
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    rows[7, 1] = torch.nan
    other = seen(policy, rows, steps, ask=ask)
    monkeypatch.setattr(_observing, "BESIDE", set())
    plain = seen(policy, rows, (0, 1, 2, 3, 4))
    for name in ("order", "rows", "known"):
        assert np.array_equal(getattr(other.state, name), getattr(plain.state, name))
    assert other.errors == plain.errors
    assert other.counts() == plain.counts() == {"observed": 19, "unobserved": 0, "not_finite": 1}


@dataclass(frozen=True)
class Waiting(Steering):
    """Steering that is shown nothing before the gate is open, and says in which threads it was."""

    def observe(self, state, units, signals):
        GATE.wait(60)
        THREADS.append(threading.current_thread())
        if len(units) == 7:
            raise ArithmeticError("seven are too few")
        return super().observe(state, units, signals)


GATE, THREADS = threading.Event(), []


def test_steps_go_on_while_a_policy_is_shown_rows_and_the_end_waits(beside):
    GATE.clear(), THREADS.clear()
    observer = Observer(Waiting(), Waiting().init(20))
    order = observer.state.order
    for step in range(5):  # nothing waits in the body
        observer.take(step, order[4 * step : 4 * step + 4], torch.randn(4, 3))
    assert not THREADS
    threading.Timer(0.05, GATE.set).start()
    observer.flush()
    assert len(THREADS) == 3
    assert threading.main_thread() not in THREADS
    assert (observer.observed, int(observer.state.known.sum())) == (20, 20)


def test_an_error_beside_the_training_is_raised_at_the_end(beside):
    GATE.set()
    observer = Observer(Waiting(), Waiting().init(12))
    order = observer.state.order
    for step, units in enumerate((order[:7], order[7:])):
        observer.take(step, units, torch.randn(len(units), 3))
    with pytest.raises(ArithmeticError, match="too few"):
        observer.flush()


def test_an_interrupt_while_the_state_is_in_the_making_loses_nothing():
    class Interrupted:
        epoch, calls = 0, 0

        def get(self):
            self.calls += 1
            if self.calls == 1:
                raise KeyboardInterrupt
            return "made"

    observer = Observer(Steering(), Steering().init(4))
    observer.coming = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        _ = observer.state
    assert observer.state == "made"


def test_workers_are_forked_when_no_thread_is_underway(monkeypatch):
    class Slow(StateInTheMaking):
        def _make(self, state):
            time.sleep(0.3)
            return state

    slow, alive, begin = Slow(None, 0, "slow"), [], DataLoader._get_iterator
    monkeypatch.setattr(
        DataLoader, "_get_iterator", lambda self: alive.append(slow._thread.is_alive()) or begin(self)
    )
    loader = ordered(DataLoader(TensorDataset(torch.arange(8.0)), 4, num_workers=1), rows=np.eye(8))
    assert sorted(x for (batch,) in loader for x in batch.tolist()) == list(range(8))
    assert alive == [False]
