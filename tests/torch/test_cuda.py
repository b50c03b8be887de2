"""On CUDA: rows stay on the device, and orders are those of the host."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from wellorder import Herding, PairGraB, Steering
from wellorder.experiments._tasks.network_data import Gather, Places
from wellorder.torch import _observing, ordered
from wellorder.torch._observing import Observer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here")


def orders_of(device, policy, signals):
    """Orders and errors of four epochs of a small network, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)).double().to(device)
    x, y = torch.randn(60, 20).double().to(device), torch.randint(0, 3, (60,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = ordered(DataLoader(Places(60), 8, collate_fn=Gather(x, y)), model, policy, signals=signals)
    orders = []
    for _ in range(4):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
        orders.append(loader.order)
    return np.stack(orders), np.array(loader.report().order_error), loader.report().observed


ROWS_KEPT = [(Herding(), "sketch"), (Steering(), "sketch"), (Herding(), "batch")]


@pytest.mark.parametrize(("policy", "signals"), [(PairGraB(), "exact"), (PairGraB(), "sketch"), *ROWS_KEPT])
def test_orders_are_those_of_the_host(policy, signals):
    host, device = orders_of("cpu", policy, signals), orders_of("cuda", policy, signals)
    assert (host[0] == device[0]).all()
    np.testing.assert_allclose(host[1], device[1], rtol=1e-4)
    assert host[2] == device[2]


@pytest.mark.parametrize("policy", [Steering(), Herding()], ids=lambda p: type(p).__name__)
def test_rows_that_are_shown_beside_the_training_change_nothing(policy, monkeypatch):
    """Two batches at a time, through pinned memory, against all of an epoch's rows at its end."""
    monkeypatch.setattr(_observing, "ROOM_IF_KEPT", 16 * 512)
    beside = orders_of("cuda", policy, "sketch")
    monkeypatch.setattr(_observing, "BESIDE", set())
    at_the_end = orders_of("cuda", policy, "sketch")
    assert (beside[0] == at_the_end[0]).all()
    np.testing.assert_allclose(beside[1], at_the_end[1], rtol=1e-6)
    assert beside[2] == at_the_end[2] == 60 * 3


def test_a_row_that_is_not_finite_stays_out_on_the_device_too():
    rows = torch.randn(12, 4, device="cuda")
    rows[5, 2] = torch.nan
    observer = Observer(Herding(), Herding().init(12))
    order = observer.state.order
    for step, at in enumerate((0, 6)):
        observer.take(step, order[at : at + 6], rows[at : at + 6])
    observer.advance()
    assert (observer.observed, observer.not_finite) == (11, 1)
    assert sorted(observer.state.order) == list(range(12))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch calls it a prototype feature
def test_nothing_waits_for_the_device_in_a_step():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).cuda()
    x, y = torch.randn(64, 3, 8, 8).cuda(), torch.randint(0, 3, (64,)).cuda()
    loader = ordered(DataLoader(Places(64), 16, collate_fn=Gather(x, y)), model)
    batches = iter(loader)
    for _ in range(2):
        a, b = next(batches)
        nn.functional.cross_entropy(model(a), b).backward()
    a, b = next(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        nn.functional.cross_entropy(model(a), b).backward()
        loader._settle()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loader.report().observed == 48
