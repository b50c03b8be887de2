"""Steps that are sketched side by side have the rows of steps sketched one by one, whatever a model does."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from wellorder.torch import Sketch, _sketch, ordered
from wellorder.torch._batch_record import BatchRecords
from wellorder.torch._side_by_side import STEPS, SideBySide
from wellorder.torch._sketch import SketchSource


class Net(nn.Module):
    """Convolutions with stride, groups and thinned positions, and a linear layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, groups=2, padding=1), nn.ReLU()
        )
        self.pool, self.twice, self.head = nn.AdaptiveAvgPool2d(2), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x):
        x = self.pool(self.convs(x)).flatten(1)
        return self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


def batches(sizes, shapes=((2, 16, 16),)):
    torch.manual_seed(1)
    for step, size in enumerate(sizes, 1):
        yield step, torch.randn(size, *shapes[step % len(shapes)]), torch.randint(3, (size,))


def rows(batch, sizes, *, shapes=((2, 16, 16),), backward=lambda loss, step: loss.backward(), ask=()):
    """Rows of every batch, with ``batch`` examples side by side (0: one by one), asked for after ``ask``."""
    torch.manual_seed(0)
    net, found = Net(), {}
    records = BatchRecords()
    source = SketchSource(Sketch(), net, 0, records=records, batch=batch)
    for step, x, y in batches(sizes, shapes):
        record = records.open(len(x), (x, y), step=step)
        backward(functional.cross_entropy(net(x), y), step)
        records.close(record)
        for done, made in source.settled([record], now=step in ask or step == len(sizes)):
            found[done.step] = None if made is None else made.clone()
    return [found[step] for step in sorted(found)]


def twice(loss, step):
    loss.backward(retain_graph=step % 3 == 0)
    if step % 3 == 0:
        loss.backward()


def sometimes(loss, step):
    if step % 4 != 1:
        loss.backward()


@pytest.fixture(params=["inputs", "projections"])
def side_by_side(request, monkeypatch):
    """What lies side by side: what small layers are given, or what is made of it, as with large ones."""
    waited = []
    if request.param == "projections":
        stacked = _sketch.stacked

        def noted(*given):
            waited.append(stacked(*given))
            return waited[-1]

        monkeypatch.setattr(SideBySide, "keep", lambda *_: None)
        monkeypatch.setattr(_sketch, "stacked", noted)
    yield
    assert any(waited) == (request.param == "projections")


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ([6] * 19, {}),
        ([6] * 10 + [4], {}),
        ([6] * 9 + [1], {"backward": twice}),
        ([6] * 17, {"backward": sometimes}),
        ([6] * 20, {"shapes": ((2, 16, 16), (2, 14, 18), (2, 31, 31))}),
    ],
    ids=["plain", "short last batch", "two backward passes", "steps without gradient", "several shapes"],
)
def test_rows_are_those_of_steps_one_by_one(sizes, how):
    together, alone = rows(6, sizes, **how), rows(0, sizes, **how)
    assert len(together) == len(alone) == len(sizes)
    for ours, own in zip(together, alone, strict=True):
        assert (ours is None) == (own is None)
        if own is not None:
            torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("ask", [(1,), (3, 4, 11), tuple(range(20))])
@pytest.mark.parametrize("backward", [lambda loss, _: loss.backward(), twice], ids=["once", "twice"])
def test_asking_in_between_changes_no_bit(ask, backward):
    sizes = [6] * 19 + [5]
    how = {"backward": backward, "shapes": ((2, 16, 16), (2, 14, 18))}
    for ours, own in zip(rows(6, sizes, ask=ask, **how), rows(6, sizes, **how), strict=True):
        assert torch.equal(ours, own)


@pytest.mark.usefixtures("side_by_side")
def test_a_batch_that_waits_for_its_gradient_keeps_its_place():
    """Losses of more batches than lie side by side are summed before one backward."""
    found = []
    for batch in (0, 6):
        torch.manual_seed(0)
        net, records = Net(), BatchRecords()
        source = SketchSource(Sketch(), net, 0, records=records, batch=batch)
        losses, opened = [], []
        for step, x, y in batches([6] * (STEPS + 3)):
            opened.append(records.open(6, (x, y), step=step))
            losses.append(functional.cross_entropy(net(x), y))
        torch.stack(losses).sum().backward()
        for record in opened:
            records.close(record)
        made = source.settled(opened, now=True)
        found.append(torch.stack([rows.clone() for _, rows in made]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("together", [2, 3, 9])
def test_losses_that_are_summed_before_one_backward_leave_each_step_its_own_row(together):
    """A step that finds its place taken is projected at once; who has the place later keeps its gradient."""
    data = TensorDataset(torch.randn(240, 6), torch.randint(3, (240,)))
    found = []
    for count in (1, together):
        torch.manual_seed(0)
        model, seen = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), {}
        loader = ordered(DataLoader(data, 4), model, signals=Sketch())
        take, losses = loader._observer.take, []

        def note(step, units, signals, seen=seen, take=take):
            seen.update(zip(units.tolist(), signals.clone(), strict=True))
            take(step, units, signals)

        loader._observer.take = note
        for step, (x, y) in enumerate(loader, 1):
            losses.append(functional.cross_entropy(model(x), y))
            if step % count == 0 or step == len(loader):
                torch.stack(losses).sum().backward()
                losses = []
        found.append(torch.stack([seen[unit] for unit in range(240)]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_an_input_that_is_not_finite_spoils_no_later_step():
    """In a layer that few steps use, what lies there of an earlier step counts nothing."""
    data = TensorDataset(torch.randn(80, 6), torch.randint(3, (80,)))

    class Now(nn.Module):
        def __init__(self):
            super().__init__()
            self.seldom, self.head, self.step = nn.Linear(6, 6), nn.Linear(6, 3), 0

        def forward(self, x):
            self.step += 1
            if self.step in (3, 9):
                x = self.seldom(x + (torch.inf if self.step == 3 else 0))
            return self.head(x)

    model = Now()
    loader = ordered(DataLoader(data, 4), model, signals=Sketch())
    for x, y in loader:
        functional.cross_entropy(model(x), y).backward()
    assert (loader.report().observed, loader.report().not_finite) == (76, 4)


def test_small_layers_do_lie_side_by_side_and_large_ones_do_not():
    small, large = nn.Linear(8, 8), nn.Linear(8, 3000)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    model = nn.Sequential(small, large, nn.Flatten(), nn.Linear(3000, 1))
    loader = ordered(DataLoader(data, 32), model)
    for x, y in loader:
        functional.mse_loss(model(x), y).backward()
    kinds = {layer.name: len(reader.side_by_side.kinds) for layer, reader in loader._source._readers.items()}
    assert kinds == {"0": 1, "1": 0, "3": 0}


def test_training_is_resumed_to_the_bit_at_any_step(tmp_path):
    """A run that is saved and begun anew at every step has the rows and orders of one that is left alone."""
    data = TensorDataset(torch.randn(70, 2, 16, 16), torch.randint(3, (70,)))

    def made():
        torch.manual_seed(0)
        net = Net()
        return (
            net,
            torch.optim.SGD(net.parameters(), lr=0.1),
            ordered(DataLoader(data, 6), net, observe="always"),
        )

    def step(net, optimizer, x, y):
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    net, optimizer, alone = made()
    for _ in range(2):
        for x, y in alone:
            step(net, optimizer, x, y)
    saved = None
    for _ in range(2 * len(alone)):
        net, optimizer, loader = made()
        if saved is not None:
            net.load_state_dict(saved[0])
            loader.load_state_dict(saved[1])
        rest = iter(loader)
        x, y = next(rest)
        step(net, optimizer, x, y)
        saved = {k: v.clone() for k, v in net.state_dict().items()}, loader.state_dict()
    loader.load_state_dict(saved[1])
    assert loader.epoch == alone.epoch == 2
    np.testing.assert_array_equal(loader._observer.state.rows, alone._observer.state.rows)
    np.testing.assert_array_equal(loader.order, alone.order)
