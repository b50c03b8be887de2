"""Under exact signals, training sees the gradients that autograd makes, whatever is done with them."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from wellorder.torch._per_example.exact import Exact, ExactSource


def closed(source):
    """The signals of the batch that is open."""
    return source.signals(source.records.close())


class Net(nn.Module):
    """Convolutions of all sorts, one called twice; a linear layer over positions, and a head."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(2, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, padding="same", groups=2, bias=False)
        self.three = nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode="circular")
        self.mix, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = functional.relu(self.one(x), inplace=True)
        x = torch.tanh(self.two(torch.tanh(self.two(x))))
        x = self.three(x).relu_().flatten(2).mT
        return self.head(torch.tanh(self.mix(x)).mean(1))


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return Net().to(dtype)


def images(b=4, dtype=torch.float64, seed=0):
    return torch.randn(b, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def loss(model, x):
    return model(x).square().sum()


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def close(ours, theirs, **tolerance):
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, **tolerance)


@pytest.fixture
def pair():
    """A watched model in mid-training, its source, and the same model without."""
    model = net()
    source = ExactSource(Exact(mean=False), model)
    for seed in (8, 9):  # what is written out early is known after the first batches
        source.records.open(4)
        loss(model, images(seed=seed)).backward()
        closed(source).differences([]).gram()
    model.zero_grad()
    source.records.open(4)
    yield model, source, net()
    source.remove()


def test_gradients_are_those_of_autograd(pair):
    model, _, plain = pair
    for each in (model, plain):
        loss(each, images()).backward()
    close(gradients(model), gradients(plain))
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_signals_add_up_to_what_the_weights_got(pair):
    model, source, _ = pair
    loss(model, images()).backward()
    total = closed(source).combine(np.ones(4))
    torch.testing.assert_close(total, torch.cat([g.flatten() for g in gradients(model)]))


def test_gradients_accumulate_and_parameter_hooks_see_each(pair):
    model, _, plain = pair
    seen = [], []
    for each, to in zip((model, plain), seen, strict=True):
        each.one.weight.register_hook(lambda g, to=to: to.append(g.clone()))
        loss(each, images(seed=1)).backward()
        loss(each, images(seed=2)).backward()
    close(gradients(model), gradients(plain))
    close(*seen)


def test_one_graph_may_be_used_twice(pair):
    model, _, plain = pair
    for each in (model, plain):
        total = loss(each, images())
        total.backward(retain_graph=True)
        total.backward()
    close(gradients(model), gradients(plain))


def test_second_derivatives_are_those_of_autograd(pair):
    model, _, plain = pair
    for each in (model, plain):
        first = torch.autograd.grad(loss(each, images()), list(each.parameters()), create_graph=True)
        sum(g.square().sum() for g in first).backward()
    close(gradients(model), gradients(plain))


def test_a_gradient_changed_on_its_way_changes_the_weights(pair):
    model, _, plain = pair
    for each in (model, plain):
        each.three.register_forward_hook(lambda _, __, out: out.register_hook(lambda e: 3 * e) and None)
        loss(each, images()).backward()
    close(gradients(model), gradients(plain))


def test_passes_that_are_ignored_or_belong_to_no_batch_train_all_the_same(pair):
    model, source, plain = pair
    with source.records.ignore():
        loss(model, images(seed=1)).backward()
    source.records.pause()
    loss(model, images(seed=2)).backward()
    for seed in (1, 2):
        loss(plain, images(seed=seed)).backward()
    close(gradients(model), gradients(plain))


def test_frozen_weights_stay_frozen(pair):
    model, source, plain = pair
    for each in (model, plain):
        each.one.weight.requires_grad_(False)
        each.mix.bias.requires_grad_(False)
        loss(each, images()).backward()
    close(gradients(model), gradients(plain))
    assert not model.one.weight.requires_grad
    assert closed(source) is not None


def test_without_gradients_there_is_no_graph(pair):
    model, _, _ = pair
    with torch.no_grad():
        assert not model(images()).requires_grad
    with torch.inference_mode():
        model(images())


def test_a_forward_pass_that_fails_leaves_the_weights_trainable(pair):
    model, source, _ = pair
    with pytest.raises(RuntimeError):
        model(torch.zeros(4, 5, 6, 6, dtype=torch.float64))
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    model.two.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model(images())
    source.records.open(4)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_copies_of_the_model_are_as_any_other(pair):
    model, _, plain = pair
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loss(plain, images()).backward()
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        loss(other, images()).backward()
        close(gradients(other), gradients(plain))


def test_functional_transforms_pass_through(pair):
    model, _, plain = pair
    params = dict(plain.named_parameters())
    ours, theirs = (
        torch.func.grad(lambda p, each=each: torch.func.functional_call(each, p, images()).square().sum())(
            params
        )
        for each in (model, plain)
    )
    close(ours.values(), theirs.values())


def test_autocast_gives_gradients_of_the_weights_own_precision():
    found = []
    for watched in (True, False):
        model = net(torch.float32)
        source = ExactSource(Exact(mean=False), model) if watched else None
        for _ in range(2):
            model.zero_grad()
            if source is not None:
                source.records.open(4)
            with torch.autocast("cpu", torch.bfloat16):
                total = loss(model, images(dtype=torch.float32))
            total.backward()
            if source is not None:
                closed(source).differences([]).gram()
        found.append(gradients(model))
    assert all(g.dtype == torch.float32 for g in found[0])
    close(*found, rtol=0.1, atol=0.1)


class Doubling:
    """A loss scaler."""

    def scale(self, outputs):
        return outputs * 1024.0


def test_a_loss_scale_stays_in_the_gradients_and_out_of_the_signals():
    model, plain = net(), net()
    source = ExactSource(Exact(mean=False), model, scaler=Doubling())
    for _ in range(2):
        model.zero_grad()
        source.records.open(4)
        (1024.0 * loss(model, images())).backward()
        signals = closed(source)
        signals.differences([]).gram()
    (1024.0 * loss(plain, images())).backward()
    close(gradients(model), gradients(plain), rtol=1e-4, atol=1e-4)
    total = torch.cat([g.flatten() for g in gradients(plain)]) / 1024.0
    torch.testing.assert_close(signals.combine(np.ones(4)), total, rtol=1e-4, atol=1e-4)


def test_removing_takes_all_hooks_off():
    model = net()
    ExactSource(Exact(), model).remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_data_parallel_wrapper_reduces_the_gradients(options, pair, tmp_path):
    model, _, plain = pair
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model, **options)
        loss(wrapped, images()).backward()
        loss(plain, images()).backward()
        close(gradients(model), gradients(plain))
    finally:
        # Before the group: else the wrapper ends it, and waits for gloo's threads with Python's lock in its
        # hands, for which they may be waiting (pytorch/pytorch#56297).
        wrapped = None
        torch.distributed.destroy_process_group()


def test_inputs_that_are_no_batch_pass_through(pair):
    model, source, plain = pair
    ragged = [torch.ones(2, 6, dtype=torch.float64), torch.ones(3, 6, dtype=torch.float64)]
    nested = torch.nested.nested_tensor(ragged, layout=torch.jagged)
    with source.records.ignore():
        for each in (model, plain):
            each.one(images()[0]).square().sum().backward()
            each.mix(nested).values().sum().backward()
            each.head(torch.ones(5, dtype=torch.float64)).sum().backward()
    close(gradients(model), gradients(plain))


def test_two_loaders_may_watch_one_model(pair):
    model, source, plain = pair
    other = ExactSource(Exact(mean=False), model)
    other.records.open(4)
    loss(model, images()).backward()
    loss(plain, images()).backward()
    close(gradients(model), gradients(plain))
    torch.testing.assert_close(closed(source).gram(), closed(other).gram())
    other.remove()


def test_weights_of_another_memory_format_get_gradients_of_it(pair):
    model, _, plain = pair
    x = images().to(memory_format=torch.channels_last)
    for each in (model, plain):
        loss(each.to(memory_format=torch.channels_last), x).backward()
    close(gradients(model), gradients(plain))
    assert model.one.weight.grad.stride() == plain.one.weight.grad.stride()


def test_what_is_checkpointed_in_forward_may_be_ignored_in_backward(pair):
    model, source, plain = pair
    out = torch.utils.checkpoint.checkpoint(model, images(), use_reentrant=False)
    with source.records.ignore():
        out.square().sum().backward()
    loss(plain, images()).backward()
    close(gradients(model), gradients(plain))


class Tokens(nn.Module):
    """A table that is the output layer's weight too, and a layer called twice."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.mix(torch.tanh(self.mix(self.table(ids))))))


@pytest.mark.parametrize("pairs", [True, False])
def test_batches_of_any_length_give_what_they_would_give_first(pairs):
    torch.manual_seed(0)
    model = Tokens().double()
    source = ExactSource(Exact(mean=False), model)
    for size, length in [(4, 9), (4, 9), (6, 40), (3, 40), (4, 1), (4, 2), (5, 30), (8, 30)]:
        ids = torch.randint(0, 7, (size, length))
        fresh = ExactSource(Exact(mean=False), model)
        found = []
        for each in (source, fresh):
            each.records.open(size)
        loss(model, ids).backward()
        for each in (source, fresh):
            signals = closed(each)
            signals = signals.differences([]) if pairs and size % 2 == 0 else signals
            vector = torch.arange(source.dim).double()
            found.append(
                (signals.gram(), signals.dot(vector), signals.combine(np.arange(1.0 + len(signals))[1:]))
            )
        close(*found)
        fresh.remove()


class Wide(nn.Module):
    """Layers of few positions and many channels, which are best left as factors."""

    def __init__(self):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(40, 48, 1), nn.Linear(48, 40)

    def forward(self, x):
        return self.mix(torch.tanh(self.conv(x)).flatten(2).mT)


def test_two_backward_passes_through_one_graph_count_twice():
    torch.manual_seed(0)
    model, x = Wide().double(), torch.randn(6, 40, 2, 1).double()
    source = ExactSource(Exact(mean=False), model)
    source.records.open(6)
    total = loss(model, x)
    total.backward(retain_graph=True)
    total.backward()
    twice = torch.cat([g.flatten() for g in gradients(model)])
    torch.testing.assert_close(closed(source).combine(np.ones(6)), twice)
