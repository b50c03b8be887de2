"""Whole models: the orders that hooks give are those of the algorithm on explicit per-example gradients."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder import GraB, PairGraB
from wellorder._datasets.networks import cnn
from wellorder.torch import ordered


def gradient(model, x, y):
    model.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    return np.concatenate([p.grad.flatten().numpy() for p in model.parameters()])


def placed(order, signs):
    """Plus first, unsigned in the middle, minus reversed."""
    return (
        [u for u in order if signs[u] > 0]
        + [u for u in order if signs[u] == 0]
        + [u for u in reversed(order) if signs[u] < 0]
    )


def naive(model, data, order, epochs, batch, pairs, lr=0.1):
    """Train with one backward per example; balance them one by one, in lists."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    n, stale, orders = len(order), 0.0, []
    order = list(order)
    for _ in range(epochs):
        orders.append(list(order))
        signs, total, summed, waiting = dict.fromkeys(order, 0), 0.0, 0.0, None
        for at in range(0, n, batch):
            units = order[at : at + batch]
            rows = [gradient(model, data[u][0][None], data[u][1][None]) for u in units]
            for unit, g in zip(units, rows, strict=True):
                if not pairs:
                    signs[unit] = 1 if np.dot(total + 0 * g, g - stale) < 0 else -1
                    total = total + signs[unit] * (g - stale)
                    summed = summed + g
                elif waiting is None:
                    waiting = (unit, g)
                else:
                    first, h = waiting
                    signs[first] = 1 if np.dot(total + 0 * g, h - g) < 0 else -1
                    signs[unit] = -signs[first]
                    total = total + signs[first] * (h - g)
                    waiting = None
            optimizer.zero_grad()
            flat, start = sum(rows) / len(rows), 0
            for p in model.parameters():
                p.grad = torch.from_numpy(flat[start : start + p.numel()].reshape(p.shape))
                start += p.numel()
            optimizer.step()
        stale = summed / n
        order = placed(order, signs)
    return [*orders, order]


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=["GraB", "PairGraB"])
def test_three_epochs_of_exact_signals_equal_explicit_gradients(
    kind, policy, make_model, make_data, make_loader, train
):
    model = make_model(kind)
    loader = ordered(make_loader(kind, n=29, batch=6), model, policy, seed=3, signals="exact")
    first = loader.order.copy()
    orders = [*train(loader, model, epochs=3), loader.order]
    expected = naive(make_model(kind), make_data(kind, 29), first, 3, 6, isinstance(policy, PairGraB))
    np.testing.assert_array_equal(orders, expected)
    assert len({tuple(o) for o in orders}) == 4


@pytest.mark.parametrize("policy", [GraB(), PairGraB()], ids=["GraB", "PairGraB"])
def test_three_epochs_of_a_large_cnn_equal_explicit_gradients(policy, train):
    def model():
        torch.manual_seed(0)
        return cnn().double()

    gen = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(11, 3, 32, 32, generator=gen).double(), torch.arange(11) % 10)
    ours = model()
    given = DataLoader(data, batch_size=4, shuffle=True)
    loader = ordered(given, ours, policy, seed=3, signals="exact")
    first = loader.order.copy()
    orders = [*train(loader, ours, epochs=3), loader.order]
    np.testing.assert_array_equal(orders, naive(model(), data, first, 3, 4, isinstance(policy, PairGraB)))
    assert len({tuple(o) for o in orders}) == 4


class Raw(nn.Module):
    """Parameters of its own, used twice."""

    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.ones(144)), nn.Parameter(torch.randn(144, 3) / 4)

    def forward(self, x):
        return torch.tanh(x.flatten(1) * self.scale) @ self.out + x.flatten(1)[:, :3] * self.scale[:3]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(12, 2, batch_first=True), nn.Linear(12, 3)

    def forward(self, x):
        x = x.squeeze(1)
        return self.head(self.mix(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("make", [Raw, Attention])
def test_what_is_run_again_is_run_with_the_weights_of_its_step(make, make_data, make_loader, train):
    def model():
        torch.manual_seed(0)
        return make().double()

    ours = model()
    loader = ordered(make_loader(n=29, batch=6), ours, PairGraB(), seed=3, signals="exact")
    first = loader.order.copy()
    orders = [*train(loader, ours, epochs=3, lr=0.5), loader.order]
    np.testing.assert_array_equal(orders, naive(model(), make_data(n=29), first, 3, 6, True, lr=0.5))


def test_float32_gives_the_same_first_order(kind, make_model, make_loader, train):
    orders = []
    for dtype in (torch.float32, torch.float64):
        model = make_model(kind, dtype=dtype)
        loader = ordered(make_loader(kind, n=24, batch=6, dtype=dtype), model, PairGraB(), signals="exact")
        train(loader, model, lr=0.0)
        orders.append(loader.order)
    np.testing.assert_array_equal(*orders)
