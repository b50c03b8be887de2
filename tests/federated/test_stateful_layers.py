"""BatchNorm is averaged, dropout is seeded, and what cannot be trained is refused in words."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from wellorder import PairGraB, RandomReshuffling
from wellorder.federated import ClientData, Config, Partition, label_shards, simulate
from wellorder.federated._minibatches import bits
from wellorder.federated._stateful_layers import CountedDropout, set_keys


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(clients=6, n=48):
    draw = np.random.default_rng(0)
    x = draw.standard_normal((n, 5)) + 3
    y = (x[:, 0] > 3).astype(int)
    return ClientData(x, y, label_shards(y, clients), x[:10], y[:10])


def settings(**changes):
    return Config(
        **{"step_size": 0.1, "epochs": 2, "cohort": 3, "batch": None, "precision": "float64", **changes}
    )


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()


def test_running_statistics_are_averaged_as_parameters_are():
    data, config = rows(), settings(weighting="equal", local_steps=3)
    run = simulate(normed(), data, RandomReshuffling(), config)
    server = normed()
    for order in run.orders:
        for at in range(0, 6, 3):
            ends = []
            for client in order[at : at + 3]:
                local = copy.deepcopy(server)
                own = data.partition.of(client)
                x, y = torch.from_numpy(data.inputs[own]), torch.from_numpy(data.labels[own])
                for _ in range(3):
                    loss = nn.functional.cross_entropy(local(x), y)
                    grads = torch.autograd.grad(loss, list(local.parameters()))
                    with torch.no_grad():
                        for p, g in zip(local.parameters(), grads, strict=True):
                            p -= 0.1 * g
                ends.append(local.state_dict())
            mean = {k: sum(end[k] for end in ends) / 3 for k in ends[0] if "tracked" not in k}
            server.load_state_dict(mean, strict=False)
    for name, array in run.weights.items():
        np.testing.assert_allclose(array, server.state_dict()[name].numpy(), rtol=0, atol=1e-12)
    server.eval()
    right = server(torch.from_numpy(data.test_inputs)).argmax(1).numpy() == data.test_labels
    assert run.table["test_accuracy"][-1] == right.mean(), "evaluated with the running statistics"


def test_the_statistics_are_no_signal_and_frozen_ones_stay():
    plain = simulate(normed(), rows(), PairGraB(), settings())
    scaled = normed()
    scaled[1].running_var.mul_(1e6)
    assert (simulate(scaled, rows(), PairGraB(), settings()).orders == plain.orders).all()
    frozen = normed()
    frozen[1].eval()
    run = simulate(frozen, rows(), PairGraB(), settings())
    assert set(run.weights) == {name for name, _ in frozen.named_parameters()}
    with pytest.raises(ValueError, match=r"mode='vmap': running statistics .*pass mode='auto'"):
        simulate(normed(), rows(), PairGraB(), settings(mode="vmap"))


def dropped(p=0.4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(p), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 2)).double()


def test_dropout_depends_on_the_seed_alone():
    def weights(**changes):
        return simulate(dropped(), rows(), RandomReshuffling(), settings(evaluate=0, **changes)).weights

    torch.manual_seed(1)
    first = weights(mode="loop")
    torch.manual_seed(2)
    for other in (weights(mode="vmap"), weights()):
        for name, array in first.items():
            np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-12)
    assert not np.allclose(weights(seed=1)["0.weight"], first["0.weight"])
    none = simulate(dropped().eval(), rows(), RandomReshuffling(), settings(evaluate=0)).weights
    assert not np.allclose(none["0.weight"], first["0.weight"])


class Twice(nn.Module):
    """One layer of dropout, called twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(5, 2), nn.Dropout(0.5)

    def forward(self, x):
        return self.layer(self.dropout(self.dropout(x)))


def test_a_dropout_that_is_called_twice_draws_twice():
    layer = CountedDropout(0.5, False, 0)
    set_keys([layer], torch.tensor(11))
    masks = [layer(torch.ones(200)) for _ in range(3)]
    assert not any(torch.equal(a, b) for a, b in ((masks[0], masks[1]), (masks[1], masks[2])))
    set_keys([layer], torch.tensor(11))
    assert torch.equal(layer(torch.ones(200)), masks[0]), "told anew, it begins anew"
    torch.manual_seed(0)
    model = Twice().double()
    runs = [
        simulate(model, rows(), PairGraB(), settings(batch=4, mode=mode)).weights["layer.weight"]
        for mode in ("loop", "vmap")
    ]
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=1e-12)


class Checkpointed(nn.Module):
    """A part that is computed again in the backward pass, or not."""

    def __init__(self, again, inner):
        super().__init__()
        self.again, self.inner, self.last = again, inner, nn.Linear(5, 2)

    def forward(self, x):
        inner = self.inner
        if self.again and x.requires_grad | torch.is_grad_enabled():
            return self.last(checkpoint(inner, x, use_reentrant=False))
        return self.last(inner(x))


def test_a_dropout_that_is_computed_again_draws_what_it_drew():
    def trained(again, make):
        torch.manual_seed(0)
        model = Checkpointed(again, make()).double()
        return simulate(model, rows(), PairGraB(), settings(batch=4, mode="loop")).weights["inner.0.weight"]

    def once():
        return nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Tanh())

    def twice():
        layer = nn.Dropout(0.5)
        return nn.Sequential(nn.Linear(5, 5), layer, nn.Tanh(), layer)

    np.testing.assert_array_equal(trained(True, once), trained(False, once))
    with pytest.raises(ValueError, match=r"Dropout that is called several times.*a layer for each"):
        trained(True, twice)


def test_a_server_step_leaves_running_statistics_alone():
    data = rows()
    data = ClientData(data.inputs * 0.1, data.labels, data.partition)
    run = simulate(normed(), data, RandomReshuffling(), settings(epochs=3, server_step=1.9, local_steps=9))
    assert np.isfinite(run.table["train_loss"]).all()
    assert run.weights["1.running_var"].min() > 0
    plain, strong = (
        simulate(normed(), data, RandomReshuffling(), settings(epochs=1, server_step=eta)).weights
        for eta in (1.0, 1.5)
    )
    np.testing.assert_array_equal(plain["1.running_var"], strong["1.running_var"])
    assert not np.array_equal(plain["0.weight"], strong["0.weight"])


@pytest.mark.parametrize(
    ("batch", "steps", "local", "fits"),
    [
        (8, 3, None, False),
        (8, 2, None, True),
        (8, 2, PairGraB(), False),
        (17, 3, None, True),
        (None, 3, None, True),
    ],
)
def test_a_mini_batch_of_one_example_that_batchnorm_cannot_take_is_refused(batch, steps, local, fits):
    whole = rows()
    sizes = [range(17), range(17, 33), range(33, 48)]
    data = ClientData(whole.inputs, whole.labels, Partition.of_lists([list(own) for own in sizes]))
    config = settings(batch=batch, local_steps=steps, local=local, cohort=2)
    if fits:
        simulate(normed(), data, RandomReshuffling(), config)
    else:
        with pytest.raises(ValueError, match=r"batch=8: client 0 has 17 examples.*pass another batch"):
            simulate(normed(), data, RandomReshuffling(), config)
        torch.manual_seed(0)
        simulate(nn.Linear(5, 2).double(), data, RandomReshuffling(), config)  # one that can


def test_dropout_keeps_the_mean_and_drops_its_share():
    layer = CountedDropout(0.3, False, 1)
    layer.key = bits(torch.tensor(5), torch.tensor(7))
    out = layer(torch.ones(400, 250, dtype=torch.float64))
    assert float((out == 0).double().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    whole = CountedDropout(0.5, True, 0)
    whole.key = layer.key
    channels = whole(torch.ones(3, 8, 4, 4)).flatten(2)
    assert ((channels == 0) | (channels == 2)).all()
    assert (channels.amin(2) == channels.amax(2)).all()


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x), 0.5)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        (Counts(), {}, "changes the buffer calls, which no server averages"),
        (Noisy(), {}, "draws random numbers of its own"),
        (nn.Linear(7, 2), {}, r"its forward fails on inputs of shape \(2, 5\)"),
        (
            nn.Linear(5, 2),
            {"loss": nn.functional.cross_entropy},
            r"returns shape \(\) for 2 examples.*reduction",
        ),
        (nn.Sequential(nn.Linear(5, 2), nn.AlphaDropout(0.5)), {}, r"AlphaDropout\(p=0.5\) cannot be drawn"),
    ],
    ids=["buffer", "F.dropout", "inputs", "mean loss", "alpha"],
)
def test_what_cannot_be_trained_is_refused_in_words(model, changes, words):
    with pytest.raises(ValueError, match=words):
        simulate(model, rows(), PairGraB(), settings(), **changes)


def test_a_layer_that_cannot_be_stacked_is_named():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"mode='stacked': layer 1 \(Tanh\) cannot be stacked"):
        simulate(model, rows(), PairGraB(), settings(mode="stacked"))


def test_plain_lists_are_a_partition():
    data = rows()
    lists = [data.partition.of(client).tolist() for client in range(6)]
    made = ClientData(data.inputs, data.labels, lists)
    assert (made.partition.examples == data.partition.examples).all()
    assert (Partition.of_lists({2: [0], 1: [3, 4]}).examples == [3, 4, 0]).all()
    for bad in ([], [[]], [[0.5]], [[-1]]):
        with pytest.raises(ValueError, match="lists"):
            Partition.of_lists(bad)


def test_data_that_are_not_finite_are_refused():
    data = rows()
    spoilt = data.inputs.copy()
    spoilt[7, 2] = np.nan
    with pytest.raises(ValueError, match=r"inputs\[7\] holds NaN"):
        ClientData(spoilt, data.labels, data.partition)


def test_a_run_that_diverges_says_so_once():
    with pytest.warns(
        RuntimeWarning, match=r"PairGraB.*step_size=1e\+308.*diverged.*smaller step_size"
    ) as told:
        simulate(nn.Linear(5, 2).double(), rows(), PairGraB(), settings(step_size=1e308, epochs=3))
    assert len([w for w in told if "diverged" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(nn.Linear(5, 2).double(), rows(), PairGraB(), settings())
