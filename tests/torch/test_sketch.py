"""Sketches: what they keep, and what they do not hold on to."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from wellorder.torch import Exact, Sketch
from wellorder.torch._per_example.exact import ExactSource
from wellorder.torch._sketch import SketchSource


def closed(source):
    """The signals of the batch that is open."""
    return source.signals(source.records.close())


def rows_of(model, run, x):
    """The sketch of one pass."""
    source = SketchSource(Sketch(), model, 0)
    source.records.open(len(x))
    run(x).pow(2).mean().backward()
    rows = closed(source)
    source.remove()
    return rows


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 40), nn.Linear(40, 3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_changes_nothing(net, reentrant):
    x = torch.randn(6, 3, 8, 8, requires_grad=True)
    head, tail = net[:4], net[4:]
    plain = rows_of(net, net, x)
    kept = rows_of(net, lambda a: tail(checkpoint(head, a, use_reentrant=reentrant)), x)
    torch.testing.assert_close(kept, plain)


def test_inputs_are_not_held_for_the_gradient(net):
    """Inside a checkpoint nobody else holds a layer's input either."""
    seen = []
    watched = net[3].register_forward_pre_hook(lambda _, args: seen.append(weakref.ref(args[0])))
    source = SketchSource(Sketch(), net, 0)
    source.records.open(4)
    out = checkpoint(net, torch.randn(4, 3, 8, 8), use_reentrant=False)
    watched.remove()
    gc.collect()
    assert seen[0]() is None
    out.sum().backward()
    assert closed(source).shape == (4, 512)


def test_two_backward_passes_through_one_graph_add_up(net):
    x = torch.randn(5, 3, 8, 8)
    once = rows_of(net, net, x)
    source = SketchSource(Sketch(), net, 0)
    source.records.open(5)
    loss = net(x).pow(2).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(closed(source), 2 * once)


def test_bfloat16_autocast_is_a_rounding(net):
    x = torch.randn(5, 3, 8, 8)
    exact = rows_of(net, net, x)

    def low(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(a)

    assert float((rows_of(net, low, x).float() - exact).norm()) < 0.05 * float(exact.norm())


def test_rows_are_the_projected_gradients():
    """By hand: Σ_t (P e_t) ⊗ (Q a_t), times the batch, since the loss is a mean."""
    torch.manual_seed(0)
    layer = nn.Linear(30, 20, bias=False)
    source = SketchSource(Sketch(size=64, height=8, pool=False), layer, 0)
    x = torch.randn(4, 7, 30)
    source.records.open(4)
    out = layer(x)
    weight = torch.randn_like(out)
    (out * weight).sum().div(4).backward()
    shape = source._map(source.layers[0], pool=False)
    left, right = shape._outward(x)[0], shape._inward(x)[0][0]
    by_hand = torch.einsum("bto,po,bti,qi->bpq", weight, left, x, right).flatten(1)
    torch.testing.assert_close(closed(source), by_hand, rtol=1e-4, atol=1e-4)


def test_a_pooled_sequence_is_one_position():
    torch.manual_seed(0)
    layer = nn.Linear(30, 100)
    source = SketchSource(Sketch(size=64, height=8), layer, 0)
    x = torch.randn(4, 7, 30)
    source.records.open(4)
    out = layer(x)
    weight = torch.randn_like(out)
    (out * weight).sum().div(4).backward()
    shape = source._map(source.layers[0], pool=True)
    assert shape.place == (0, 32, 2)
    left, (right, constant) = shape._outward(x)[0], shape._inward(x)
    seen = x.mean(1) @ right[0].T + constant
    by_hand = torch.einsum("bo,po,bq->bpq", weight.sum(1), left, seen).flatten(1)
    torch.testing.assert_close(closed(source), by_hand, rtol=1e-4, atol=1e-4)


class TiedPair(nn.Module):
    """An embedding and an output layer with one table."""

    def __init__(self, words=40, width=12):
        super().__init__()
        self.tokens, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.tokens(ids)))


def test_a_table_that_two_layers_share_keeps_the_products_between_them():
    torch.manual_seed(0)
    model, ids = TiedPair(), torch.randint(0, 40, (4, 6))
    exact = ExactSource(Exact(mean=False), model)
    sources = [SketchSource(Sketch(mean=False, pool=False), model, seed) for seed in range(150)]
    for source in (exact, *sources):
        source.records.open(4)
    model(ids).pow(3).sum().backward()
    truth = closed(exact).gram()
    grams = torch.stack([rows @ rows.T for rows in map(closed, sources)])
    noise = grams.std(0) / 150**0.5
    assert bool(((grams.mean(0) - truth).abs() < 4.5 * noise + 1e-4 * truth.diagonal().max()).all())
    apart = grams.mean(0).diagonal() / truth.diagonal()
    assert bool((abs(apart - 1) < 0.25).all())


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(6, 20, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(6, 20, 5, stride=2, dilation=2, padding=1),
        nn.Conv1d(6, 40, 3, groups=2, padding="same"),
        nn.Conv3d(6, 20, (1, 3, 2)),
        nn.Conv2d(6, 20, 1, padding=2),
    ],
    ids=str,
)
def test_a_convolution_is_seen_through_one_tap(conv):
    """The gradient of that tap, projected, times the root of the number of taps."""
    torch.manual_seed(0)
    x = torch.randn(3, 6, *[11] * len(conv.kernel_size))
    source = SketchSource(Sketch(side=99, mean=False), conv, 0)
    source.records.open(3)
    conv(x).pow(2).sum().backward()
    rows = closed(source)
    shape = source._map(source.layers[0], pool=False)
    exact = ExactSource(Exact(mean=False), conv)
    exact.records.open(3)
    conv(x).pow(2).sum().backward()
    factor = closed(exact).factors["weight"]
    weight = factor.rows().view(3, conv.groups, -1, *conv.weight.shape[1:]).flatten(4)
    taps = weight.shape[4]
    left, right = shape._outward(x), shape._inward(x)[0]
    left = torch.eye(weight.shape[2]).expand(conv.groups, -1, -1) if left is None else left
    each = torch.einsum("bgoct,gpo,gqc->tbpq", weight, left, right).flatten(2) * taps**0.5
    assert min(float((one - rows).norm()) for one in each) < 1e-4 * float(rows.norm())


def test_float16_does_not_overflow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 36 * 36, 2)).half()
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
    x = (300 * torch.rand(2, 64, 38, 38)).half()
    rows = rows_of(model, lambda a: model(a).float(), x)
    assert bool(torch.isfinite(rows).all())
    double = nn.Sequential(nn.Conv2d(64, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 36 * 36, 2))
    double.load_state_dict(model.state_dict())
    wide = rows_of(double, double, x.float())
    assert float((rows - wide).norm()) < 0.05 * float(wide.norm())


def test_a_convolution_without_a_batch_and_an_empty_sequence_do_no_harm():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.words, self.head = nn.Conv2d(2, 5, 3), nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            grid = self.shared(torch.ones(2, 5, 5)).mean()
            return self.head(x) + grid + self.words(x.new_zeros(len(x), 0, 4)).sum((1, 2)).unsqueeze(1)

    model = Odd()
    source = SketchSource(Sketch(), model, 0, strict=False)
    source.records.open(5)
    model(torch.randn(5, 6)).pow(2).mean().backward()
    rows = closed(source)
    assert bool(torch.isfinite(rows).all())
    assert set(source.hooks.left_out) == {"shared"}


def test_the_coverage_names_what_is_not_sketched():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3))
    how = SketchSource(Sketch(), model, 0).coverage()
    assert how["0.weight"] == "3×2 numbers"
    assert how["0.bias"] == "not sketched"
    assert "with it" in how["2.bias"]
