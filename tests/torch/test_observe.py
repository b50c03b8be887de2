"""Know once, order every epoch: which epochs are observed, and what the others are ordered by."""

import copy
import gc
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset, TensorDataset

from wellorder import (
    BalancedCohorts,
    FlipFlop,
    GraB,
    Herding,
    PairGraB,
    RandomReshuffling,
    Steering,
    balanced,
    features,
    order_error,
)
from wellorder._measure import error_vs_shuffle
from wellorder._order import shuffled
from wellorder.torch import MicroBatch, OrderedLoader, Sketch, _observing, ordered
from wellorder.torch._schedule import advanced, let_threads_end, schedule_of

AUTO = [0, 1, 2, 4, 8, 16]


def observed(observe, policy, epochs=20):
    schedule = schedule_of(observe, policy)
    return [epoch for epoch in range(epochs) if schedule(epoch)]


@pytest.fixture(autouse=True)
def _others():
    """Hooks of loaders that earlier tests left behind are none of this test's."""
    gc.collect()
    OTHERS[:] = optimizers._global_optimizer_post_hooks.values()


OTHERS = []


def our_hooks(model):
    """Every hook that sits on the model or its parameters, or that all optimizers call."""
    found = [
        hook
        for module in model.modules()
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
        for hook in hooks.values()
    ]
    found += [
        hook
        for p in model.parameters()
        for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks)
        for hook in (hooks or {}).values()
    ]
    return found + [hook for hook in optimizers._global_optimizer_post_hooks.values() if hook not in OTHERS]


def known_rows(n=30, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 7)).astype(np.float32)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


@pytest.fixture
def make(make_model, make_loader):
    """A model, its optimizer, and the ordered loader, the same every time."""

    def build(policy=None, *, n=30, batch=8, workers=0, with_model=True, **options):
        model = make_model(dtype=torch.float32)
        given = make_loader(n=n, batch=batch, dtype=torch.float32, num_workers=workers)
        loader = ordered(given, model if with_model else None, policy, seed=3, **options)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), loader

    return build


# ---- which epochs ----


@pytest.mark.parametrize(
    ("observe", "wanted"),
    [
        ("auto", AUTO),
        ("always", list(range(20))),
        (1, list(range(20))),
        (5, [0, 5, 10, 15]),
        (np.int64(7), [0, 7, 14]),
        (lambda epoch: epoch in (3, 4), [3, 4]),
        (lambda epoch: np.bool_(epoch == 2), [2]),
    ],
)
@pytest.mark.parametrize("policy", [Steering(), Herding()], ids=lambda p: type(p).__name__)
def test_the_schedule_is_as_asked(observe, wanted, policy):
    assert observed(observe, policy) == wanted


@pytest.mark.parametrize("policy", [PairGraB(), GraB(), RandomReshuffling()], ids=lambda p: type(p).__name__)
def test_policies_that_remember_nothing_see_every_epoch(policy):
    assert observed("auto", policy) == observed("always", policy) == list(range(20))


@pytest.mark.parametrize("policy", [PairGraB(), GraB()], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("observe", [1, 2, lambda epoch: True])
def test_policies_that_need_every_visit_refuse_to_be_shown_some(policy, observe, make):
    with pytest.raises(ValueError, match=rf"observe=.*{type(policy).__name__} needs signals.*Steering\(\)"):
        make(policy, observe=observe)


def test_a_policy_that_learns_nothing_may_be_measured_in_some_epochs(make, train):
    model, _, loader = make(FlipFlop(), observe=2, signals="sketch")
    train(loader, model, 4)
    assert len(loader.report().order_error) == 2


@pytest.mark.parametrize("observe", ["sometimes", 0, -1, 2.0, True, None, [0, 1]])
def test_other_values_are_refused_with_the_cure(observe, make):
    with pytest.raises(ValueError, match=rf"observe={re.escape(repr(observe))}.*auto.*always.*__contains__"):
        make(observe=observe)


def test_there_is_nothing_to_observe_without_a_model():
    given = DataLoader(TensorDataset(torch.arange(20.0)), 4)
    for observe in ("always", 1, bool):
        with pytest.raises(ValueError, match=r"observe=.*model=None.*leave observe out"):
            ordered(given, rows=np.eye(20), observe=observe)


def test_given_rows_are_not_lost_to_a_state_without_them(make):
    """Whoever adds rows to a run that goes on is told; a state brings its own to a loader without."""
    (_, _, without), (_, _, given) = make(), make(rows=known_rows())
    nothing = without.state_dict()
    with pytest.raises(ValueError, match=r"given no rows.*this one was given rows of.*leave rows= out"):
        given.load_state_dict(nothing)
    assert given._observer.state.given  # nothing was changed
    with pytest.raises(ValueError, match=r"rows of \d+ numbers, and this one was given rows of 2 numbers"):
        make(rows=known_rows()[:, :2])[2].load_state_dict(given.state_dict())
    with pytest.warns(UserWarning, match="rows given to this loader are not those in the state"):
        make(rows=known_rows()[::-1].copy())[2].load_state_dict(given.state_dict())
    without.load_state_dict(given.state_dict())
    np.testing.assert_array_equal(without._observer.state.rows, given._observer.state.rows)
    without.load_state_dict(nothing)
    make(rows=known_rows())[2].load_state_dict(given.state_dict())


def test_epochs_are_observed_as_the_schedule_says(make, train):
    model, _, loader = make()
    seen = []
    for _ in range(10):
        seen.append(loader.observing)
        train(loader, model)
    assert [epoch for epoch, now in enumerate(seen) if now] == [0, 1, 2, 4, 8]
    assert loader.report().observed == 5 * 30
    assert len(loader.report().order_error) == 5


def test_a_function_that_changes_its_mind_is_asked_once_an_epoch(make, train):
    asked = []

    def now_and_then(epoch):
        asked.append(epoch)
        return len(asked) % 2 == 1

    model, _, loader = make(observe=now_and_then)
    train(loader, model, 4)
    assert asked == [0, 1, 2, 3, 4]
    assert loader.report().observed == 2 * 30


def looked_at_first(make, how, *, epochs=6, state=None, **options):
    """Train; before each epoch another is drawn, to look at the data. Which of the former are observed?"""
    model, optimizer, loader = make(**options)
    if state is not None:
        loader.load_state_dict(state)
    seen = {}
    for _ in range(epochs):
        if how == "evaluated":
            with torch.no_grad():
                for x, _ in loader:
                    model(x)
        else:
            next(iter(loader))
        for batch in loader:
            seen[loader.epoch] = loader.observing
            step(model, optimizer, batch)
    return [epoch for epoch, now in seen.items() if now], loader


@pytest.mark.parametrize("signals", ["sketch", MicroBatch(64)])
@pytest.mark.parametrize("how", ["evaluated", "peeked"])
def test_an_epoch_in_which_nothing_is_trained_leaves_its_turn_to_the_next(how, signals, make):
    seen, loader = looked_at_first(make, how, signals=signals)
    assert seen == [1, 3, 5, 9]  # for 0 and 1, 2, 4, 8
    resumed, _ = looked_at_first(make, how, signals=signals, epochs=3, state=loader.state_dict())
    assert resumed == [17]  # for 16


def test_a_state_knows_that_an_epoch_waits_for_its_turn(make):
    model, optimizer, loader = make(observe=lambda epoch: epoch == 2)
    for epoch in range(3):
        for batch in loader:
            if epoch < 2:
                step(model, optimizer, batch)
    other = make(observe=lambda epoch: epoch == 2)[2]
    other.load_state_dict(loader.state_dict())
    assert (other.epoch, other.observing, loader.observing) == (3, True, True)


# ---- an epoch that is not observed ----


@pytest.mark.parametrize("signals", ["sketch", "batch"])
@pytest.mark.parametrize("policy", [Steering(), Herding()], ids=lambda p: type(p).__name__)
def test_an_epoch_that_is_not_observed_has_no_hook_of_ours(policy, signals, make):
    model, optimizer, loader = make(policy, signals=signals)
    for epoch in range(9):
        hooks = [len(our_hooks(model))]
        for batch in loader:
            step(model, optimizer, batch)
            hooks.append(len(our_hooks(model)))
            assert (loader.units is None) is (epoch not in AUTO)
        if epoch in AUTO:
            assert min(hooks) > 0
        else:
            assert hooks == [0] * len(hooks)


def test_hooks_come_and_go_without_adding_up(make):
    model, optimizer, loader = make(observe=2)
    counts = []
    for _ in range(7):
        for batch in loader:
            step(model, optimizer, batch)
        counts.append(len(our_hooks(model)))  # of the epoch that comes next
    assert counts[0] == counts[2] == counts[4] == 0
    assert counts[1] == counts[3] == counts[5] > 0


@pytest.mark.parametrize("policy", [Steering(), Herding()], ids=lambda p: type(p).__name__)
def test_its_order_is_fresh_and_balanced_over_the_rows_seen_last(policy, make, train):
    model, _, loader = make(policy, n=400, batch=4, observe=lambda epoch: epoch == 0)
    train(loader, model)
    rows, orders = loader._observer.state.rows.copy(), []
    for epoch in range(1, 6):
        orders.append(loader.order.tolist())
        assert orders[-1] == policy.open(policy.init(400, seed=3, rows=rows), epoch).order.tolist()
        assert order_error(rows, loader.order) < 0.5 * order_error(rows, shuffled(400, 3, epoch))
        train(loader, model)
    assert len({tuple(order) for order in orders}) == 5
    np.testing.assert_array_equal(loader._observer.state.rows, rows)


def test_its_gradients_and_random_numbers_are_those_of_the_plain_loop(make):
    """Nothing draws from the global generator, and weights follow from the batches alone."""
    model, optimizer, loader = make(observe=lambda epoch: False, rows=known_rows())
    plain = copy.deepcopy(model)
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    torch.manual_seed(5)
    for _ in range(2):
        for batch in loader:
            step(model, optimizer, batch)
            step(plain, other, batch)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_model_that_is_compiled_after_epoch_zero_is_compiled_once(make):
    """One graph for all unobserved epochs, and no break in it: a counting backend sees them."""
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model, optimizer, loader = make(observe=lambda epoch: epoch == 0)
    for batch in loader:
        step(model, optimizer, batch)
    quick = torch.compile(model, backend=counting, fullgraph=True, dynamic=False)
    for _ in range(3):
        for x, y in loader:
            if len(x) == 8:  # the last, shorter batch is another shape, and torch's business
                step(quick, optimizer, (x, y))
    assert len(graphs) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_that_goes_on_in_an_unobserved_epoch_is_heard_in_the_next_observed_one(make, compiled):
    def made():
        torch._dynamo.reset()
        model, optimizer, loader = make(n=24)
        quick = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        return model, optimizer, loader, quick

    _, optimizer, loader, quick = made()
    for _ in range(3):
        for batch in loader:
            step(quick, optimizer, batch)
    batches = iter(loader)
    step(quick, optimizer, next(batches))
    saved = loader.state_dict()
    model, optimizer, loader, quick = made()
    loader.load_state_dict(saved)
    for at, batch in enumerate(loader):
        step(quick, optimizer, batch)
        assert compiled or at or not any(m._forward_hooks for m in model.modules())
    before = loader.metrics()["order/row_age"]
    for batch in loader:  # epoch 4 is observed
        step(quick, optimizer, batch)
    assert loader.metrics()["order/row_age"] < before


# ---- workers ----


def several_epochs(make, workers, epochs=6):
    model, optimizer, loader = make(n=60, workers=workers)
    orders, visits = [], []
    for _ in range(epochs):
        orders.append(loader.order.tolist())
        for batch in loader:
            visits.append(batch[1].tolist())
            step(model, optimizer, batch)
    return orders, visits, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")  # on two cores
def test_the_number_of_workers_changes_no_order_observed_or_not(workers, make):
    plain, spread = several_epochs(make, 0), several_epochs(make, workers)
    assert plain[:2] == spread[:2]
    assert all(torch.equal(a, b) for a, b in zip(plain[2], spread[2], strict=True))


def test_workers_are_forked_before_the_thread_begins(make, monkeypatch):
    """A lock that the thread holds while a worker is forked would stay locked in it for ever."""
    alive = []
    real = DataLoader._get_iterator

    def noted(self):
        alive.append([t.name for t in threading.enumerate() if t.name == "wellorder-next-order"])
        return real(self)

    monkeypatch.setattr(DataLoader, "_get_iterator", noted)
    _, _, loader = make(with_model=False, rows=known_rows())
    for _ in range(3):
        list(loader)
    assert alive == [[], [], []]


# ---- the thread that makes the next order ----

GATE = threading.Event()


@dataclass(frozen=True)
class Slow(Steering):
    """Steering whose orders are not ready before the gate is open, in the background alone."""

    def advance(self, state):
        if threading.current_thread() is not threading.main_thread():
            GATE.wait(60)
        return super().advance(state)


@dataclass(frozen=True)
class Broken(Steering):
    """Steering that fails in the background."""

    def advance(self, state):
        if threading.current_thread() is not threading.main_thread():
            raise ArithmeticError(f"no order after {state.epoch}")
        return super().advance(state)


@pytest.fixture
def gate():
    GATE.clear()
    yield GATE
    GATE.set()


def test_the_order_is_made_while_the_epoch_runs_and_the_end_waits_for_it(make, gate):
    model, optimizer, loader = make(Slow(), rows=known_rows(), observe=lambda epoch: False)
    batches = iter(loader)
    for _ in range(len(loader)):  # nothing waits in the body
        step(model, optimizer, next(batches))
        assert loader.state_dict()["step"] == loader._step
        assert loader.report().epoch == 0
        assert loader.metrics()["order/epoch"] == 0
    threading.Timer(0.05, gate.set).start()
    assert list(batches) == []
    assert loader.epoch == 1
    assert loader.order.tolist() == list(itertools.islice(balanced(known_rows(), seed=3), 2))[1].tolist()


def test_an_observed_epoch_starts_no_thread(make, gate):
    model, optimizer, loader = make(Slow(), observe="always")  # the gate stays closed
    for _ in range(3):
        for batch in loader:
            step(model, optimizer, batch)
    assert loader.epoch == 3


def test_an_error_in_the_background_is_raised_at_the_epochs_end_with_its_cause(make):
    model, optimizer, loader = make(Broken(), rows=known_rows(), observe=lambda epoch: epoch == 0)
    for batch in loader:
        step(model, optimizer, batch)
    taken = []

    with pytest.raises(ArithmeticError, match="no order after 1") as caught:
        taken.extend(loader)
    assert len(taken) == len(loader)
    assert "advance" in [entry.name for entry in caught.traceback]  # where it happened, not where it surfaced
    with pytest.raises(ArithmeticError, match="no order after 1"):  # and it does not go away in silence
        list(loader)


class InParts(Steering):
    """Gives the second part of its orders when the gate opens."""

    gate = threading.Event()

    def advancing(self, state):
        made = super().advance(state)
        yield made.order[:9]
        self.gate.wait(60)
        yield made.order[9:]
        return made

    def advance(self, state):
        return super().advance(state)


def test_an_epoch_begins_while_its_order_is_in_the_making(make):
    """After an observed epoch nobody waits for more of the order than the batches that are drawn."""
    model, optimizer, loader = make(InParts(), observe=lambda epoch: epoch == 0)
    for batch in loader:
        step(model, optimizer, batch)
    assert (loader.epoch, loader.observing) == (1, False)
    batches = iter(loader)
    first = [next(batches)[1].tolist() for _ in range(9 // loader.batch_size)]
    assert loader._observer.coming is not None  # nobody has asked for the rest
    InParts.gate.set()
    assert sum(map(len, first)) + sum(len(batch[1]) for batch in batches) == 30
    assert loader.epoch == 2


def test_a_loader_that_goes_away_does_not_wait_for_its_thread(make, gate):
    _, _, loader = make(Slow(), with_model=False, rows=known_rows())
    next(iter(loader))
    start = time.monotonic()
    del loader
    assert time.monotonic() - start < 30  # the gate waits for 60


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np, torch
from dataclasses import dataclass
from torch.utils.data import DataLoader, TensorDataset
from wellorder import Steering
from wellorder.torch import ordered

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it
@dataclass(frozen=True)
class Stuck(Steering):
    def advance(self, state):
        time.sleep(1000)

data = TensorDataset(torch.zeros(8, 2))
loader = ordered(DataLoader(data, 4), policy=Stuck(), rows=np.ones((8, 2)))
where = sys.argv[1]
if where == "body":
    for batch in loader:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1000)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for batch in loader:
        pass                   # the epoch's end waits for an order that never comes
except KeyboardInterrupt:
    print("stopped at", loader.epoch, loader.state_dict()["step"])
    raise
"""


@pytest.mark.parametrize("where", ["body", "end"])
def test_an_interrupt_never_hangs_on_the_thread(where):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, where], capture_output=True, text=True, timeout=60
    )
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode != 0
    assert (done.stdout == "stopped at 0 2\n") is (where == "end")


GOES_ON = """
import os, signal, threading, time
import numpy as np, torch
from dataclasses import dataclass
from torch.utils.data import DataLoader, TensorDataset
from wellorder import Steering
from wellorder.torch import ordered

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us may ignore it
@dataclass(frozen=True)
class Slow(Steering):
    def advance(self, state):
        time.sleep(2)
        return super().advance(state)

data = TensorDataset(torch.arange(8))
loader = ordered(DataLoader(data, 4), policy=Slow(), rows=np.eye(8))
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for batch in loader:
        pass                   # the epoch's end waits
except KeyboardInterrupt:
    print("stopped", flush=True)
print(sorted(int(x) for (batch,) in loader for x in batch), loader.epoch)
"""


def test_after_an_interrupt_at_an_epochs_end_the_loop_may_go_on():
    """Python takes a thread for ended whose `join` was interrupted; the order is waited for all the same."""
    done = subprocess.run([sys.executable, "-c", GOES_ON], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"stopped\n{list(range(8))} 2\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parents(make, gate):
    _, _, loader = make(Slow(), with_model=False, rows=known_rows())
    next(iter(loader))  # the thread begins, and hangs
    child = os.fork()
    if not child:
        let_threads_end()
        os._exit(0)
    until = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("policy", [Slow(), InParts()], ids=lambda policy: type(policy).__name__)
def test_a_forked_process_makes_the_order_that_its_parents_thread_was_at(policy, make, gate):
    """As one that saves what the training is by now, or goes on with the epoch."""
    model, optimizer, loader = make(policy, rows=known_rows(), observe=lambda epoch: epoch == 0)
    InParts.gate.clear()
    for batch in loader:
        step(model, optimizer, batch)
    batches = iter(loader)
    next(batches)  # the thread hangs: in this epoch's order, or in the next one's
    wanted = 30 - loader.batch_size
    child = os.fork()
    if not child:
        GATE.set()
        InParts.gate.set()
        signal.alarm(30)
        rest = sum(len(batch[1]) for batch in batches)
        whole = sorted(loader.order.tolist()) == list(range(30)) and loader.state_dict()["step"] == 0
        os._exit(0 if rest == wanted and whole and loader.epoch == 2 else 1)
    assert os.waitpid(child, 0) == (child, 0)
    GATE.set()
    InParts.gate.set()
    assert sum(len(batch[1]) for batch in batches) == wanted


def test_who_waits_long_for_an_order_is_told_how_far_it_is(make, monkeypatch, capsys):
    monkeypatch.setattr("wellorder.torch._schedule.PATIENCE", 0.02)

    class Late(Steering):
        def advancing(self, state):
            yield state.order[:10]
            time.sleep(0.2)
            yield state.order[10:]
            return self.open(state, state.epoch + 1)

        def advance(self, state):
            return super().advance(state)

    _, _, loader = make(Late(), with_model=False, rows=known_rows())
    list(loader)
    assert "wellorder: waiting for the order of epoch 1: 10 of 30 units\n" in capsys.readouterr().err
    advanced(Late(), loader._observer.state)
    assert "of epoch 2: 30 of 30 units" in capsys.readouterr().err


def test_who_waits_long_for_an_order_made_in_one_piece_is_told_so(make, monkeypatch, capsys):
    monkeypatch.setattr("wellorder._waiting.PATIENCE", 0.02)

    class Late(Herding):
        def open(self, state, epoch):
            time.sleep(0.2)
            return super().open(state, epoch)

    _, _, loader = make(Late(), with_model=False, rows=known_rows())
    assert "wellorder: waiting for the order of epoch 0: under way for 0 s\n" in capsys.readouterr().err
    advanced(Late(), loader._observer.state)
    assert "of epoch 1: under way" in capsys.readouterr().err
    advanced(Herding(), loader._observer.state)
    assert capsys.readouterr().err == ""
    assert not [each for each in threading.enumerate() if each.name == "wellorder-teller"]


# ---- resume ----


def trained(make, stop=None, state=None, *, epochs=6, policy=None, before=lambda: None, **options):
    """Train from the start or a state for so many epochs, or to so many steps in all.

    Returns the state, what was visited and the orders, by epoch and step.
    """
    model, optimizer, loader = make(policy, **options)
    if state is not None:
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    before()
    visits, orders, taken = {}, {}, 0 if state is None else state["taken"]
    while loader.epoch < epochs:
        orders[loader.epoch] = loader.order.tolist()
        epoch = loader.epoch
        for batch in loader:
            step(model, optimizer, batch)
            taken += 1
            visits[taken] = (epoch, batch[1].tolist())
            if taken == stop:
                break
        if taken == stop:
            break
    found = {"model": copy.deepcopy(model.state_dict()), "loader": loader.state_dict(), "taken": taken}
    return found, visits, orders, loader


def assert_same_end(whole, resumed):
    (state, visits, orders, loader), (state2, visits2, orders2, loader2) = whole, resumed
    assert {k: visits[k] for k in visits2} == visits2
    assert {k: orders[k] for k in orders2} == orders2
    assert loader.order.tolist() == loader2.order.tolist()
    assert all(torch.equal(v, state2["model"][k]) for k, v in state["model"].items())
    assert loader.report().order_error == loader2.report().order_error
    assert loader.report().observed == loader2.report().observed
    for name in ("rows", "known", "order", "checksum"):
        torch.testing.assert_close(
            state["loader"]["policy"][name], state2["loader"]["policy"][name], rtol=0, atol=0
        )


# 30 examples in batches of 8 are 4 steps: steps 1 and 2 lie in epoch 0, which is observed; 4 is its last; 13
# and 14 lie in epoch 3, which is not; 16 is the last of that one; 17 lies in epoch 4, observed again.
@pytest.mark.parametrize("policy", [Steering(), Herding(3)], ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("at", [1, 2, 4, 8, 12, 13, 14, 16, 17, 20])
def test_a_resumed_run_is_the_uninterrupted_one(at, policy, make):
    whole = trained(make, policy=policy)
    state, *_ = trained(make, at, policy=policy)
    assert state["taken"] == at
    assert_same_end(whole, trained(make, state=state, policy=policy, workers=2 if at == 13 else 0))


@pytest.mark.parametrize("signals", ["sketch", MicroBatch(64)])
def test_a_run_resumed_at_every_step_is_the_uninterrupted_one(signals, make):
    whole = trained(make, signals=signals)
    state = None
    for at in range(1, 24):
        state, *_ = trained(make, at, state, signals=signals)
    assert_same_end(whole, trained(make, state=state, signals=signals))


@pytest.mark.parametrize("at", [2, 3, 6, 17])
def test_rows_that_are_shown_beside_the_training_change_nothing(at, make, monkeypatch):
    """As on a GPU: every batch's rows go to the policy in a thread; saved and resumed in between."""
    whole = trained(make)
    monkeypatch.setattr(_observing, "BESIDE", {"cpu"})
    monkeypatch.setattr(_observing, "ROOM_IF_KEPT", 1)
    state, *_ = trained(make, at)
    assert_same_end(whole, trained(make, state=state))


def test_rows_that_were_given_are_in_the_state(make):
    options = {"rows": known_rows(), "with_model": False}
    whole = trained(make, **options)
    state, *_ = trained(make, 6, **options)
    others = {**options, "rows": known_rows(seed=1)}
    with pytest.warns(UserWarning, match="rows given to this loader are not those"):
        resumed = trained(make, state=state, **others)
    assert_same_end(whole, resumed)


@pytest.mark.parametrize("at", [13, 14, 16])
def test_a_state_taken_while_the_thread_is_busy_resumes_exactly(at, make, gate):
    options = {"policy": Slow(), "observe": "auto"}
    gate.set()
    whole = trained(make, **options)
    gate.set()
    # Closed when epoch 3 begins: its thread hangs while the state is taken, in mid-epoch or at its last step.
    model, optimizer, loader = make(**options)
    taken = 0
    while True:
        if loader.epoch == 3:
            gate.clear()
        for batch in loader:
            step(model, optimizer, batch)
            taken += 1
            if taken == at:
                break
        if taken == at:
            break
    assert loader._next._thread.is_alive()
    state = {"model": model.state_dict(), "loader": loader.state_dict(), "taken": taken}
    gate.set()
    assert_same_end(whole, trained(make, state=state, **options))


def test_a_state_loaded_while_the_thread_is_busy_drops_what_it_makes(make, gate):
    options = {"policy": Slow(), "rows": known_rows(), "with_model": False}
    _, _, loader = make(**options)
    start = loader.state_dict()
    next(iter(loader))  # the thread begins on epoch 1, and hangs
    for _ in range(2):
        gate.set()
        list(loader)
    gate.clear()
    next(iter(loader))
    loader.load_state_dict(start)
    assert (loader.epoch, loader._step) == (0, 0)
    gate.set()
    orders = []
    for _ in range(3):
        orders.append(loader.order.tolist())
        assert len(list(loader)) == len(loader)
    assert orders == [order.tolist() for order in itertools.islice(balanced(known_rows(), seed=3), 3)]


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_state_of_an_epochs_last_step_goes_on_with_the_next_epoch(epoch, make):
    model, optimizer, loader = make()
    while loader.epoch <= epoch:
        for number, batch in enumerate(loader):
            step(model, optimizer, batch)
            if loader.epoch == epoch and number == len(loader) - 1:
                state = loader.state_dict()
    _, _, other = make()
    other.load_state_dict(state)
    assert (other.epoch, other._step) == (epoch + 1, 0)
    assert other.order.tolist() == loader.order.tolist()
    assert len(list(other)) == len(other)


def test_a_state_loaded_into_a_loader_that_was_trained_warns_of_nothing(make):
    model, optimizer, loader = make()
    for number, batch in enumerate(loader):
        step(model, optimizer, batch)
        if number == len(loader) - 1:
            state = loader.state_dict()
    for batch in itertools.islice(loader, 2):
        step(model, optimizer, batch)
    loader.load_state_dict(state)  # warnings are errors here
    assert loader.epoch == 1


def test_a_mid_epoch_state_stays_as_it_was_when_training_goes_on(make):
    model, optimizer, loader = make()
    for number, batch in enumerate(itertools.chain.from_iterable(loader for _ in range(4))):
        step(model, optimizer, batch)
        if number == 13:
            state = loader.state_dict()
            before = {name: copy.deepcopy(value) for name, value in state["policy"].items()}
    for name, value in before.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, state["policy"][name])


# ---- rows that are known before training ----


@pytest.mark.parametrize("policy", [None, Herding(2)], ids=str)
def test_rows_alone_give_the_orders_of_balanced(policy, make):
    rows = known_rows()
    model, optimizer, loader = make(policy, with_model=False, rows=rows)
    wanted = [order.tolist() for order in itertools.islice(balanced(rows, policy=policy, seed=3), 4)]
    orders = []
    for _ in range(4):
        orders.append(loader.order.tolist())
        for batch in loader:
            step(model, optimizer, batch)
            assert our_hooks(model) == []
    assert orders == wanted
    assert not loader.observing
    assert "no model was given" in str(loader.report())


def test_given_rows_shape_epoch_zero_and_stay_beside_observed_ones(make, train):
    rows = known_rows(200)
    model, _, loader = make(n=200, rows=rows)
    assert loader.order.tolist() == next(balanced(rows, seed=3)).tolist()
    assert our_hooks(model)
    assert loader.report().rows == "200 of 200 units, given before training"
    train(loader, model)
    state = loader._observer.state
    np.testing.assert_array_equal(state.rows[:, : rows.shape[1]], rows)
    policy = Steering()
    first = policy.init(200, seed=3, rows=rows)
    alone = policy.observe(first, first.order, state.latest[first.order])
    assert loader.order.tolist() == policy.advance(alone).order.tolist()
    beside = "beside what was given before training"
    assert loader.report().rows == f"200 of 200 units, last seen in epoch 0, {beside}"
    vs_shuffle = loader.metrics()["order/error_vs_shuffle"]
    assert vs_shuffle == error_vs_shuffle(state.latest, loader.order, every=loader.batch_size)


@pytest.mark.parametrize("policy", [Steering(), Herding(2), BalancedCohorts(4)], ids=str)
@pytest.mark.parametrize("resumed", [False, True])
def test_given_rows_as_long_as_observed_ones_stay_beside_those(policy, resumed, make):
    """A feature's and a gradient's row have no inner product, also where an epoch is left half-way."""
    _, _, plain = make(policy, n=40)
    length = plain.spec.size if plain.spec is not None else 0
    model, optimizer, loader = make(policy, n=40, rows=1e6 * np.ones((40, length), np.float32))
    seen = set()
    for batch in loader:
        seen |= set(loader.units.tolist())
        step(model, optimizer, batch)
        if resumed and len(seen) == 8:
            state = loader.state_dict()
            model, optimizer, loader = make(policy, n=40, rows=1e6 * np.ones((40, length), np.float32))
            loader.load_state_dict(state)
            assert loader.report().rows.startswith("8 of 40 units, last seen in epoch 0, beside")
            break
        if len(seen) == 24:
            break
    if resumed:
        for batch in itertools.islice(loader, 2):
            seen |= set(loader.units.tolist())
            step(model, optimizer, batch)
    next(iter(loader))  # opens the next epoch
    state = loader._observer.state
    assert state.latest.shape[1] == length
    assert set(np.flatnonzero(state.known > 0).tolist()) == seen
    assert np.abs(state.latest).max() < 1e5
    assert (state.rows[:, :length] == 1e6).all()
    assert loader.report().rows.startswith("24 of 40 units, last seen in epoch 0, beside")


def test_given_rows_stay_if_all_that_was_observed_is_not_finite(make):
    model, optimizer, loader = make(rows=known_rows())
    for batch in loader:
        optimizer.zero_grad()
        (functional.cross_entropy(model(batch[0]), batch[1]) * float("nan")).backward()
    assert loader.report().rows == "30 of 30 units, given before training"


def test_an_epoch_with_a_nan_in_every_batch_is_seen_all_the_same(make):
    model, _, loader = make()
    for x, y in loader:
        losses = functional.cross_entropy(model(x), y, reduction="none")
        (losses * torch.tensor([float("nan")] + [1.0] * (len(y) - 1))).mean().backward()
        model.zero_grad()
    assert loader.report().rows == "26 of 30 units, last seen in epoch 0"
    assert loader.metrics()["order/row_age"] == 1


def test_given_rows_serve_until_an_epoch_is_observed(make, train):
    rows = known_rows()
    model, _, loader = make(rows=rows, observe=lambda epoch: epoch == 2)
    orders = train(loader, model, 3)
    wanted = itertools.islice(balanced(rows, seed=3), 3)
    assert [order.tolist() for order in orders] == [order.tolist() for order in wanted]
    assert loader.order.tolist() != list(itertools.islice(balanced(rows, seed=3), 4))[3].tolist()


@pytest.mark.parametrize(
    "kind", [np.asarray, torch.as_tensor, lambda rows: rows.tolist()], ids=["numpy", "torch", "list"]
)
def test_rows_may_be_arrays_tensors_or_lists(kind, make):
    _, _, loader = make(with_model=False, rows=kind(known_rows()))
    assert loader.order.tolist() == next(balanced(known_rows(), seed=3)).tolist()


def test_the_callers_rows_are_neither_kept_nor_changed(make, train):
    rows = known_rows()
    before = rows.copy()
    model, _, loader = make(rows=rows)
    train(loader, model, 3)
    np.testing.assert_array_equal(rows, before)


def test_without_rows_and_gradients_the_order_is_a_fresh_shuffle(make):
    _, _, loader = make()
    for epoch in range(3):  # nothing is trained
        assert loader.order.tolist() == shuffled(30, 3, epoch).tolist()
        list(loader)
    assert loader.report().rows == "none yet: the order is a shuffle"


NAN = known_rows()
NAN[4, 2] = np.nan


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": known_rows(29)}, "29.*30"),
        ({"rows": known_rows(31), "with_model": False}, "31.*30"),
        ({"rows": NAN}, r"rows\[4\].*NaN"),
        ({"rows": NAN, "with_model": False}, r"rows\[4\].*NaN"),
        ({"rows": known_rows()[:, 0]}, "rows.*2-D"),
        ({"with_model": False}, "nothing to order by.*features"),
        ({"with_model": False, "policy": PairGraB()}, "nothing to order by"),
        ({"rows": known_rows(), "policy": PairGraB()}, r"PairGraB takes no rows.*Steering\(\)"),
        ({"rows": known_rows(), "policy": RandomReshuffling()}, "RandomReshuffling takes no rows"),
        ({"rows": known_rows(), "signals": "exact"}, "PairGraB takes no rows"),
        ({"rows": known_rows(), "signals": "batch"}, "micro-batches.*leave one out"),
        ({"rows": known_rows(), "signals": MicroBatch(8)}, "micro-batches.*leave one out"),
        ({"rows": known_rows(), "with_model": False, "signals": "sketch"}, "signals='sketch', model=None"),
        ({"rows": known_rows(), "with_model": False, "signals": "ghost"}, "signals='ghost'"),
    ],
)
def test_what_cannot_be_ordered_by_is_refused_with_the_cure(options, words, make):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_a_compiled_model_with_rows_is_ordered_by_them_alone(make_model, make_loader):
    model = torch.compile(make_model(dtype=torch.float32), backend="eager")
    loader = ordered(make_loader(dtype=torch.float32), model, rows=known_rows(), seed=3)
    assert loader.order.tolist() == next(balanced(known_rows(), seed=3)).tolist()
    assert loader.report().signals == "none"
    assert our_hooks(model) == []


# ---- metrics and report ----


def test_metrics_are_a_flat_dict_of_numbers(make, train):
    model, _, loader = make(n=200, batch=4)
    first = loader.metrics()
    assert first == {"order/epoch": 0.0, "order/observed": 1.0, "order/known": 0.0, "order/overhead": 0.0}
    ages = []
    for _ in range(7):
        train(loader, model)
        found = loader.metrics()
        assert set(found) == {*first, "order/row_age", "order/error_vs_shuffle"}
        assert all(type(value) is float for value in found.values())
        assert found["order/known"] == 1.0
        assert 0 < found["order/overhead"] < 1
        assert found["order/error_vs_shuffle"] < 0.8  # rows of 500 numbers, of 200 examples
        ages.append((found["order/epoch"], found["order/observed"], found["order/row_age"]))
    assert ages == [(1, 1, 1), (2, 1, 1), (3, 0, 1), (4, 1, 2), (5, 0, 1), (6, 0, 2), (7, 0, 3)]


def test_known_rows_give_less_than_six_tenths_of_a_shuffles_error_and_a_shuffle_about_all(make):
    rows = known_rows(400)
    _, _, loader = make(n=400, batch=4, with_model=False, rows=rows)
    assert loader.metrics()["order/error_vs_shuffle"] < 0.6
    one = loader._observer
    one.state = copy.copy(one.state)
    shuffles = []
    for epoch in range(20):
        object.__setattr__(one.state, "order", shuffled(400, 9, epoch))
        shuffles.append(loader.metrics()["order/error_vs_shuffle"])
    assert 0.8 < np.mean(shuffles) < 1.25


@pytest.mark.parametrize("policy", [PairGraB(), RandomReshuffling()], ids=lambda p: type(p).__name__)
def test_policies_that_keep_no_rows_have_metrics_too(policy, make, train):
    model, _, loader = make(policy)
    train(loader, model)
    found = loader.metrics()
    assert found["order/epoch"] == 1
    assert found["order/observed"] == float(policy == PairGraB())
    assert "order/error_vs_shuffle" not in found


def test_metrics_only_ask(make):
    found = []
    for asked in (False, True):
        model, optimizer, loader = make()
        for _ in range(5):
            for batch in loader:
                if asked:
                    loader.metrics()
                step(model, optimizer, batch)
                if asked:
                    loader.metrics()
        found.append((loader.order.tolist(), loader.report().order_error, loader.report().observed))
    assert found[0] == found[1]


def test_an_epoch_in_which_nothing_was_seen_makes_no_rows_younger(make, train):
    model, _, loader = make(observe="always")
    train(loader, model)
    for _ in loader:  # an epoch without a backward pass, as in a test of the data
        pass
    assert loader.metrics()["order/row_age"] == 2
    assert loader.report().rows == "30 of 30 units, last seen in epoch 0"


def test_the_report_says_in_words_what_is_known_and_from_when(make, train):
    model, _, loader = make()
    assert "known        none yet: the order is a shuffle" in str(loader.report())
    train(loader, model, 4)
    text = str(loader.report())
    assert "known        30 of 30 units, last seen in epoch 2" in text
    assert "% of the time so far" in text
    _, _, other = make(PairGraB())
    assert "known        none kept" in str(other.report())
    assert [(epoch, seen) for epoch, seen, _ in loader.report().latest] == list(
        enumerate([True, True, True, False])
    )
    assert re.search(r"last epochs +0 \(observed\) .* %, .*2 \(observed\) .* %, 3 \d+\.\d %", text)
    model, _, other = make(with_model=False, rows=known_rows())
    train(other, model, 2)
    assert "no step was observed" in str(other.report())


@pytest.mark.parametrize("leave", ["break", "islice"])
def test_an_epoch_that_was_left_is_in_the_report(leave, make, train):
    model, optimizer, loader = make(n=60)
    train(loader, model)
    batches = itertools.islice(loader, 5) if leave == "islice" else loader
    for number, batch in enumerate(batches):
        step(model, optimizer, batch)
        if number == 4:
            break
    del batches
    report = loader.report()
    assert len(report.order_error) == 2
    assert report.order_error[1] > 0
    assert report.observed == 60 + 4 * 8  # the last batch is settled when the next is drawn
    clock = loader._wall_so_far()
    time.sleep(0.02)
    assert loader._wall_so_far() == clock  # nor does time go on
    list(loader)
    assert len(loader.report().order_error) == 2
    assert loader.report().observed == 60 + 5 * 8


def test_the_time_of_a_first_epoch_counts_while_it_runs(make):
    model, optimizer, loader = make()
    shares = []
    for batch in loader:
        step(model, optimizer, batch)
        shares.append(loader.report().overhead)
    assert all(0 < share < 1 for share in shares[1:])


def test_a_warning_that_nothing_was_observed_names_the_users_line_and_comes_once(make, make_model):
    _, _, loader = make()
    other = make_model(dtype=torch.float32)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for batch in loader:
                step(other, optimizer, batch)
    assert ["no example of it was observed" in str(w.message) for w in caught] == [True]
    assert Path(caught[0].filename).name == "test_observe.py"


# ---- a DataLoader ----


def test_it_is_a_data_loader_with_the_settings_of_the_one_given(make_model, make_loader):
    given = make_loader(num_workers=2, pin_memory=False, prefetch_factor=3, drop_last=True)
    loader = ordered(given, make_model())
    assert isinstance(loader, DataLoader)
    assert type(loader) is OrderedLoader
    for name in ("dataset", "batch_size", "drop_last", "num_workers", "prefetch_factor", "collate_fn"):
        assert getattr(loader, name) is getattr(given, name)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_copies_are_refused_with_the_cure(copied, make):
    _, _, loader = make()
    with pytest.raises(TypeError, match=r"cannot be copied or pickled.*state_dict\(\)"):
        copied(loader)


class Indices(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("drop_last", [False, True])
def test_its_samplers_give_the_present_order(drop_last):
    loader = ordered(DataLoader(Indices(), 4, drop_last=drop_last), rows=known_rows(11))
    for _ in range(3):
        batches = list(loader.batch_sampler)
        flat = list(loader.sampler)
        assert flat == [example for batch in batches for example in batch]
        assert len(loader.sampler) == len(flat)
        assert len(loader.batch_sampler) == len(batches) == len(loader)
        if not drop_last:
            assert flat == loader.order.tolist()
        assert [batch.tolist() for batch in loader] == batches


def test_its_samplers_give_the_rest_of_a_resumed_epoch():
    def make():
        return ordered(DataLoader(Indices(), 4), rows=known_rows(11))

    loader, other = make(), make()
    for _ in loader:
        other.load_state_dict(loader.state_dict())
        break
    assert list(other.batch_sampler) == list(loader.batch_sampler)[1:]
    assert list(other.sampler) == loader.order.tolist()[4:]
    assert (len(other.sampler), len(other.batch_sampler)) == (7, 2)


class Growing(Indices):
    n = 11

    def __len__(self):
        return self.n


def test_a_data_set_that_grew_is_refused_with_both_lengths():
    data = Growing()
    loader = ordered(DataLoader(data, 4), rows=known_rows(11))
    list(loader)
    data.n = 13
    with pytest.raises(ValueError, match=r"had 11 examples.*has 13 now.*ordered\(\.\.\.\) again"):
        list(loader)


def test_rows_of_features_balance_labels_in_every_batch():
    gen = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 50)  # stored by class
    x = gen.normal(size=(200, 6)) + labels[:, None]
    data = TensorDataset(torch.as_tensor(x), torch.as_tensor(labels))
    worst = []
    for rows in (features(x, labels), None):
        loader = (
            DataLoader(data, 20, shuffle=True, generator=torch.Generator().manual_seed(0))
            if rows is None
            else ordered(DataLoader(data, 20), rows=rows)
        )
        counts = [np.bincount(y, minlength=4) for _, y in loader]
        worst.append(np.abs(np.cumsum(counts, axis=0) - 5 * np.arange(1, 11)[:, None]).max())
    assert worst[0] < worst[1]


def test_the_sketch_of_unobserved_epochs_stays_the_same_projection(make):
    """Hooks that come back speak of the same coordinates: rows of two epochs can be compared."""
    model, optimizer, loader = make(signals=Sketch(size=64), observe=2)
    seen = []
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()  # no step: the gradients stay what they are
        if epoch % 2 == 0:
            seen.append(loader._observer.state.rows.copy())
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-4, atol=1e-6)


def test_a_linear_model_of_no_layers_to_sketch_keeps_its_schedule():
    class Raw(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x @ self.w

    model = Raw()
    loader = ordered(DataLoader(TensorDataset(torch.randn(12, 2)), 3), model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for (x,) in loader:
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            optimizer.step()
            assert bool(our_hooks(model)) is (epoch in AUTO)
    assert loader.report().observed == 3 * 4  # micro-batches
