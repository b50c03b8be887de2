"""Resume: exact in mid-epoch, whatever the workers, and after being killed at any moment."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from wellorder import FlipFlop, GraB, Herding, PairGraB, RandomReshuffling
from wellorder.torch import Exact, MicroBatch, Sketch, ordered

CASES = [
    (PairGraB(), Exact()),
    (GraB(), Exact()),
    (PairGraB(), Sketch()),
    (Herding(3), Sketch()),
    (Herding(3), MicroBatch()),
    (PairGraB(), MicroBatch(coordinates=50)),
    (RandomReshuffling(), "auto"),
    (FlipFlop(), "sketch"),
]


def run(loader, model, orders, stop=None, skip=(), epochs=3):
    """Train on to the end of ``epochs``, or until ``stop`` steps were taken; returns whether it stopped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    while loader.epoch < epochs:
        orders[loader.epoch] = loader.order.copy()
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
            if steps == stop:
                return True
    return False


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("policy", "signals"), CASES, ids=str)
def test_a_resumed_run_is_bit_identical(policy, signals, drop_last, make_model, make_loader, tmp_path):
    def make(workers):
        model = make_model("lenet", dtype=torch.float32)
        given = make_loader(
            "lenet", n=29, batch=4, dtype=torch.float32, num_workers=workers, drop_last=drop_last
        )
        return model, ordered(given, model, policy, seed=4, signals=signals)

    model, loader = make(0)
    orders = {}
    run(loader, model, orders)
    final = loader.order.copy()

    again, resumed = {}, None
    for stop, workers in [(3, 0), (7, 2), (1, 0), (5, 0), (None, 0)]:
        other, resumed = make(workers)
        if again:
            saved = torch.load(tmp_path / "state.pt", weights_only=True)
            other.load_state_dict(saved["model"])
            resumed.load_state_dict(saved["loader"])
        run(resumed, other, again, stop)
        torch.save({"model": other.state_dict(), "loader": resumed.state_dict()}, tmp_path / "state.pt")
    for epoch, order in orders.items():
        np.testing.assert_array_equal(again[epoch], order)
    np.testing.assert_array_equal(resumed.order, final)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    ours, theirs = loader.report(), resumed.report()
    assert ours.order_error == theirs.order_error
    assert (ours.observed, ours.unobserved) == (theirs.observed, theirs.unobserved)


def test_dropout_continues_where_the_generator_was(make_loader):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 3), torch.nn.Dropout(0.5))
        return model, ordered(make_loader(n=24, dtype=torch.float32), model)

    model, loader = make()
    run(loader, model, {})
    other, first = make()
    run(first, other, {}, stop=2)
    saved = {"loader": first.state_dict(), "random": torch.get_rng_state(), "model": other.state_dict()}
    again, second = make()
    again.load_state_dict(saved["model"])
    second.load_state_dict(saved["loader"])
    torch.set_rng_state(saved["random"])
    run(second, again, {})
    assert torch.equal(again[1].weight, model[1].weight)


def test_a_state_taken_between_epochs_opens_the_next_one(make_model, make_loader, train):
    model = make_model()
    loader = ordered(make_loader(), model, PairGraB())
    train(loader, model)
    other = ordered(make_loader(), model, PairGraB())
    other.load_state_dict(loader.state_dict())
    assert (other.epoch, len(list(other))) == (1, len(loader))


def test_a_state_is_a_copy(make_model, make_loader, train):
    model = make_model()
    loader = ordered(make_loader(), model)
    for x, y in loader:
        functional.cross_entropy(model(x), y).backward()
        state = loader.state_dict()
        break
    before = state["policy"]["rows"].clone()
    train(loader, model, 2)
    assert torch.equal(state["policy"]["rows"], before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 31}, "examples=30.*examples=31"),
        ({"batch": 7}, "batch_size=8.*batch_size=7"),
        ({"drop_last": True}, "drop_last=False.*drop_last=True"),
    ],
)
def test_the_state_of_another_loader_is_refused(change, words, make_model, make_loader):
    state = ordered(make_loader(), make_model()).state_dict()
    with pytest.raises(ValueError, match=words):
        ordered(make_loader(**change), make_model()).load_state_dict(state)


def test_states_of_other_seeds_policies_and_signals_and_damaged_ones_are_refused(make_model, make_loader):
    loader = ordered(make_loader(), make_model())
    state = loader.state_dict()
    for other, words in [
        (ordered(make_loader(), make_model(), seed=1), "seed=0.*seed=1"),
        (ordered(make_loader(), make_model(), signals=Sketch(size=64)), "signals="),
        (ordered(make_loader(), make_model(), PairGraB()), "belongs to Steering"),
    ]:
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(state)
    for damage in (
        {},
        {"weights": 1},
        {**state, "policy": {}},
        {k: v for k, v in state.items() if k != "running_error"},
    ):
        with pytest.raises(ValueError, match=r"state"):
            loader.load_state_dict(damage)
    bent = {**state, "policy": {**state["policy"], "order": state["policy"]["order"].roll(1)}}
    with pytest.raises(ValueError, match="checksum"):
        loader.load_state_dict(bent)


@pytest.mark.parametrize("value", [None, "x", -2, float("inf"), float("nan"), [1], torch.zeros(2)], ids=str)
def test_a_state_with_any_part_of_another_kind_is_refused_before_anything_changes(value, make_loader):
    rows = np.eye(30, 3)
    other = ordered(make_loader(), rows=rows)
    next(iter(other))
    state, loader = other.state_dict(), ordered(make_loader(), rows=rows)
    state["policy"] = state["policy"] | {"epoch": 5}  # refused, too, but only where all else is sound
    parts = [("step",), ("ranks",), ("rank",), ("counts",), ("counts", "steps"), ("running_error", "sums")]
    for part in [*parts, ("seen_in",), ("seconds",), ("wall",), ("errors",), ("running_error",)]:
        bent = {**state, part[0]: {**state[part[0]], part[-1]: value} if len(part) > 1 else value}
        with pytest.raises(ValueError, match="damaged state"):
            loader.load_state_dict(bent)
        assert (loader.epoch, loader.report().step) == (0, 0)
    with pytest.raises(ValueError, match="damaged state: step=5 of 4"):
        loader.load_state_dict({**state, "step": 5})


def test_a_state_whose_numbers_became_arrays_of_one_is_loaded(make_loader):
    """As where it was kept in a format that has nothing else."""
    rows = np.eye(30, 3)
    other = ordered(make_loader(), rows=rows, seed=4)
    next(iter(other))
    state, loader = other.state_dict(), ordered(make_loader(), rows=rows, seed=4)
    arrays = {k: np.array(v) for k, v in state["loader"].items()}
    loader.load_state_dict({**state, "loader": arrays, "step": np.array(state["step"])})
    assert loader.report().step == 1
    assert loader.order.tolist() == other.order.tolist()
    for spoilt in (np.zeros(2), torch.tensor(3)):
        with pytest.raises(ValueError, match=r"saved with batch_size=.*as it was when the state was saved"):
            loader.load_state_dict({**state, "loader": {**arrays, "batch_size": spoilt}})


def trained(folder, kills):
    """Run the training script, killed so many times; in which epochs it was, and where it came to."""
    folder.mkdir()
    script = Path(__file__).with_name("killed_training.py")
    done = subprocess.run(
        [sys.executable, script, folder, str(kills)], capture_output=True, text=True, check=True, timeout=300
    )
    return [int(epoch) for epoch in done.stdout.split()], torch.load(folder / "done.pt", weights_only=True)


@pytest.mark.slow
def test_fifty_kills_at_random_moments_change_neither_weights_nor_orders(tmp_path):
    _, calm = trained(tmp_path / "calm", 0)
    kills, wild = trained(tmp_path / "wild", 50)
    assert len(kills) == 50
    in_observed = {epoch for epoch in kills if epoch & (epoch - 1) == 0}
    assert in_observed
    assert set(kills) - in_observed
    assert calm["orders"] == wild["orders"]
    for name, value in calm["model"].items():
        assert torch.equal(value, wild["model"][name])
