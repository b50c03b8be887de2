"""Signals belong to the batch they were made from, whenever backward comes; copies are silent."""

import copy
import gc
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder import Herding, PairGraB
from wellorder.torch import Sketch, ordered


def data(n=24):
    gen = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, 6, generator=gen), torch.randint(0, 3, (n,), generator=gen))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def each(loader, model):
    for batch in loader:
        loss(model, batch).backward()


def stepping(loader, model, optimizer):
    for batch in loader:
        loss(model, batch).backward()
        optimizer.step()


def summed(loader, model):
    total = 0.0
    for step, batch in enumerate(loader):
        total = total + loss(model, batch)
        if step % 2:
            total.backward()
            total = 0.0


def one_ahead(loader, model):
    batches = iter(loader)
    now = next(batches)
    for then in batches:
        loss(model, now).backward()
        now = then


def saved_before_backward(loader, model):
    for batch in loader:
        loader.state_dict()
        loss(model, batch).backward()


SIGNALS = [(Herding(), "sketch"), (PairGraB(), "exact")]


@pytest.mark.parametrize("style", [summed, saved_before_backward])
@pytest.mark.parametrize(("policy", "signals"), SIGNALS, ids=["sketch", "exact"])
def test_each_batch_gets_its_own_gradient_whenever_backward_comes(policy, signals, style):
    orders = []
    for loop in (each, style):
        model = mlp()
        loader = ordered(DataLoader(data(), 4), model, policy, signals=signals)
        loop(loader, model)
        assert (loader.report().observed, loader.report().unobserved) == (24, 0)
        orders.append(loader.order)
    np.testing.assert_array_equal(*orders)


@pytest.mark.parametrize("copied", [False, True])
def test_batches_drawn_ahead_are_known_by_the_models_input(copied):
    rows = []
    for loop in (each, one_ahead):
        model = mlp()
        inputs = model if not copied else lambda x, model=model: model(x.clone())
        loader = ordered(DataLoader(data(), 4), model, Herding(), signals="sketch")
        seen = {}
        take = loader._observer.take

        def note(step, units, signals, seen=seen, take=take):
            if signals is not None:
                seen.update(zip(units.tolist(), signals.clone(), strict=True))
            take(step, units, signals)

        loader._observer.take = note
        loop(loader, inputs)
        rows.append(seen)
    assert len(rows[1]) == 20
    for unit, row in rows[1].items():
        torch.testing.assert_close(row, rows[0][unit])


def test_an_epochs_last_batch_counts_as_not_observed_if_the_next_is_drawn_before_it_is_used():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, observe="always", signals="sketch")
    for epoch in range(1, 4):
        batches = iter(loader)
        now = next(batches)
        for then in batches:
            loss(model, now).backward()
            now = then
        loss(model, now).backward()
        assert (loader.report().observed, loader.report().unobserved) == (20 * epoch, 4 * epoch)


def test_who_draws_all_batches_before_training_is_told_so():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, signals="sketch")
    batches = list(loader)
    with pytest.warns(UserWarning, match=r"all drawn before, as list\(loader\) does"):
        loss(model, batches[0]).backward()


@pytest.mark.parametrize("signals", ["auto", "sketch"])
@pytest.mark.parametrize("last", [0, 1, 3])
def test_two_views_of_each_example_are_known_in_a_short_last_batch_too(last, signals):
    draw = torch.Generator().manual_seed(1)
    model, n = mlp(), 24 + last
    loader = ordered(DataLoader(data(n), 8), model, signals=signals)
    for x, y in loader:
        views = torch.cat([x, x + 0.1 * torch.randn(x.shape, generator=draw)])
        functional.cross_entropy(model(views), torch.cat([y, y])).backward()
    assert (loader.report().observed, loader.report().unobserved) == (n, 0)


def test_batches_drawn_ahead_that_cannot_be_known_are_warned_of():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, signals="sketch")
    with pytest.warns(UserWarning, match="draw one batch at a time"):
        one_ahead(loader, lambda x: model(2 * x))


def test_a_gradient_that_comes_too_late_is_dropped_with_a_warning():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, signals="sketch")
    batches = iter(loader)
    first = loss(model, next(batches))
    first.backward(retain_graph=True)
    loss(model, next(batches)).backward()
    heard = list(loader._records.open_records[-1].parts)
    with pytest.warns(UserWarning, match="dropped"):
        first.backward()
    assert loader._records.open_records[-1].parts == heard


def test_a_model_with_hooks_can_be_saved_and_its_copies_do_not_listen():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, signals="sketch")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        each(loader, other)
    assert loader.report().observed == 0


def test_hooks_go_with_their_loader():
    model = mlp()
    for _ in range(3):
        loader = ordered(DataLoader(data(), 4), model, Herding(), signals=Sketch())
        each(loader, model)
        del loader
        gc.collect()
    assert not model[0]._forward_hooks
    assert not model._forward_pre_hooks


def test_a_loop_that_was_left_hears_no_other_passes():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, signals="sketch")
    for batch in loader:
        loss(model, batch).backward()
        break
    heard = list(loader._records.open_records[-1].parts)
    model(torch.randn(4, 6)).sum().backward()
    model(torch.randn(7, 6)).sum().backward()
    assert loader._records.open_records[-1].parts == heard
    each(loader, model)
    assert loader.report().observed == 4 + 24


def test_ignore_inside_ignore_stays_silent():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, signals="sketch")
    for batch in loader:
        with loader.ignore():
            with loader.ignore():
                pass
            loss(model, batch).backward()
    assert loader.report().observed == 0


class Bypass(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.h = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return functional.linear(torch.relu(functional.linear(x, self.a.weight)), self.h.weight)


@pytest.mark.parametrize(("policy", "signals"), SIGNALS, ids=["sketch", "exact"])
def test_gradients_that_no_layer_hears_of_are_refused_with_the_cure(policy, signals):
    model = Bypass()
    loader = ordered(DataLoader(data(), 4), model, policy, signals=signals)
    with pytest.raises(ValueError, match="no layer was heard"):
        each(loader, model)


@pytest.mark.parametrize(("policy", "signals"), SIGNALS, ids=["sketch", "exact"])
def test_an_epoch_in_which_another_model_is_trained_is_warned_of(policy, signals):
    other, loader = mlp(), ordered(DataLoader(data(), 4), mlp(), policy, signals=signals)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="no example of it was observed"):
        stepping(loader, other, optimizer)
    assert set(loader.report().coverage.values()) == {"never heard"}
