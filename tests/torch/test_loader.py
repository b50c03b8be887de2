"""The loader keeps everything but the order: identity, lengths, workers, odd ends, and every kind of loop."""

import contextlib
import gc
import subprocess
import sys
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

from wellorder import (
    FlipFlop,
    GraB,
    Greedy,
    Herding,
    PairGraB,
    RandomReshuffling,
    ShuffleOnce,
    WithReplacement,
)
from wellorder._order import Needs
from wellorder.torch import Exact, MicroBatch, OrderedLoader, Sketch, ordered
from wellorder.torch._per_example.exact import ExactSource
from wellorder.torch._sketch import SketchSource

SIGNALS = ["exact", "sketch", "batch"]


def closed(source):
    """The signals of the batch that is open."""
    return source.signals(source.records.close())


class Numbers(Dataset):
    """Item i is the number i, so that a batch shows which examples it holds."""

    def __init__(self, n):
        self.n, self.note = n, "mine"

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([float(i), 1.0]), i


def visits(loader):
    return [batch[1].tolist() for batch in loader]


def flat(batches):
    return [i for batch in batches for i in batch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("signals", ["sketch", "batch"])
def test_every_example_comes_once_in_the_planned_order(workers, signals):
    loader = ordered(
        DataLoader(Numbers(11), 4, num_workers=workers), nn.Linear(2, 1), PairGraB(), signals=signals
    )
    for _ in range(2):
        order = loader.order.copy()
        batches = visits(loader)
        assert len(batches) == len(loader) == 3
        assert sorted(flat(batches)) == list(range(11))
        if signals == "sketch":
            assert flat(batches) == order.tolist()


def test_the_first_order_is_a_shuffle_and_depends_on_the_seed_alone():
    make = lambda seed: ordered(DataLoader(Numbers(50), 5), nn.Linear(2, 1), seed=seed)  # noqa: E731
    torch.manual_seed(1)
    one = make(7).order
    torch.manual_seed(2)
    assert one.tolist() == make(7).order.tolist() != make(8).order.tolist()
    assert one.tolist() != list(range(50))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")  # on two cores
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("signals", SIGNALS)
def test_the_number_of_workers_changes_no_order(workers, signals, make_model, make_loader, train):
    policy = PairGraB() if signals == "exact" else Herding(2)
    orders = []
    for count in (0, workers):
        model = make_model()
        loader = ordered(make_loader(num_workers=count), model, policy, signals=signals)
        orders.append([*train(loader, model, 2), loader.order])
    np.testing.assert_array_equal(*orders)


def test_persistent_workers_and_an_epoch_left_early(make_model, make_loader):
    model = make_model()
    loader = ordered(make_loader(num_workers=2, persistent_workers=True), model, PairGraB())
    first = loader.order.copy()
    for step, _ in enumerate(loader):
        if step == 1:
            break
    seen = [batch[1].tolist() for batch in loader]
    assert loader.epoch == 2
    assert len(seen) == len(loader)
    assert sorted(loader.order) == sorted(first)


@pytest.mark.parametrize("signals", ["sketch", "batch"])
@pytest.mark.parametrize("policy", [ShuffleOnce(), RandomReshuffling(), FlipFlop(), PairGraB()], ids=str)
def test_drop_last_starves_nobody(policy, signals):
    loader = ordered(DataLoader(Numbers(10), 4, drop_last=True), nn.Linear(2, 1), policy, signals=signals)
    counts = np.zeros(10, int)
    for _ in range(10):
        batches = visits(loader)
        assert [len(b) for b in batches] == [4, 4]
        assert len(set(flat(batches))) == 8
        counts[flat(batches)] += 1
    assert set(counts) == {8}


def test_draws_with_replacement_stay_as_they_were_drawn():
    loader = ordered(DataLoader(Numbers(10), 4, drop_last=True), nn.Linear(2, 1), WithReplacement())
    order = loader.order.copy()
    assert flat(visits(loader)) == order[:8].tolist()


def test_micro_batches_are_cut_from_a_shuffle_and_stay_together():
    loader = ordered(DataLoader(Numbers(12), 4), nn.Linear(2, 1), RandomReshuffling(), signals="batch")
    one, two = ({frozenset(b) for b in visits(loader)} for _ in range(2))
    assert one == two
    assert frozenset(range(4)) not in one


def test_collate_worker_setup_and_the_data_sets_own_attributes_pass_through():
    noted = []
    given = DataLoader(
        Numbers(6),
        3,
        collate_fn=lambda items: {"x": torch.stack([x for x, _ in items]), "i": [i for _, i in items]},
    )
    loader = ordered(given, nn.Linear(2, 1))
    for batch in loader:
        noted += batch["i"]
    assert sorted(noted) == list(range(6))
    assert loader.batch_size == 3
    assert loader.dataset is given.dataset
    assert loader._inner.dataset.note == "mine"


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_set_later_counts_from_the_next_epoch_on_as_it_does_in_a_data_loader(workers):
    """Batches of another size or kind in later epochs, say; and no workers, to find a mistake."""
    loader = ordered(DataLoader(Numbers(6), 3, num_workers=workers), nn.Linear(2, 1), observe=2)
    for epoch in range(4):  # observed or not

        def collate(items, epoch=epoch):
            info = get_worker_info()
            return epoch, info is not None and info.num_workers

        loader.collate_fn = collate
        assert list(loader) == [(epoch, workers and 1)] * 2
    loader.num_workers, loader.prefetch_factor = 2 - 2 * workers, None if workers else 2
    for _ in range(2):
        assert [count for _, count in loader] == [(not workers) and 2] * 2


class Broken(Numbers):
    """One of its files cannot be read."""

    def __getitem__(self, i):
        if i == 3:
            raise OSError("file 3")
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_cannot_be_read_may_be_skipped_as_with_a_data_loader(workers):
    model = nn.Linear(2, 1)
    loader = ordered(DataLoader(Broken(12), 3, num_workers=workers), model)
    for epoch in range(4):
        batches, read, errors = iter(loader), [], []
        order = loader.order.tolist()
        for step in range(len(loader)):
            try:
                x, i = next(batches)
            except OSError as error:
                errors.append((str(error).strip()[-6:], step))
            else:
                read += i.tolist()
                model(x).sum().backward()
        broken = order.index(3) // 3
        assert errors == [("file 3", broken)]
        assert read == order[: 3 * broken] + order[3 * broken + 3 :]
        assert list(batches) == []
        assert loader.epoch == epoch + 1
    report = loader.report()
    assert (report.observed, report.unobserved) == (3 * 9, 0)


def test_an_error_that_was_caught_keeps_no_batch_and_no_iterator_alive():
    loader, batches = ordered(DataLoader(Broken(12), 3), nn.Linear(2, 1)), []
    gc.disable()  # who is held in a circle waits for it
    try:
        for _ in range(2):  # in the second epoch the first one's iterator is gone
            iterator = iter(loader)
            batches.append(weakref.ref(iterator))
            with contextlib.suppress(OSError):
                batches += [weakref.ref(x) for x, _ in iterator]
            del iterator
            assert [batch for batch in batches if batch() is not None] == []
    finally:
        gc.enable()


def test_a_batch_that_cannot_be_read_does_not_come_first_for_ever():
    loader = ordered(DataLoader(Broken(4), 4), nn.Linear(2, 1))
    for epoch in range(3):
        with pytest.raises(OSError, match="file 3"):
            list(loader)
        assert loader.epoch == epoch


def test_data_sets_that_fetch_whole_batches_do_so_still():
    class Whole(Numbers):
        def __getitems__(self, indices):
            return [(torch.zeros(2), -i) for i in indices]

    loader = ordered(DataLoader(Whole(4), 2), nn.Linear(2, 1))
    assert sorted(flat(visits(loader))) == [-3, -2, -1, 0]


def test_the_global_random_numbers_are_left_to_the_training(make_model, make_loader):
    loader = ordered(make_loader(), make_model())
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    for _ in loader:
        pass
    assert torch.rand(1) == expected


# ---- every kind of loop ----


def signs_after_one_epoch(loader):
    return loader._observer.state.signs


@pytest.mark.parametrize("signals", SIGNALS)
def test_a_batch_without_backward_stays_unobserved(signals, make_model, make_loader):
    model = make_model()
    loader = ordered(make_loader(n=24, batch=6), model, GraB(), signals=signals)
    for step, (x, y) in enumerate(loader):
        if step != 1:
            functional.cross_entropy(model(x), y).backward()
        if step == 3:
            skipped = loader.order[6:12] if signals != "batch" else loader.order[1:2]
            state = loader.state_dict()["policy"]
            signs = state["signs"].numpy()
            at = slice(6, 12) if signals != "batch" else slice(1, 2)
            assert not signs[at].any()
            assert np.delete(signs, np.arange(len(signs))[at]).all()
    assert loader.report().unobserved == len(skipped)
    assert sorted(loader.order) == list(range(loader.report().units))


@pytest.mark.parametrize("signals", SIGNALS)
def test_evaluation_in_the_middle_changes_nothing(signals, make_model, make_loader):
    orders = []
    for evaluate in (False, True):
        model = make_model("lenet")
        loader = ordered(make_loader("lenet"), model, PairGraB(), signals=signals)
        for x, y in loader:
            if evaluate:
                with torch.no_grad():
                    model(x[:3])
                model.eval()
                model(x[:2])  # with a graph, but never backward
                model.train()
            functional.cross_entropy(model(x), y).backward()
            if evaluate:
                model(x[:1])
        orders.append(loader.order.tolist())
    assert orders[0] == orders[1]


@pytest.mark.parametrize("signals", SIGNALS)
def test_accumulation_clipping_and_several_backward_passes_see_each_batch_alone(
    signals, make_model, make_loader
):
    orders = []
    for style in ("plain", "accumulate", "two losses", "clip"):
        model = make_model()
        loader = ordered(make_loader(), model, PairGraB(), signals=signals)
        for x, y in loader:
            if style != "accumulate":
                model.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            if style == "two losses":
                (loss / 2).backward()
                loss = functional.cross_entropy(model(x), y) / 2
            loss.backward()
            if style == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        orders.append(loader.order.tolist())
    assert orders.count(orders[0]) == 4


def test_passes_over_other_data_can_be_ignored(make_model, make_loader):
    orders = []
    for extra in (False, True):
        model = make_model()
        loader = ordered(make_loader(), model, PairGraB(), signals="exact")
        for x, y in loader:
            if extra:
                with loader.ignore():
                    model(torch.randn(3, 1, 12, 12, dtype=x.dtype)).sum().backward()
            functional.cross_entropy(model(x), y).backward()
        orders.append(loader.order.tolist())
    assert orders[0] == orders[1]


@pytest.mark.parametrize("signals", ["exact", "sketch"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_its_unit_unobserved(signals, poison, make_model, make_loader):
    model = make_model()
    loader = ordered(make_loader(n=24, batch=6), model, GraB(), signals=signals)
    for step, (x, y) in enumerate(loader):
        weights = torch.ones(len(x), dtype=x.dtype)
        if step == 1:
            weights[2] = poison
        (functional.cross_entropy(model(x), y, reduction="none") * weights).mean().backward()
        if step == 2:
            signs = loader.state_dict()["policy"]["signs"].numpy()
            assert np.flatnonzero(signs == 0).tolist() == [8, *range(18, 24)]
    report = loader.report()
    assert (report.not_finite, report.observed) == (1, 23)
    assert np.isfinite(report.order_error[0])


def test_a_micro_batch_that_is_not_finite_stays_unobserved(make_model, make_loader):
    model = make_model()
    loader = ordered(make_loader(n=24, batch=6), model, Herding(), signals="batch")
    for step, (x, y) in enumerate(loader):
        (functional.cross_entropy(model(x), y) * (float("inf") if step == 1 else 1.0)).backward()
    assert (loader.report().not_finite, loader.report().observed) == (1, 3)


@pytest.mark.parametrize("signals", ["exact", "sketch", "batch"])
def test_a_changing_loss_scale_is_undone(signals, make_model, make_loader):
    class Scale:
        """Doubles with every batch, as a growing GradScaler does."""

        value = 1.0

        def scale(self, loss):
            return loss * self.value

    orders = []
    for scaler in (None, Scale()):
        model = make_model(dtype=torch.float32)
        loader = ordered(make_loader(dtype=torch.float32), model, PairGraB(), signals=signals, scaler=scaler)
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler:
                scaler.value *= 2.0
        orders.append(loader.order.tolist())
    assert orders[0] == orders[1]


@pytest.mark.parametrize("signals", SIGNALS)
def test_a_real_grad_scaler_that_overflows_skips_the_step_and_the_units(signals, make_model, make_loader):
    model = make_model(dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
    loader = ordered(make_loader(dtype=torch.float32), model, GraB(), signals=signals, scaler=scaler)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y) * (1e30 if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    report = loader.report()
    assert report.not_finite == (1 if signals == "batch" else 8)
    assert report.observed == report.units - report.not_finite


@pytest.mark.parametrize("signals", SIGNALS)
def test_autocast_in_bfloat16(signals, kind, make_model, make_loader):
    model = make_model(kind, dtype=torch.float32)
    policy = PairGraB() if signals == "exact" else Herding()
    loader = ordered(make_loader(kind, dtype=torch.float32), model, policy, signals=signals)
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
    assert loader.report().observed == loader.report().units


def test_a_model_moved_to_another_type_after_the_call(make_model, make_loader, train):
    model = make_model(dtype=torch.float32)
    loader = ordered(make_loader(), model)
    train(loader, model.double())
    assert loader.report().observed == 30


def test_the_mean_loss_is_undone_so_that_a_short_batch_weighs_as_it_should(make_model, make_loader):
    orders = []
    for reduction, spec in (("mean", Exact()), ("sum", Exact(mean=False))):
        model = make_model()
        loader = ordered(make_loader(n=29), model, PairGraB(), signals=spec)
        for x, y in loader:
            functional.cross_entropy(model(x), y, reduction=reduction).backward()
        orders.append(loader.order.tolist())
    assert orders[0] == orders[1]


def test_one_epoch_at_a_time(make_model, make_loader):
    loader = ordered(make_loader(), make_model())
    one, two = iter(loader), iter(loader)
    next(one)
    next(two)
    with pytest.raises(RuntimeError, match="once at a time"):
        next(one)


def test_hooks_can_be_taken_off(make_model, make_loader, train):
    model = make_model()
    loader = ordered(make_loader(), model, PairGraB(), signals="exact")
    train(loader, model)
    loader.remove()
    order = loader.order.copy()
    train(loader, model)
    np.testing.assert_array_equal(loader.order, order)
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(p._backward_hooks for p in model.parameters())


# ---- signals, and what the report says about them ----


def test_herding_on_sketches_lowers_the_order_error(make_model, make_loader, train):
    errors = {}
    for policy in (RandomReshuffling(), Herding()):
        model = make_model(dtype=torch.float32)
        loader = ordered(make_loader(n=600, batch=4, dtype=torch.float32), model, policy, signals="sketch")
        train(loader, model, epochs=3, lr=1e-3)
        errors[type(policy)] = loader.report().order_error
    assert len(errors[Herding]) == 3
    assert errors[Herding][0] == pytest.approx(errors[RandomReshuffling][0], rel=1e-6)
    assert errors[Herding][2] < 0.7 * errors[RandomReshuffling][2]


@pytest.mark.parametrize("signals", SIGNALS)
def test_the_estimate_is_near_the_order_error_of_the_true_gradients(
    signals, make_model, make_loader, make_data
):
    from wellorder import order_error

    model = make_model("lenet")
    loader = ordered(make_loader("lenet", n=240, batch=8), model, PairGraB(), signals=signals)
    order, rows = loader.order.copy(), {}
    for x, y in loader:
        functional.cross_entropy(model(x), y).backward()
    loader.remove()
    for u, (x, y) in enumerate(make_data("lenet", 240)):
        model.zero_grad()
        functional.cross_entropy(model(x[None]), y[None]).backward()
        rows[u] = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
    matrix = np.stack([rows[u] for u in range(240)])
    if signals == "batch":
        members = loader._batching.batches(np.arange(30), 0)
        matrix, order, every = np.stack([matrix[m].mean(0) for m in members]), order, 1
    else:
        every = 8
    assert loader.report().order_error[0] == pytest.approx(order_error(matrix, order, every=every), rel=0.35)


@pytest.mark.parametrize("kind_of", ["linear", "conv", "grouped", "embedding"])
def test_sketches_keep_inner_products_on_average(kind_of):
    torch.manual_seed(0)
    model, x = {
        "linear": (nn.Linear(20, 30), torch.randn(4, 3, 20)),
        "conv": (nn.Conv2d(12, 20, 1, bias=False), torch.randn(4, 12, 6, 6)),
        "grouped": (nn.Conv1d(24, 40, 1, groups=2, bias=False), torch.randn(4, 24, 9)),
        "embedding": (nn.Embedding(50, 30, padding_idx=3), torch.randint(0, 50, (4, 6))),
    }[kind_of]
    exact = ExactSource(Exact(mean=False), model)
    sources = [SketchSource(Sketch(side=99, pool=False, mean=False), model, seed) for seed in range(100)]
    for source in (exact, *sources):
        source.records.open(4)
    model(x).pow(3).sum().backward()
    truth = closed(exact).gram()
    grams = torch.stack([rows @ rows.T for rows in map(closed, sources)])
    noise = grams.std(0) / 10
    assert bool(((grams.mean(0) - truth).abs() < 4.5 * noise + 1e-4 * truth.diagonal().max()).all())


def test_the_report_says_what_was_chosen_and_why(make_model, make_loader, train):
    model = make_model("transformer", dtype=torch.float32)
    loader = ordered(make_loader("transformer"), model)
    train(loader, model, 2)
    report = loader.report()
    assert report.signals.startswith("Sketch(size=512")
    assert report.epoch == 2
    assert report.observed == 60
    assert report.seconds_per_step > 0
    assert set(report.coverage) == {name for name, _ in model.named_parameters()}
    text = str(report)
    for word in ("Steering", "ms an observed step", "order error", "tokens.weight", "numbers an example"):
        assert word in text


@pytest.mark.parametrize(
    ("policy", "model", "kind_of"),
    [
        (PairGraB(), nn.Linear(2, 1), Sketch),
        (RandomReshuffling(), nn.Linear(2, 1), type(None)),
        (PairGraB(), nn.LSTM(2, 2), Exact),
        (Herding(), nn.LSTM(2, 2), MicroBatch),
    ],
)
def test_auto_takes_what_policy_and_model_allow(policy, model, kind_of):
    assert isinstance(ordered(DataLoader(Numbers(4), 2), model, policy).spec, kind_of)


def test_auto_shortens_the_rows_of_huge_data_sets():
    class Huge(Numbers):
        pass

    loader = ordered(DataLoader(Huge(4_000_000), 64), nn.Linear(200, 100))
    assert loader.spec == Sketch(size=128)


# ---- compiled models ----


def test_a_compiled_model_is_ordered_by_micro_batches_or_refused(make_model, make_loader):
    compiled = torch.compile(make_model(dtype=torch.float32), backend="eager")
    assert isinstance(ordered(make_loader(), compiled).spec, MicroBatch)
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        ordered(make_loader(), compiled, PairGraB(), signals="exact")


@pytest.mark.filterwarnings("ignore")  # dynamo says where hooks break its graph
@pytest.mark.parametrize("signals", SIGNALS)
def test_a_model_compiled_after_it_was_ordered_keeps_its_hooks(signals, make_model, make_loader, train):
    orders = []
    for compiled in (False, True):
        model = make_model(dtype=torch.float32)
        loader = ordered(make_loader(dtype=torch.float32), model, PairGraB(), signals=signals)
        train(loader, torch.compile(model, backend="aot_eager") if compiled else model)
        orders.append(loader.order.tolist())
    assert orders[0] == orders[1]


# ---- bad input ----


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Endless(Dataset):
    def __getitem__(self, i):
        return i


ROWS = TensorDataset(torch.randn(6, 2))
LINEAR = nn.Linear(2, 1)
FROZEN = nn.Linear(2, 1).requires_grad_(False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ordered([1, 2], LINEAR), "loader=list.*DataLoader"),
        (lambda: ordered(DataLoader(Stream()), LINEAR), "iterable.*map-style"),
        (lambda: ordered(DataLoader(Endless(), sampler=[0, 1]), LINEAR), "no length.*__len__"),
        (lambda: ordered(DataLoader(TensorDataset(torch.zeros(0, 2))), LINEAR), "empty"),
        (
            lambda: ordered(DataLoader(ROWS, batch_sampler=[[0, 1], [2]]), LINEAR),
            "batch_sampler=list.*batch_size",
        ),
        (lambda: ordered(DataLoader(ROWS, batch_size=None), LINEAR), "batch_sampler=None.*batch_size"),
        (lambda: ordered(DataLoader(ROWS, 9, drop_last=True), LINEAR), "leaves nothing"),
        (
            lambda: ordered(
                DataLoader(ROWS, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 6, 6)), LINEAR
            ),
            "sampler=WeightedRandomSampler.*Subset",
        ),
        (lambda: ordered(DataLoader(ROWS), FROZEN), "no trainable parameters.*requires_grad"),
        (lambda: ordered(DataLoader(ROWS), "model"), "model=str"),
        (lambda: ordered(DataLoader(ROWS), LINEAR, "grab"), "policy='grab'"),
        (lambda: ordered(DataLoader(ROWS), LINEAR, signals="ghost"), "signals='ghost'.*sketch"),
        (lambda: ordered(DataLoader(ROWS), LINEAR, seed=-1), "seed=-1"),
        (lambda: ordered(DataLoader(ROWS), LINEAR, scaler=2.0), "scaler=2.0.*GradScaler"),
        (lambda: ordered(ordered(DataLoader(ROWS), LINEAR), LINEAR), "ordered already; pass the DataLoader"),
        (
            lambda: ordered(DataLoader(ROWS), LINEAR, Herding(), signals="exact"),
            "Herding keeps rows.*PairGraB",
        ),
        (lambda: ordered(DataLoader(ROWS), LINEAR, Greedy(), signals=Exact()), "Greedy keeps rows.*PairGraB"),
        (lambda: ordered(DataLoader(ROWS), nn.LSTM(2, 2), signals="sketch"), "no nn.Linear.*exact"),
        (lambda: Sketch(size=0), "size=0"),
        (lambda: MicroBatch(coordinates=0), "coordinates=0"),
    ],
)
def test_bad_input_is_refused_with_the_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("name", ["GraBProto", "PairGraBProto", "NicePermutation"])
def test_policies_that_want_gradients_before_the_epoch_are_refused(name):
    import wellorder

    with pytest.raises(ValueError, match=f"{name}.*loss.*Herding"):
        ordered(DataLoader(ROWS), LINEAR, getattr(wellorder, name)())


@pytest.mark.parametrize("signals", ["exact", "sketch"])
def test_a_batch_that_is_not_the_first_dimension_is_refused_with_the_cure(signals):
    class SequenceFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def forward(self, x):
            return self.inner(x.transpose(0, 1))

    model = SequenceFirst()
    loader = ordered(DataLoader(TensorDataset(torch.randn(6, 5, 2)), 3), model, PairGraB(), signals=signals)
    batches = iter(loader)
    (x,) = next(batches)
    with pytest.raises(ValueError, match=r"first dimension.*batch_first"):
        model(x).sum().backward()


def test_ordered_returns_an_ordered_loader():
    assert isinstance(ordered(DataLoader(ROWS), LINEAR), OrderedLoader)


@pytest.mark.parametrize(
    "conv", [nn.Conv2d(3, 8, 3, padding=1), nn.Conv1d(4, 6, 5, stride=2, groups=2)], ids=str
)
def test_a_thinned_sketch_sees_every_so_manyth_position(conv):
    """Where the other positions' gradients are zero, it is the whole sketch, times what was left out."""
    torch.manual_seed(0)
    x = torch.randn(2, conv.in_channels, *[15] * len(conv.kernel_size))
    out = conv(x)
    thin = -(-out.shape[2] // 4)
    mask = torch.zeros_like(out)
    mask[(..., *[slice(None, None, thin)] * (out.ndim - 2))] = 1
    rows = []
    for side in (4, 99):
        source = SketchSource(Sketch(side=side, mean=False), conv, 0)
        source.records.open(2)
        (conv(x).pow(2) * mask).sum().backward()
        rows.append(closed(source))
        source.remove()
    torch.testing.assert_close(rows[0], rows[1] * thin ** (out.ndim - 2), rtol=1e-4, atol=1e-3)


class Raw(nn.Module):
    """A model without a layer that can be sketched."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x):
        return x @ self.weight


@dataclass(frozen=True)
class Backwards:
    """A user's policy, which says nothing of what it keeps: it shows the last epoch's rows in reverse."""

    needs = Needs.SIGNALS

    def init(self, n, *, seed=0):
        return State(seed, 0, np.arange(n, dtype=np.int32))

    def observe(self, state, units, signals):
        assert isinstance(signals, np.ndarray)
        return state

    def advance(self, state):
        return replace(state, epoch=state.epoch + 1, order=state.order[::-1].copy())


@dataclass(frozen=True)
class State:
    seed: int
    epoch: int
    order: np.ndarray


@pytest.mark.parametrize("policy", [Greedy(), Backwards(), Herding()], ids=lambda p: type(p).__name__)
def test_policies_that_keep_rows_get_micro_batches_where_nothing_can_be_sketched(policy, train):
    data = TensorDataset(torch.randn(10, 2), torch.randint(0, 3, (10,)))
    model = Raw()
    loader = ordered(DataLoader(data, 4), model, policy)
    assert isinstance(loader.spec, MicroBatch)
    assert f"{type(policy).__name__} keeps rows" in loader.report().why
    train(loader, model, epochs=2)
    assert loader.report().observed == 6


def test_policies_that_need_products_get_exact_signals_where_nothing_can_be_sketched():
    assert isinstance(ordered(DataLoader(ROWS, 2), Raw(), PairGraB()).spec, Exact)


@pytest.mark.parametrize("signals", ["exact", Exact(mean=False)])
def test_exact_signals_without_a_policy_take_one_that_needs_no_rows(signals):
    assert isinstance(ordered(DataLoader(ROWS, 2), nn.Linear(2, 1), signals=signals).policy, PairGraB)


@pytest.mark.parametrize("policy", [Herding(), PairGraB()], ids=lambda p: type(p).__name__)
def test_a_report_only_asks(policy, make_model, make_loader):
    """Nothing is closed, counted twice or ordered anew for a question, asked as often as one likes."""
    found = []
    for asked in (False, True):
        model = make_model()
        loader = ordered(make_loader(), model, policy, signals="sketch")
        counts = []
        for _ in range(2):
            for step, (x, y) in enumerate(loader):
                before = loader._observer.state.order
                if asked:
                    report = loader.report()
                    counts.append(report.observed)
                    assert report.memory == loader.report().memory
                assert loader._observer.state.order is before
                loss = functional.cross_entropy(model(x), y)
                (loss * torch.nan if step == 2 else loss).backward()
        found.append((loader.order.tolist(), loader.report().order_error, loader.state_dict()["counts"]))
    assert found[0] == found[1]
    assert counts[:4] == [0, 8, 16, 16]
    assert loader.report().not_finite == 16


def test_without_torch_the_import_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import wellorder.torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "wellorder.torch needs PyTorch: pip install 'wellorder[torch]'" in ran.stderr
