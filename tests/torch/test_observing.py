"""Rows that wait: in the order of their visits, whatever came when."""

import numpy as np
import pytest
import torch

from wellorder import Herding, PairGraB
from wellorder.torch._observing import ROOM, Observer, PendingRows


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
