"""Kinds of models and loaders that people have: taken as they are, or refused with the cure."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, TensorDataset

from wellorder import Herding, PairGraB, RandomReshuffling
from wellorder.torch import MicroBatch, Sketch, ordered
from wellorder.torch._hooks import _LayerHook


def data(n=24):
    gen = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, 6, generator=gen), torch.randint(0, 3, (n,), generator=gen))


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def each(loader, model):
    for x, y in loader:
        functional.cross_entropy(model(x).float(), y).backward()
    return loader.report()


class Shared(nn.Module):
    """One layer held by two parents."""

    def __init__(self):
        super().__init__()
        both = nn.Linear(6, 6)
        self.p, self.q, self.head = nn.Sequential(both), nn.Sequential(both), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.q(torch.tanh(self.p(x)))))


@pytest.mark.parametrize(("policy", "signals"), [(Herding(), "sketch"), (PairGraB(), "exact")])
def test_a_layer_with_two_parents_is_one_layer(policy, signals):
    model = Shared()
    loader = ordered(DataLoader(data(), 4), model, policy, signals=signals)
    assert sum(isinstance(hook, _LayerHook) for hook in model.q[0]._forward_hooks.values()) == 1
    assert each(loader, model).observed == 24


class Token(nn.Module):
    """A raw parameter beside layers, as in a vision transformer."""

    def __init__(self):
        super().__init__()
        self.token, self.a, self.head = nn.Parameter(torch.zeros(1, 8)), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.a(x) + self.token))


def test_a_raw_parameter_does_not_hide_the_layers_beside_it_from_a_sketch():
    model = Token()
    loader = ordered(DataLoader(data(), 4), model)
    assert isinstance(loader.spec, Sketch)
    report = each(loader, model)
    assert report.observed == 24
    assert report.coverage["token"] == "not sketched"
    assert "numbers" in report.coverage["a.weight"]


class Strided(SequentialSampler):
    def __iter__(self):
        return iter(range(0, len(self.data_source), 2))


class Named(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield {"x": x, "y": y}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DataLoader(data(), 4, sampler=RandomSampler(range(8))), "RandomSampler.*Subset"),
        (lambda: DataLoader(data(), 4, sampler=SequentialSampler(range(8))), "SequentialSampler.*Subset"),
        (lambda: DataLoader(data(), 4, sampler=Strided(data())), "Strided.*Subset"),
        (lambda: Named(data(), 4), "__iter__.*collate_fn"),
    ],
)
def test_loaders_that_choose_their_examples_or_change_their_batches_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        ordered(make(), mlp())


class Recurrent(nn.Module):
    def __init__(self, kind, start):
        super().__init__()
        self.r, self.head, self.start = kind(6, 8, batch_first=True), nn.Linear(8, 3), start

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 4, -1)
        state = torch.ones(1, len(x), 8, dtype=x.dtype)
        state = (state, state / 2) if isinstance(self.r, nn.LSTM) else state
        return self.head(self.r(x, *([state] if self.start else []))[0][:, -1])


@pytest.mark.parametrize(
    ("kind", "start"), [(nn.LSTM, False), (nn.LSTM, True), (nn.GRU, False), (nn.GRU, True)]
)
def test_exact_signals_of_recurrent_layers_in_single_precision(kind, start):
    model = Recurrent(kind, start)
    loader = ordered(DataLoader(data(), 4), model, PairGraB(), signals="exact")
    assert each(loader, model).observed == 24


def test_exact_signals_of_a_model_in_bfloat16():
    model = mlp().bfloat16()
    x, y = data().tensors
    loader = ordered(DataLoader(TensorDataset(x.bfloat16(), y), 4), model, PairGraB(), signals="exact")
    assert each(loader, model).observed == 24


@pytest.mark.parametrize(("policy", "signals"), [(Herding(), "sketch"), (PairGraB(), "exact")])
def test_a_layer_that_is_trained_only_later_stays_out(policy, signals):
    model = mlp()
    model[0].weight.requires_grad_(False)
    loader = ordered(DataLoader(data(), 4), model, policy, signals=signals)
    each(loader, model)
    model[0].weight.requires_grad_(True)
    report = each(loader, model)
    assert report.observed == 48
    assert "0.weight" not in report.coverage


def test_a_backward_pass_before_the_first_batch_is_no_batchs():
    model = mlp()
    loader = ordered(DataLoader(data(), 4), model, PairGraB(), signals="exact")
    model(torch.randn(5, 6)).sum().backward()
    assert each(loader, model).observed == 24


def test_one_coordinate_is_enough_to_begin_with():
    model = mlp()
    assert each(ordered(DataLoader(data(), 4), model, signals=MicroBatch(coordinates=1)), model).observed == 6


class Noise(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(1)


def test_a_resumed_loader_keeps_its_cost_and_its_workers_seeds_though_a_generator_was_given():
    def make():
        generator = torch.Generator().manual_seed(3)
        given = DataLoader(Noise(), 4, shuffle=True, num_workers=1, generator=generator)
        return ordered(given, model, RandomReshuffling(), signals="sketch")

    model = nn.Linear(1, 1)
    loader = make()
    for x in loader:
        model(x).sum().backward()
    state = loader.state_dict()
    other = make()
    other.load_state_dict(state)
    assert other.report().seconds_per_step == pytest.approx(state["seconds"] / 2, rel=0.3)
    assert [x.tolist() for x in other] == [x.tolist() for x in loader]


class Positions(nn.Module):
    """Positions that the batch shares, as language models have them."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(10, 8), nn.Embedding(5, 8), nn.Linear(8, 10)

    def forward(self, ids):
        return self.head(torch.tanh(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))))


def test_auto_leaves_out_a_layer_whose_input_the_batch_shares_and_says_so():
    ids = torch.randint(0, 10, (16, 5), generator=torch.Generator().manual_seed(0))
    model = Positions()
    loader = ordered(DataLoader(TensorDataset(ids), 4), model)
    for (x,) in loader:
        functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
    report = loader.report()
    assert report.observed == 16
    assert "not the batch" in report.coverage["places.weight"]
    assert "numbers" in report.coverage["tokens.weight"]


class Mixed(nn.Sequential):
    """A last layer of another precision."""

    def forward(self, x):
        return self[2](self[1](self[0](x)).double())


@pytest.mark.parametrize("late", [False, True])
def test_exact_signals_of_models_of_several_precisions_or_changed_ones(late):
    model = mlp() if late else Mixed(*mlp())
    if not late:
        model[2].double()
    loader = ordered(DataLoader(data(), 4), model, PairGraB(), signals="exact")
    if late:
        model.double()
    for x, y in loader:
        functional.cross_entropy(model(x.double() if late else x), y).backward()
    assert loader.report().observed == 24


class AsMany(nn.Module):
    """Learned positions, looked up once for the whole batch."""

    def __init__(self, length=6):
        super().__init__()
        self.places, self.head = nn.Embedding(length, 6), nn.Linear(6, 3)

    def forward(self, x):
        steps = self.places(torch.arange(len(self.places.weight)))
        return self.head((x.unsqueeze(1) + steps).tanh()).mean(1)


@pytest.mark.parametrize(("policy", "signals"), [(Herding(), "sketch"), (PairGraB(), "exact")])
def test_positions_as_many_as_the_batch_are_refused_all_the_same(policy, signals):
    model = AsMany()
    loader = ordered(DataLoader(data(), 6), model, policy, signals=signals)
    with pytest.raises(ValueError, match=r"model\.places.*Expand inputs that are shared"):
        each(loader, model)


def test_auto_leaves_positions_out():
    model = AsMany()
    loader = ordered(DataLoader(data(), 6), model)
    report = each(loader, model)
    assert report.observed == 24
    assert "left out" in report.coverage["places.weight"]
