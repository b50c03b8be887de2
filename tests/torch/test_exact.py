"""Exact signals equal explicit per-example gradients, layer by layer and model by model."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from wellorder.torch._per_example.convolution import Convolution
from wellorder.torch._per_example.exact import Exact, ExactSource
from wellorder.torch._per_example.factors import Lookup, Outer
from wellorder.torch._per_example.signals import ExactSignals, stays_factored
from wellorder.torch._per_example.uses import SeveralUses

EXAMPLES = settings(max_examples=15, deadline=None)


def closed(source):
    """The signals of the batch that is open."""
    return source.signals(source.records.close())


def explicit(model, x, loss):
    """One backward pass per example: the definition."""
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        loss(model(x[i : i + 1]), i).backward()
        rows.append(torch.cat([_flat(p) for p in model.parameters() if p.requires_grad]))
    model.zero_grad()
    return torch.stack(rows)


def _flat(p):
    return (torch.zeros_like(p) if p.grad is None else p.grad.clone()).flatten()


def agree(model, x, passes=1):
    """Gram, dot and combine of the hooks' signals against those of explicit rows."""
    model = model.double()
    targets = [torch.randn_like(model(x)) for _ in range(passes)]
    rows = sum(explicit(model, x, lambda out, i, t=t: (out * t[i : i + 1]).sum() / 2) for t in targets)
    source = ExactSource(Exact(mean=False), model)
    source.records.open(len(x))
    for t in targets:
        ((model(x) * t).sum() / 2).backward()
    signals = closed(source)
    source.remove()
    rng = np.random.default_rng(0)
    vector, weights = torch.from_numpy(rng.normal(size=rows.shape[1])), rng.normal(size=len(x))
    scale = float(rows.abs().max()) + 1e-30
    for ours, theirs, size in [
        (signals.gram(), rows @ rows.T, scale**2 * rows.shape[1]),
        (signals.dot(vector), rows @ vector, scale * rows.shape[1]),
        (signals.combine(weights), torch.from_numpy(weights) @ rows, scale * len(x)),
    ]:
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10 * max(1.0, size))
    even = len(x) // 2 * 2
    if even:
        pairs = signals.take(np.arange(even)).differences([])
        apart = rows[0:even:2] - rows[1:even:2]
        torch.testing.assert_close(pairs.gram(), apart @ apart.T, rtol=1e-10, atol=1e-9 * max(1.0, scale**2))
        torch.testing.assert_close(pairs.dot(vector), apart @ vector, rtol=1e-10, atol=1e-9 * max(1.0, scale))
        halves = weights[: even // 2]
        torch.testing.assert_close(
            pairs.combine(halves), torch.from_numpy(halves) @ apart, atol=1e-9, rtol=1e-9
        )


@EXAMPLES
@given(b=st.integers(1, 5), lead=st.lists(st.integers(1, 4), max_size=2), d=st.integers(1, 6),
       o=st.integers(1, 5), bias=st.booleans(),
       seed=st.integers(0, 99))  # fmt: skip
def test_linear_with_any_leading_dimensions(b, lead, d, o, bias, seed):
    torch.manual_seed(seed)
    agree(nn.Linear(d, o, bias=bias), torch.randn(b, *lead, d, dtype=torch.float64))


@EXAMPLES
@given(dims=st.integers(1, 3), b=st.integers(1, 4), groups=st.sampled_from([1, 2]), c=st.integers(1, 2),
       o=st.integers(1, 3), kernel=st.integers(1, 3), stride=st.integers(1, 2), padding=st.integers(0, 2),
       dilation=st.integers(1, 2), mode=st.sampled_from(["zeros", "circular", "reflect"]),
       seed=st.integers(0, 99))  # fmt: skip
def test_convolutions_of_one_to_three_dimensions(
    dims, b, groups, c, o, kernel, stride, padding, dilation, mode, seed
):
    torch.manual_seed(seed)
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1]
    module = conv(c * groups, o * groups, kernel, stride, padding, dilation, groups, padding_mode=mode)
    agree(module, torch.randn(b, c * groups, *[6] * dims, dtype=torch.float64))


def test_convolution_with_padding_by_name_and_uneven_kernel():
    agree(nn.Conv2d(2, 3, (1, 3), dilation=2, padding="same"), torch.randn(3, 2, 5, 6, dtype=torch.float64))


@EXAMPLES
@given(b=st.integers(1, 5), t=st.integers(1, 6), v=st.integers(1, 8), d=st.integers(1, 5),
       seed=st.integers(0, 99), padding=st.booleans())  # fmt: skip
@example(b=4, t=5, v=3, d=2, seed=0, padding=True)  # with padding among the tokens, whatever else is drawn
def test_embedding(b, t, v, d, seed, padding):
    torch.manual_seed(seed)
    agree(nn.Embedding(v, d, padding_idx=0 if padding else None), torch.randint(0, v, (b, t)))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LayerNorm(5), (4, 5)),
        (nn.LayerNorm((3, 5)), (4, 2, 3, 5)),
        (nn.LayerNorm(5, bias=False), (4, 3, 5)),
        (nn.RMSNorm(5), (4, 3, 5)),
        (nn.GroupNorm(2, 4), (3, 4, 5, 5)),
        (nn.GroupNorm(2, 4), (3, 4)),
    ],
    ids=str,
)
def test_norms(module, shape):
    for p in module.parameters():
        nn.init.normal_(p)
    agree(module, torch.randn(shape, dtype=torch.float64))


class Twice(nn.Module):
    """One layer called twice, and its weight tied to a third."""

    def __init__(self, d=4):
        super().__init__()
        self.one, self.two = nn.Linear(d, d), nn.Linear(d, d, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(torch.tanh(self.one(torch.tanh(self.one(x)))))


class Scaled(nn.Module):
    """A raw parameter, and a submodule beside it."""

    def __init__(self):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.randn(3)), nn.Linear(3, 3)

    def forward(self, x):
        return torch.tanh(self.inner(x) * self.scale)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class TiedLanguageModel(nn.Module):
    def __init__(self, v=7, d=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(v, d), nn.Linear(d, v, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.embed(ids)))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Twice(), (4, 4)),
        (Twice(), (4, 3, 4)),
        (Scaled(), (3, 3)),
        (SelfAttention(), (3, 3, 4)),
        (Recurrent(), (3, 4, 3)),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), (4, 3)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (4, 3)),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else str(v),
)
@pytest.mark.parametrize("passes", [1, 2])
def test_shared_raw_and_fused_parameters(module, shape, passes):
    agree(module, torch.randn(shape, dtype=torch.float64), passes)


def test_an_embedding_tied_to_the_output_layer():
    agree(TiedLanguageModel(), torch.randint(0, 7, (3, 5)), passes=2)


def test_a_conv_called_twice():
    conv = nn.Conv2d(2, 2, 3, padding=1)
    agree(nn.Sequential(conv, nn.Tanh(), conv), torch.randn(3, 2, 5, 5, dtype=torch.float64))


def test_frozen_parameters_have_no_place_in_the_signal():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2), nn.LayerNorm(2))
    model[0].weight.requires_grad = False
    model[1].bias.requires_grad = False
    model[2].requires_grad_(False)
    agree(model, torch.randn(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_adds_nothing(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            if not torch.is_grad_enabled():
                return self.b(torch.tanh(self.a(x)))
            hidden = torch.utils.checkpoint.checkpoint(
                lambda v: torch.tanh(self.a(v)), x, use_reentrant=reentrant
            )
            return self.b(hidden)

    agree(Checkpointed(), torch.randn(4, 3, dtype=torch.float64, requires_grad=reentrant))


def test_batch_norm_signals_are_the_shares_of_the_batchs_gradient():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    source = ExactSource(Exact(mean=False), model)
    source.records.open(6)
    model(x).square().sum().backward()
    total = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(closed(source).combine(np.ones(6)), total)


def test_dropout_is_the_one_that_was_drawn():
    model = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    source = ExactSource(Exact(mean=False), model)
    source.records.open(5)
    model(x).square().sum().backward()
    total = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(closed(source).combine(np.ones(5)), total)


@pytest.mark.parametrize("allowance", [0, 10**9])
@pytest.mark.parametrize("of", ["conv", "linear", "tied"])
def test_products_are_the_same_whether_rows_are_kept_or_not_and_in_pairs(allowance, of):
    torch.manual_seed(0)
    if of == "conv":
        image, left = torch.randn(4, 3, 9, 9).double(), torch.randn(4, 2, 7, 7).double()
        factor = Convolution(image, left, (1, 1), (1, 1), 1, (3, 3))
    else:
        factor = Outer(torch.randn(4, 1, 30, 5).double(), torch.randn(4, 1, 30, 3).double())
    if of == "tied":
        factor = SeveralUses((factor, Lookup(torch.randint(0, 5, (4, 6)), torch.randn(4, 6, 3).double(), 5)))
    rows = factor.rows()
    assert not stays_factored(factor)
    d = rows.shape[1]
    signals = ExactSignals({"w": factor}, {"w": slice(0, d)}, 2.0, rows.new_zeros(()), allowance)
    vector = torch.randn(d, dtype=torch.float64)
    for ours, theirs in [(signals, 2 * rows), (signals.differences([]), 2 * (rows[0::2] - rows[1::2]))]:
        weights = np.arange(float(len(theirs)))
        torch.testing.assert_close(ours.gram(), theirs @ theirs.T)
        torch.testing.assert_close(ours.dot(vector), theirs @ vector)
        torch.testing.assert_close(ours.combine(weights), torch.from_numpy(weights) @ theirs)


class Bypass(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return functional.linear(self.inner(x), self.inner.weight)


def test_a_weight_used_behind_its_modules_back_is_refused_by_name():
    model = Bypass()
    source = ExactSource(Exact(), model)
    source.records.open(4)
    model(torch.randn(4, 3)).square().mean().backward()
    with pytest.raises(ValueError, match=r"inner.weight.*outside its module"):
        closed(source)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(5, 4), nn.Embedding(6, 4)

    def forward(self, ids):
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1]))


def test_an_input_shared_by_the_batch_is_refused_with_the_cure():
    model = Positions()
    source = ExactSource(Exact(), model)
    source.records.open(3)
    with pytest.raises(ValueError, match=r"places.*Expand"):
        model(torch.randint(0, 5, (3, 6))).sum().backward()


def test_what_cannot_be_replayed_is_refused_by_name():
    model = nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1))
    with pytest.raises(ValueError, match=r"model.0=MultiheadAttention.*sketch"):
        ExactSource(Exact(), model)
