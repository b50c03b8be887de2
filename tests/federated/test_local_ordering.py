"""Clients may order their own mini-batches, whatever order the clients themselves follow."""

import numpy as np
import pytest
import torch
from torch import nn

import wellorder as wo
from wellorder import IncrementalGradient, PairGraB, RandomReshuffling, ShuffleOnce
from wellorder._kernels.random_bits import bits, key_of
from wellorder._order import rng
from wellorder.federated import ClientData, Config, label_shards, simulate
from wellorder.federated._local_ordering import LocalOrdering
from wellorder.federated._minibatches import shape_of
from wellorder.federated._simulate import check_policy


def regression(n=60, clients=6):
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((n, 5)), draw.integers(0, 3, n)
    return ClientData(x, y, label_shards(y, clients))


def linear():
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


def settings(**changes):
    return Config(
        **{
            "step_size": 0.1,
            "epochs": 4,
            "cohort": 2,
            "local_steps": 3,
            "batch": 3,
            "precision": "float64",
            **changes,
        }
    )


def naive(model, data, policy, local, config):
    """Lists and loops: a state for each client, missed mini-batches first in the next visit.

    The policy's units are mini-batches; those of a policy that watches are whoever came at its steps.
    """
    weight, bias = (p.detach().clone() for p in model.parameters())
    n = data.partition.n
    state, seeds = policy.init(n, seed=config.seed), rng(config.seed, 0, "clients").integers(2**62, size=n)
    own, lines, stands = {}, {}, {}
    for _ in range(config.epochs):
        for at in range(0, n, config.cohort):
            cohort, ends, signals = state.order[at : at + config.cohort], [], []
            for client in cohort:
                examples = data.partition.of(client)
                examples = examples[
                    np.argsort(bits(key_of(int(seeds[client]), 0, "cut"), np.arange(len(examples))))
                ]
                batches = [examples[i : i + config.batch] for i in range(0, len(examples), config.batch)]
                if client not in own:
                    own[client] = local.init(len(batches), seed=int(seeds[client]))
                    lines[client] = own[client].order.tolist()
                    stands[client] = list(range(len(batches)))
                order = lines[client]
                w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
                for step in range(config.local_steps):
                    turn = order[step % len(order)]
                    x, y = (
                        torch.from_numpy(data.inputs[batches[turn]]),
                        torch.from_numpy(data.labels[batches[turn]]),
                    )
                    grads = torch.autograd.grad(nn.functional.cross_entropy(x @ w.T + b, y), [w, b])
                    if step < len(order) and local.needs.at_visits():
                        row = torch.cat([g.ravel() for g in grads])[None].numpy()
                        own[client] = local.observe(own[client], [own[client].order[step]], row)
                    w = (w - config.step_size * grads[0]).detach().requires_grad_()
                    b = (b - config.step_size * grads[1]).detach().requires_grad_()
                if local.needs.at_visits():
                    for unit, turn in zip(own[client].order, order, strict=True):
                        stands[client][unit] = turn
                own[client] = local.advance(own[client])
                unseen = order[config.local_steps :]
                wanted = [stands[client][unit] for unit in own[client].order]
                if unseen:  # the others go round from there: else the last of a fixed order come less often
                    behind = wanted.index(unseen[-1]) + 1
                    wanted = wanted[behind:] + wanted[:behind]
                lines[client] = unseen + [turn for turn in wanted if turn not in unseen]
                ends.append((w.detach(), b.detach()))
                signals.append(
                    torch.cat([(weight - w.detach()).ravel(), bias - b.detach()]) / config.step_size
                )
            weight = sum(w for w, _ in ends) / len(ends)
            bias = sum(b for _, b in ends) / len(ends)
            if policy.needs.at_visits():
                state = policy.observe(state, cohort, torch.stack(signals).numpy())
        state = policy.advance(state)
    return weight.numpy(), bias.numpy()


@pytest.mark.parametrize(
    "local", [RandomReshuffling(), ShuffleOnce(), PairGraB(), wo.GraB(), wo.FlipFlop()], ids=str
)
@pytest.mark.parametrize("steps", [3, 4, 6])
@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_local_ordering_equals_lists_and_loops(local, steps, mode):
    data, config = regression(), settings(local=local, local_steps=steps, mode=mode, weighting="equal")
    run = simulate(linear(), data, PairGraB(), config)
    weight, bias = naive(linear(), data, PairGraB(), local, config)
    np.testing.assert_allclose(run.weights["weight"], weight, rtol=0, atol=1e-12)
    np.testing.assert_allclose(run.weights["bias"], bias, rtol=0, atol=1e-12)


def test_local_order_does_not_move_the_clients_order():
    data = regression()
    runs = [
        simulate(linear(), data, RandomReshuffling(), settings(local=local))
        for local in (None, ShuffleOnce(), PairGraB())
    ]
    assert (runs[0].orders == runs[1].orders).all()
    assert (runs[0].orders == runs[2].orders).all()


@pytest.mark.parametrize("policy", [PairGraB(), wo.Herding(), RandomReshuffling()], ids=str)
def test_no_mini_batch_starves(policy):
    sizes = np.array([50, 20])
    local = LocalOrdering(policy, sizes, shape_of(sizes.tolist(), 4, 5), seed=0)
    draw = np.random.default_rng(0)
    visits = np.zeros(10, int)
    for _ in range(30):
        local.places(0)
        visits[local.queues[0].next(4)] += 1
        for step in range(4):
            local.see(0, step, draw.standard_normal(3))
        local.leave(0)
    assert visits.min() >= 10


def test_a_visit_that_is_one_pass_uses_every_example_once():
    sizes = np.array([17])
    local = LocalOrdering(IncrementalGradient(), sizes, shape_of([17], 4, 5), seed=3)
    places, real = local.places(0)
    assert sorted(places[real]) == list(range(17))


def test_local_means_for_every_client_are_refused_where_unaffordable():
    config = settings(local=wo.GraB())
    with pytest.raises(ValueError, match="use PairGraB, which keeps none"):
        check_policy(RandomReshuffling(), config, 6, 24, memory=100)
    check_policy(RandomReshuffling(), settings(local=PairGraB()), 6, 24, memory=100)


def test_a_policy_that_may_take_a_client_twice_in_a_round_is_refused():
    words = r"policy=WithReplacement\(\) may take a client twice.*RandomCohorts\(cohort=2\)"
    with pytest.raises(ValueError, match=words):
        simulate(linear(), regression(), wo.WithReplacement(), settings(local=RandomReshuffling()))
    simulate(linear(), regression(), wo.RandomCohorts(2), settings(local=RandomReshuffling()))
