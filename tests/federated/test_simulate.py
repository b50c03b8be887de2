"""`simulate` equals Algorithm 2 and a naive loop over clients, whatever the mode, policy, or company."""

import copy
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import wellorder as wo
from wellorder import Arbitrary, GraB, PairGraB, RandomReshuffling, ShuffleOnce, Walk
from wellorder._kernels.random_bits import bits, key_of
from wellorder._order import describe
from wellorder.federated import (
    Always,
    ClientData,
    Config,
    Diurnal,
    DropOut,
    Partition,
    Trace,
    dirichlet,
    fedavg,
    label_shards,
    simulate,
    simulate_many,
)
from wellorder.federated._batched_models import pools
from wellorder.federated._evaluate import Evaluator
from wellorder.federated._parameters import layout_of
from wellorder.federated._simulate import Runs, check_policy
from wellorder.problems import quadratics

POLICIES = [
    RandomReshuffling(), ShuffleOnce(), wo.IncrementalGradient(), wo.FlipFlop(), wo.WithReplacement(),
    wo.RandomCohorts(),
    wo.NicePermutation(), wo.Greedy(), GraB(), PairGraB(), wo.GraBProto(), wo.PairGraBProto(),
    PairGraB(Walk(2.0)), GraB(Walk(2.0), reorders=2),
    Arbitrary(lambda epoch: np.random.default_rng(epoch).permutation(13)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Quadratic(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.x = nn.Parameter(torch.ones(dim, dtype=torch.float64))

    def forward(self, rows):
        return (rows[:, 0] * self.x**2 + rows[:, 1] * self.x).sum(-1)


def themselves(outputs, labels):
    return outputs


def one_example_each(problem):
    rows = np.stack([problem.a, problem.b], axis=1)
    return ClientData(rows, np.zeros(problem.n), Partition(np.arange(problem.n), np.arange(problem.n + 1)))


@pytest.mark.parametrize("policy", POLICIES, ids=describe)
@pytest.mark.parametrize("cohort", [1, 3, 4, 13])
@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_simulate_is_algorithm_2(policy, cohort, mode):
    problem = quadratics(13, 3, seed=1)
    config = Config(
        0.01, 3, cohort=cohort, batch=None, server_step=1.3, precision="float64", mode=mode, evaluate=0
    )
    policy = replace(policy, cohort=cohort) if isinstance(policy, wo.RandomCohorts) else policy
    run = simulate(Quadratic(3), one_example_each(problem), policy, config, loss=themselves)
    exact = fedavg(problem, policy, step_size=0.01, epochs=3, cohort=cohort, local_steps=5, server_step=1.3)
    assert (run.orders == exact.orders).all()
    np.testing.assert_allclose(run.weights["x"], exact.x[-1], rtol=0, atol=1e-12)


def small_images(n=130, seed=0):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, n)
    pictures = draw.integers(0, 256, (n, 2, 12, 12), dtype=np.uint8)
    pictures[:, :, :3] //= 2
    return pictures, labels


def small_model():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(100, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip
    return model.double()


def client_data(clients=13, alpha=None):
    pictures, labels = small_images()
    split = label_shards(labels, clients) if alpha is None else dirichlet(labels, clients, alpha)
    return ClientData(pictures, labels, split, pictures[:20], labels[:20], 3, (0.4, 0.6), (0.2, 0.3))


def naive_batches(config, client, size, longest, passes, epoch):
    """The client's places at each step: passes in random order, cut into mini-batches, the last short."""
    noise = bits(
        key_of(config.seed, epoch, "batches"), client * passes * longest + np.arange(passes * longest)
    ) >> np.uint64(1)
    flat = []
    for row in noise.reshape(passes, longest):
        order = np.argsort(row[:size], kind="stable")
        flat += [order[at : at + config.batch] for at in range(0, size, config.batch)]
    return flat[: config.local_steps]


def naive_image(config, data, example, client, step, slot, epoch, batch):
    pixels = data.inputs[example].astype(np.float64)
    if config.augment:
        index = client * config.local_steps * batch + step * batch + slot
        noise = int(bits(key_of(config.seed, epoch, "augment"), index))
        down, right, flip = noise % 2**20 % 9, (noise >> 20) % 2**20 % 9, (noise >> 40) & 1
        wide = np.pad(pixels, ((0, 0), (4, 4), (4, 4)))
        pixels = wide[:, down : down + 12, right : right + 12]
        pixels = pixels[:, :, ::-1] if flip else pixels
    mean, std = (np.array(v)[:, None, None] for v in (data.mean, data.std))
    return torch.from_numpy((pixels / 255 - mean) / std)


def naive_run(model, data, policy, config):
    """FL as one would first write it: clients one after the other, each with its own copy of the model."""
    server = copy.deepcopy(model)
    state, orders = policy.init(data.partition.n, seed=config.seed), []
    came = Counter()
    longest = int(data.partition.sizes.max())
    passes = -(-config.local_steps // -(-int(data.partition.sizes.min()) // min(config.batch, longest)))
    batch = min(config.batch, longest)
    for epoch in range(config.epochs):
        order = state.order
        orders.append(order)
        for at in range(0, len(order), config.cohort):
            cohort, ends, signals = order[at : at + config.cohort], [], []
            for client in cohort:
                own = data.partition.of(client)
                local = copy.deepcopy(server)
                visit = client + data.partition.n * came[epoch, client]  # comes again: other draws
                came[epoch, client] += 1
                plan = naive_batches(config, visit, len(own), longest, passes, epoch)
                for step, places in enumerate(plan):
                    images = [
                        naive_image(config, data, own[p], visit, step, i, epoch, batch)
                        for i, p in enumerate(places)
                    ]
                    loss = nn.functional.cross_entropy(
                        local(torch.stack(images)), torch.from_numpy(data.labels[own[places]])
                    )
                    grads = torch.autograd.grad(loss, list(local.parameters()))
                    scale = 1.0
                    if config.clip:
                        norm = torch.sqrt(sum((g**2).sum() for g in grads))
                        scale = min(1.0, config.clip / (float(norm) + 1e-6))
                    with torch.no_grad():
                        for p, g in zip(local.parameters(), grads, strict=True):
                            p -= config.step_size * scale * g
                ends.append([p.detach() for p in local.parameters()])
                start = torch.cat([p.detach().ravel() for p in server.parameters()])
                signals.append((start - torch.cat([p.ravel() for p in ends[-1]])) / config.step_size)
            sizes = data.partition.sizes[cohort] if config.weighting == "size" else np.ones(len(cohort))
            with torch.no_grad():
                for i, p in enumerate(server.parameters()):
                    p.copy_(sum(float(s) * end[i] for s, end in zip(sizes, ends, strict=True)) / sizes.sum())
            if policy.needs.at_visits():
                state = policy.observe(state, cohort, torch.stack(signals).numpy())
        state = policy.advance(state)
    return server, np.array(orders)


def settings(**changes):
    return Config(
        **{
            "step_size": 0.1, "epochs": 3, "cohort": 4, "local_steps": 4, "batch": 4, "clip": 1.0,
            "augment": True, "precision": "float64", "evaluate": 0, **changes,
        }
    )  # fmt: skip


def close(weights, model):
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(weights[name], parameter.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["loop", "stacked", "vmap"])
@pytest.mark.parametrize(
    "policy",
    [PairGraB(), GraB(), RandomReshuffling(), wo.RandomCohorts(4), wo.WithReplacement()],
    ids=describe,
)
def test_simulate_is_a_naive_loop_over_clients(mode, policy):
    data, config = client_data(), settings(mode=mode)
    run = simulate(small_model(), data, policy, config)
    model, orders = naive_run(small_model(), data, policy, config)
    assert (run.orders == orders).all()
    close(run.weights, model)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize(
    "changes",
    [{"cohort": 5}, {"weighting": "equal"}, {"augment": False, "clip": 0.0}, {"batch": 64, "local_steps": 1}],
    ids=str,
)
def test_clients_of_unequal_size_and_other_settings_equal_the_naive_loop(mode, changes):
    data, config = client_data(11, alpha=0.5), settings(mode=mode, **changes)
    run = simulate(small_model(), data, PairGraB(), config)
    model, orders = naive_run(small_model(), data, PairGraB(), config)
    assert (run.orders == orders).all()
    close(run.weights, model)


JOBS = [
    (PairGraB(), 0, 0.1), (RandomReshuffling(), 1, 0.1), (PairGraB(), 2, 0.05), (GraB(), 0, 0.1),
    (PairGraB(Walk(0.5)), 3, 0.1), (GraB(reorders=2), 1, 0.2),
]  # fmt: skip


@pytest.mark.parametrize("availability", [Always(), DropOut(0.3)], ids=str)
@pytest.mark.parametrize("cohort", [3, 4])
def test_runs_in_company_and_balanced_as_on_a_device_equal_each_run_alone(cohort, availability):
    data = client_data()
    jobs = [
        (p, settings(seed=s, step_size=g, cohort=cohort, availability=availability, mode="stacked"))
        for p, s, g in JOBS
    ]
    alone = [simulate(small_model(), data, policy, config) for policy, config in jobs]
    together = Runs(small_model(), data, jobs, on_device=True, numbers=2000).train()
    for one, other in zip(alone, together, strict=True):
        assert (one.orders == other.orders).all()
        assert (one.state.order == other.state.order).all()
        for name, array in one.weights.items():
            np.testing.assert_allclose(other.weights[name], array, rtol=0, atol=1e-12)
        clipped = getattr(one.state, "clipped", 0)
        assert clipped == getattr(other.state, "clipped", 0)


def test_runs_with_sketches_of_different_lengths_share_a_device():
    data = client_data()
    jobs = [
        (policy, settings(seed=seed, sketch=sketch))
        for seed, sketch in ((0, 0), (1, 64), (2, 16), (3, 64))
        for policy in (PairGraB(), wo.Herding(), wo.RandomCohorts(4))
    ]
    alone = [simulate(small_model(), data, policy, config) for policy, config in jobs]
    for on_device in (False, True):
        together = Runs(small_model(), data, jobs, on_device=on_device).train()
        for one, other in zip(alone, together, strict=True):
            assert (one.orders == other.orders).all()


def test_a_regular_plan_and_a_general_one_balance_alike():
    data = client_data(12)

    def on_device(config):
        return Runs(small_model(), data, [(PairGraB(), config)], on_device=True).train()[0]

    regular, general = on_device(settings()), on_device(settings(availability=DropOut(0.0)))
    host = simulate(small_model(), data, PairGraB(), settings())
    assert (regular.orders == general.orders).all()
    assert (regular.orders == host.orders).all()


def test_unreachable_clients_are_visited_first_in_the_next_epoch():
    data = client_data()
    for policy in (PairGraB(), RandomReshuffling(), ShuffleOnce(), wo.FlipFlop()):
        config = settings(availability=Diurnal(2, 8, 0.5), epochs=5, cohort=5, evaluate=1)
        run = simulate(small_model(), data, policy, config)
        missed = run.table["missed"].astype(int)
        assert missed.any()
        for epoch in range(5):
            assert sorted(run.orders[epoch]) == list(range(13))
        assert run.state.epoch == 5


def test_runs_whose_traces_hold_the_same_times_are_trained_together(tmp_path):
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file in files:
        file.write_text("\n".join(f"{client},{client % 3},{client % 3 + 2}" for client in range(13)))
    data, jobs = client_data(), []
    for seed, file in enumerate(files):
        jobs.append((PairGraB(), settings(seed=seed, availability=Trace(file), cohort=5)))
    together = simulate_many(small_model(), data, jobs)
    for (policy, config), run in zip(jobs, together, strict=True):
        alone = simulate(small_model(), data, policy, config)
        assert (run.orders == alone.orders).all()
    files[1].write_text("0,0,1")
    with pytest.raises(ValueError, match="differ in policy, seed, step_size and sketch alone"):
        simulate_many(small_model(), data, [*jobs, (PairGraB(), settings(availability=Trace(files[1])))])


@dataclass(frozen=True)
class Jealous:
    """PairGraB that accepts no state but those it made, as it made them."""

    inner = PairGraB()
    needs = PairGraB.needs
    keeps = PairGraB.keeps
    made: ClassVar = {}

    def keep(self, state):
        self.made[id(state)] = state, state.order
        return state

    def mine(self, state):
        assert self.made.pop(id(state))[1] is state.order

    def init(self, n, *, seed=0):
        return self.keep(self.inner.init(n, seed=seed))

    def observe(self, state, units, signals):
        self.mine(state)
        return self.keep(self.inner.observe(state, units, signals))

    def advance(self, state):
        self.mine(state)
        return self.keep(self.inner.advance(state))


@pytest.mark.parametrize("local", [None, Jealous()], ids=["clients", "clients and mini-batches"])
def test_a_policy_is_shown_no_state_that_it_did_not_make(local):
    config = settings(availability=DropOut(0.3), epochs=4, local=local, local_steps=2)
    run = simulate(small_model(), client_data(), Jealous(), config)
    same = simulate(small_model(), client_data(), PairGraB(), replace(config, local=local and PairGraB()))
    assert (run.orders == same.orders).all()
    assert not (np.sort(run.units) - np.arange(13)).any()
    assert (run.units != np.arange(13)).any()


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    data = client_data()
    first, again, other = (
        simulate(small_model(), data, PairGraB(), settings(seed=s, precision="float32")) for s in (0, 0, 1)
    )
    assert all((first.weights[k] == again.weights[k]).all() for k in first.weights)
    assert not all((first.weights[k] == other.weights[k]).all() for k in first.weights)


def test_the_users_model_is_not_changed_and_global_randomness_is_left_alone():
    model, before = small_model(), small_model()
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(2), np.random.rand(2)
    torch.manual_seed(5)
    np.random.seed(5)
    simulate(model, client_data(), RandomReshuffling(), settings(epochs=1))
    assert (torch.rand(2) == expected[0]).all()
    assert (np.random.rand(2) == expected[1]).all()
    assert all((a == b).all() for a, b in zip(model.parameters(), before.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_evaluation_is_the_mean_loss_and_accuracy_of_the_servers_model():
    data, config = client_data(), settings(evaluate=2, epochs=3)
    run = simulate(small_model(), data, RandomReshuffling(), config)
    assert run.table["epoch"].tolist() == [0, 2, 3]
    assert run.table["round"].tolist() == [0, 8, 12]
    assert (np.diff(run.seconds) > 0).all()
    model = small_model()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(run.weights[name]))
        mean, std = (np.array(v)[:, None, None] for v in (data.mean, data.std))
        for split, pictures, labels in (
            ("train", data.inputs, data.labels),
            ("test", data.test_inputs, data.test_labels),
        ):
            outputs = model(torch.from_numpy((pictures / 255 - mean) / std))
            loss = nn.functional.cross_entropy(outputs, torch.from_numpy(labels))
            right = (outputs.argmax(1).numpy() == labels).mean()
            assert run.table[f"{split}_loss"][-1] == pytest.approx(float(loss), abs=1e-12)
            assert run.table[f"{split}_accuracy"][-1] == pytest.approx(right, abs=1e-12)


def test_evaluation_is_the_same_by_batched_layers():
    model = small_model()
    model[4].requires_grad_(False)
    made = Runs(model, client_data(), [(RandomReshuffling(), settings(mode="stacked"))])
    trainer, loss = made.loop.trainer, nn.CrossEntropyLoss(reduction="none")
    given = made.data, made.loop.store, trainer.model, trainer.layout, loss, 0
    alone, lane = (Evaluator(*given, batched=b).measure(made.loop.servers[0]) for b in (False, True))
    assert lane == pytest.approx(alone, rel=1e-12)
    assert np.isfinite([*alone.values()]).all()
    assert Evaluator(*given).batch == 1000
    large = replace(
        made.data, inputs=np.zeros((130, 2, 300, 300), np.uint8), test_inputs=None, test_labels=None
    )
    assert Evaluator(large, *given[1:]).batch == 2**24 // (2 * 300 * 300)
    assert pools(model)
    assert not pools(nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)))


def test_sketched_balancing_orders_almost_as_well():
    data = client_data()
    whole, sketch, again = (
        simulate(small_model(), data, PairGraB(), settings(sketch=k)) for k in (0, 512, 512)
    )
    assert (sketch.orders == again.orders).all()
    assert sketch.state.total.shape in ((512,), (0,))
    assert whole.orders[0].tolist() == sketch.orders[0].tolist()


def test_a_diverging_run_goes_on_and_says_so():
    with pytest.warns(RuntimeWarning, match="diverged"):
        run = simulate(
            small_model(), client_data(), PairGraB(), settings(step_size=1e200, clip=0.0, evaluate=1)
        )
    assert np.isnan(run.table["train_loss"][-1])
    assert sorted(run.orders[-1]) == list(range(13))


BAD = [
    (lambda: settings(cohort=14), "cohort=14: a round takes at most the 13 clients"),
    (lambda: settings(local_steps=0), "local_steps=0: pass an int >= 1"),
    (lambda: settings(epochs=0), "epochs=0"),
    (lambda: settings(step_size=-1.0), "step_size=-1.0"),
    (lambda: settings(batch=0), "batch=0"),
    (lambda: settings(clip=-1.0), "clip=-1.0"),
    (lambda: settings(sketch=100), "power of two"),
    (lambda: settings(sketch=2048), "longer than the model"),
    (lambda: settings(precision="fp8"), "precision='fp8'"),
    (lambda: settings(mode="fast"), "mode='fast'"),
    (lambda: settings(device="cuda:9"), "no CUDA device"),
    (lambda: settings(local=wo.GraBProto()), "needs fresh gradients"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_settings_are_refused_before_training(make, message):
    with pytest.raises(ValueError, match=message):
        simulate(small_model(), client_data(), RandomReshuffling(), make())


def test_policies_that_keep_every_signal_are_refused_where_that_is_unaffordable():
    width = layout_of(small_model()).width
    for policy in (wo.GraBProto(), wo.NicePermutation(), wo.Greedy()):
        with pytest.raises(ValueError, match=r"keeps every client's signal.*use PairGraB, or pass sketch"):
            check_policy(policy, settings(), 13, width, memory=10_000)
        check_policy(policy, settings(sketch=64), 13, width, memory=10_000)
    simulate(small_model(), client_data(), wo.GraBProto(), settings(sketch=64, epochs=1))


def test_other_bad_input_is_refused():
    data = client_data()
    floats = ClientData(data.inputs.astype(float), data.labels, data.partition)
    with pytest.raises(ValueError, match="only uint8 images"):
        simulate(small_model(), floats, RandomReshuffling(), settings())
    with pytest.raises(ValueError, match="no turns to miss"):
        simulate(small_model(), data, wo.WithReplacement(), settings(availability=DropOut(0.1)))
    with pytest.raises(ValueError, match=r"rounds of 10, and cohort=4; pass RandomCohorts\(cohort=4\)"):
        simulate(small_model(), data, wo.RandomCohorts(), settings())
    with pytest.raises(ValueError, match=r"rounds of 10, and cohort=4; pass BalancedCohorts\(cohort=4\)"):
        simulate(small_model(), data, wo.BalancedCohorts(), settings())
    with pytest.raises(ValueError, match="differ in policy, seed, step_size and sketch alone"):
        simulate_many(small_model(), data, [(PairGraB(), settings()), (PairGraB(), settings(cohort=2))])
    with pytest.raises(ValueError, match="one label per input"):
        ClientData(data.inputs, data.labels[:-1], data.partition)
    with pytest.raises(ValueError, match="partition names example"):
        ClientData(data.inputs[:50], data.labels[:50], data.partition)
    with pytest.raises(ValueError, match="models by name take uint8 images"):
        simulate("logistic", floats, RandomReshuffling(), settings(augment=False))


def test_named_models_start_from_their_seed():
    data = client_data()
    jobs = [(RandomReshuffling(), settings(seed=s, augment=False, epochs=1)) for s in (0, 0, 1)]
    first, again, other = simulate_many("logistic", data, jobs)
    assert (first.weights["1.weight"] == again.weights["1.weight"]).all()
    assert not (first.weights["1.weight"] == other.weights["1.weight"]).all()


def small_federation():
    draw = np.random.default_rng(0)
    x = draw.standard_normal((24, 4))
    y = (x[:, 0] > 0).astype(int)
    return ClientData(x, y, label_shards(y, 6))


def net(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*(layer() for layer in layers))


def thaw(model, *, but):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(but))
    return model


@pytest.mark.parametrize("mode", ["loop", "stacked", "vmap"])
def test_frozen_parameters_stay_and_enter_no_signal(mode, tmp_path):
    model = thaw(net(lambda: nn.Linear(4, 3), nn.ReLU, lambda: nn.Linear(3, 2)), but="0.")
    data = small_federation()
    config = Config(0.1, 3, cohort=2, mode=mode, precision="float64", checkpoint=tmp_path / "run.npz")
    run = simulate(model, data, GraB(), config)
    before = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    assert run.weights.keys() == before.keys()
    for name, array in run.weights.items():
        assert np.array_equal(array, before[name]) == name.startswith("0."), name
    with torch.no_grad():
        features = torch.relu(model[0].double()(torch.from_numpy(data.inputs))).numpy()
    head = ClientData(features, data.labels, data.partition)
    alone = simulate(copy.deepcopy(model[2]), head, GraB(), Config(0.1, 3, cohort=2, precision="float64"))
    assert np.array_equal(run.orders, alone.orders)
    assert np.allclose(run.weights["2.weight"], alone.weights["weight"], rtol=1e-12)
    with torch.no_grad():
        model[0].weight += 1
    with pytest.raises(ValueError, match="checkpoint"):
        simulate(model, data, GraB(), config)


def test_a_model_that_is_frozen_throughout_is_refused():
    with pytest.raises(ValueError, match="requires_grad=True"):
        simulate(thaw(nn.Linear(4, 2), but=""), small_federation(), GraB(), Config(0.1, 1, cohort=2))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def tied():
    model = net(lambda: nn.Linear(4, 4), nn.ReLU, lambda: nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def repeated():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize("make", [tied, repeated, lambda: net(lambda: Doubled(4, 2))])
def test_tied_weights_and_layers_with_a_forward_of_their_own_are_not_stacked(make):
    torch.manual_seed(0)
    model, data = make(), small_federation()
    runs = [
        simulate(model, data, PairGraB(), Config(0.1, 2, cohort=2, mode=mode, precision="float64"))
        for mode in ("auto", "loop")
    ]
    for name, array in runs[0].weights.items():
        assert np.allclose(array, runs[1].weights[name], rtol=1e-12)
    with pytest.raises(ValueError, match="cannot be stacked"):
        simulate(model, data, PairGraB(), Config(0.1, 1, cohort=2, mode="stacked"))


def test_a_layer_without_weights_may_stand_twice_in_a_stacked_model():
    relu, data = nn.ReLU(), small_federation()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu, nn.Linear(4, 2))
    runs = [
        simulate(model, data, PairGraB(), Config(0.1, 2, cohort=2, mode=mode, precision="float64"))
        for mode in ("stacked", "loop")
    ]
    for name, array in runs[0].weights.items():
        assert np.allclose(array, runs[1].weights[name], rtol=1e-12)


def tokens(clients=6):
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 11, (60, 7))
    return ClientData(
        rows, rows[:, -1] % 5, label_shards(rows[:, -1] % 5, clients), rows[:9], rows[:9, -1] % 5
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = (
            nn.Embedding(11, 4),
            nn.GRU(4, 6, batch_first=True),
            nn.Linear(6, 5),
        )

    def forward(self, x):
        return self.head(self.cell(self.embed(x))[0][:, -1])


def test_tokens_stay_integers_in_every_mode():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(28, 8), nn.ReLU(), nn.Linear(8, 5))
    runs = [
        simulate(model, tokens(), PairGraB(), settings(augment=False, mode=mode, evaluate=3))
        for mode in ("loop", "stacked", "vmap", "auto")
    ]
    for run in runs[1:]:
        for name, array in runs[0].weights.items():
            np.testing.assert_allclose(run.weights[name], array, rtol=0, atol=1e-12)
    assert runs[0].table["train_loss"][-1] < runs[0].table["train_loss"][0]


def test_an_embedding_and_a_gru_learn_from_tokens():
    torch.manual_seed(0)
    config = settings(augment=False, epochs=15, step_size=0.5, evaluate=15)
    run = simulate(Recurrent(), tokens(), PairGraB(), config)
    assert run.table["train_accuracy"][-1] > run.table["train_accuracy"][0] + 0.2


def test_looks_inside_epochs_change_nothing_and_show_the_middle():
    data = client_data(12)
    plain = simulate(small_model(), data, PairGraB(), settings(evaluate=1))
    looked = simulate(small_model(), data, PairGraB(), settings(evaluate=1, looks=3))
    assert looked.table["round"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert looked.table["epoch"][:4].tolist() == [0, 1 / 3, 2 / 3, 1]
    assert (looked.table["train_loss"][::3] == plain.table["train_loss"]).all()
    assert len(set(looked.table["train_loss"].tolist())) == 10
    assert (np.diff(looked.seconds) > 0).all()
    with pytest.raises(ValueError, match=r"looks=2, evaluate=3: pass evaluate=1"):
        settings(looks=2, evaluate=3)


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_order_errors_are_those_of_the_clients_gradients(weighting):
    """With steps so small that the point hardly moves, an epoch's signals are the gradients at its start."""
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((24, 3)), draw.integers(0, 2, 24)
    data = ClientData(x, y, label_shards(y, 8))
    model = torch.nn.Linear(3, 2).double()
    config = Config(
        1e-7,
        3,
        cohort=2,
        local_steps=1,
        batch=None,
        precision="float64",
        weighting=weighting,
        server_step=1.5,
    )
    run = simulate(model, data, PairGraB(), config)
    rows = []
    for client in range(8):
        own = data.partition.of(client)
        model.zero_grad()
        torch.nn.functional.cross_entropy(
            model(torch.from_numpy(x[own])), torch.from_numpy(y[own])
        ).backward()
        rows.append(np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]))
    expected = [wo.order_error(np.array(rows), order, every=2) for order in run.orders]
    assert run.order_error == pytest.approx(expected, rel=1e-4)
    assert run.table["order_error"][1:] == pytest.approx(expected, rel=1e-4)
    assert np.isnan(run.table["order_error"][0])
    known = wo.theory.constants("FL-GraB", 8, sigma=1.0, cohort=2, server_step=1.5)
    check = wo.theory.check_assumption(run, known)
    assert check.left == pytest.approx(run.order_error**2)
    assert not check.promised
    with pytest.raises(
        ValueError, match=r"method=None: the constants of a network are not known; pass constants"
    ):
        wo.theory.check_assumption(run)


def test_a_damaged_checkpoint_is_named_with_the_cure(tmp_path):
    from wellorder._saving import load_state, save_state

    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((24, 3)), draw.integers(0, 2, 24)
    data, path = ClientData(x, y, label_shards(y, 8)), tmp_path / "run.npz"
    config = Config(0.1, 2, cohort=2, local_steps=1, batch=2, checkpoint=path)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    simulate(model, data, PairGraB(), config)
    whole = load_state(path)
    for broken in (
        {**whole, "servers": whole["servers"][:, :2]},
        {**whole, "runs": {}},
        {**whole, "runs": {"0": {**whole["runs"]["0"], "queue": 3}}},
        {key: value for key, value in whole.items() if key != "epochs"},
    ):
        save_state(path, broken)
        with pytest.raises(ValueError, match=r"checkpoint=.*run.npz' is damaged .*delete it to start anew"):
            simulate(model, data, PairGraB(), config)
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"checkpoint=.*run.npz' cannot be read .*delete it to start anew"):
        simulate(model, data, PairGraB(), config)
