"""Network tasks: a comparison of orders on a network and data of one's own, or on official files."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from wellorder import GraBProto, Herding, PairGraB, RandomReshuffling, Steering  # noqa: E402
from wellorder.experiments import Config, NetworkTask, compare, publish, task_of  # noqa: E402
from wellorder.experiments._known_rows import Features, Stratified  # noqa: E402
from wellorder.experiments._tasks import official  # noqa: E402
from wellorder.experiments._training import Settings  # noqa: E402
from wellorder.report import Metric  # noqa: E402

NAMES = ["fashion-mnist", "fashion-mnist-logistic", "cifar10", "cifar10-cnn"]
X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network():
    return nn.Linear(4, 2)


def wider():
    return nn.Linear(4, 2, bias=False)


def dropping():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


def other_sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.5)


def hinge(output, labels):
    return nn.functional.multi_margin_loss(output, labels)


class Noisy(Dataset):
    """Augments by noise from all three sources of random numbers."""

    def __len__(self):
        return 30

    def __getitem__(self, i):
        import random

        return X[i] + torch.randn(4) * 0.1 + float(np.random.rand()) * 0.1 + random.random() * 0.1, Y[i]


class Dicts(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return {"x": X[i], "y": Y[i]}


def dict_loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def share_right(model, batch):
    return (model(batch["x"]).argmax(1) == batch["y"]).float().mean()


MINE = NetworkTask(network, (X[:30], Y[:30]), optimizer=sgd, batch_size=5, test=(X[30:], Y[30:]), name="mine")
SMALL = Config(policies=("RR", "PairGraB"), epochs=2, seeds=(0, 1))


def rows_of(task, policy=None, seed=0, epochs=3):
    policy = RandomReshuffling() if policy is None else policy
    found = list(task.train(policy, seed, Settings(task.step_size, epochs)))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


@pytest.mark.parametrize(
    "policy", [RandomReshuffling(), Herding(), PairGraB(), Steering(), Stratified(), Features()], ids=repr
)
def test_every_policy_yields_the_columns_that_the_task_names(policy):
    rows = list(MINE.train(policy, 0, Settings(0.1, 3)))
    columns = [metric.column for metric in MINE.metrics]
    assert columns == ["loss", "test_accuracy", "test_loss"]
    assert all(list(row) == ["epoch", *columns, "gradients", "seconds"] for row in rows)
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert [row["gradients"] for row in rows] == [0, 30, 60, 90]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["seconds"] > rows[0]["seconds"] >= 0


def test_the_rows_are_those_of_the_loop_as_people_write_it():
    """A plain loop over the policy's order, on the same data: the same losses, to the last bit."""
    rows = rows_of(MINE, epochs=2)
    torch.manual_seed(0)
    model, policy = network(), RandomReshuffling()
    optimizer, state, losses = sgd(model.parameters()), policy.init(30, seed=0), []
    for _ in range(3):
        losses.append(nn.functional.cross_entropy(model(X[:30]), Y[:30]).item())
        for at in range(0, 30, 5):
            units = torch.tensor(state.order[at : at + 5])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[units]), Y[units]).backward()
            optimizer.step()
        state = policy.advance(state)
    np.testing.assert_allclose([row["loss"] for row in rows], losses, rtol=1e-6)


def test_policies_share_the_start_and_the_first_epoch_and_seeds_do_not():
    task = replace(MINE, model=dropping)
    runs = [rows_of(task, policy) for policy in (RandomReshuffling(), Herding(), PairGraB(), Steering())]
    for at in (0, 1):
        assert len({run[at]["loss"] for run in runs}) == 1
    assert len({run[3]["loss"] for run in runs}) > 1
    assert rows_of(task, seed=1)[0]["loss"] != runs[0][0]["loss"]


@pytest.mark.parametrize("data", ["tensors", "dataset", "loader", "function", "numpy", "subset"])
def test_data_may_come_in_any_form_and_train_the_same(data):
    x, y = X[:30], Y[:30]
    pairs = TensorDataset(x, y)
    forms = {
        "tensors": (x, y),
        "numpy": (x.double().numpy(), y.int().numpy()),
        "dataset": pairs,
        "loader": DataLoader(pairs, 5, shuffle=True),
        "function": lambda: (x, y),
        "subset": Subset(TensorDataset(X, Y), range(30)),
    }
    task = replace(MINE, data=forms[data])
    assert rows_of(task, Steering()) == rows_of(MINE, Steering())
    assert task.knows == ("labels", "inputs")


def test_augmentation_is_the_same_for_all_policies_and_again_in_every_run():
    task = replace(MINE, data=Noisy())
    first, again = rows_of(task), rows_of(task)
    assert first == again
    assert rows_of(task, Steering())[1] == first[1]
    assert task.fingerprint() == task.fingerprint()
    assert task.knows == ()


def test_batches_may_be_dictionaries_and_metrics_ones_own():
    right = Metric("right", "share right", lower_is_better=False, log=False, percent=True, held_out=True)
    task = replace(
        MINE,
        data=Dicts(),
        test=Dicts(),
        loss=dict_loss,
        test_metrics={right: share_right, "twice": share_right},
    )
    assert [metric.column for metric in task.metrics] == ["loss", "right", "twice", "test_loss"]
    row = rows_of(task)[-1]
    assert row["right"] == row["twice"] > 0.5
    assert row["loss"] == pytest.approx(row["test_loss"])
    assert compare(task, SMALL).plan.test_metric == right


def test_a_share_is_held_out_by_the_seed():
    task = replace(MINE, data=(X, Y), test=0.25)
    parts = [task._split(seed) for seed in (0, 0, 1)]
    trained, tested = ([part[at].inputs for part in parts] for at in (0, 1))
    assert (len(trained[0]), len(tested[0]), task.n) == (30, 10, 30)
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(tested[0], tested[2])
    together = torch.cat([trained[2], tested[2]])
    assert torch.equal(together[together[:, 0].argsort()], X[X[:, 0].argsort()])


def test_schedulers_step_by_epoch_or_batch_and_the_step_size_scales_all_groups():
    seen = []

    def noting(model, batch, optimizer):
        seen.append([group["lr"] for group in optimizer.param_groups])

    def groups(params):
        weight, bias = params
        return torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.2}])

    task = replace(MINE, optimizer=groups, step=noting, batch_size=15)
    list(task.train(RandomReshuffling(), 0, Settings(0.5, 1)))
    assert seen == [[0.5, 1.0]] * 2
    halve = partial_step(1, 0.5)
    for steps, wanted in (("epoch", [0.1, 0.1, 0.05, 0.05]), ("batch", [0.1, 0.05, 0.025, 0.0125])):
        seen.clear()
        scheduled = replace(MINE, step=noting, scheduler=halve, scheduler_steps=steps, batch_size=15)
        with pytest.warns(UserWarning, match="lr_scheduler.step"):  # this step never calls optimizer.step
            list(scheduled.train(RandomReshuffling(), 0, Settings(0.1, 2)))
        assert [lr for (lr,) in seen] == pytest.approx(wanted)
    plateau = replace(MINE, scheduler=lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0))
    assert len(rows_of(plateau)) == 4


def partial_step(every, gamma):
    return lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, every, gamma)


def test_a_run_that_diverges_still_gives_all_its_rows():
    for policy in (RandomReshuffling(), Steering()):
        rows = list(MINE.train(policy, 0, Settings(1e38, 3)))
        assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
        assert [row["loss"] for row in rows][1:] == [np.inf] * 3
        assert rows[-1]["test_loss"] == np.inf


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model": network()}, "every run needs a new one; pass a function"),
        ({"model": lambda: 3}, "return.* a torch.nn.Module"),
        ({"model": lambda: 1 / 0}, r"model\(\) failed with ZeroDivisionError"),
        ({"optimizer": sgd(network().parameters())}, "every run needs a new one"),
        ({"optimizer": lambda params: 3}, "return a torch.optim.Optimizer"),
        ({"scheduler": lambda optimizer: 3}, "return a learning-rate scheduler"),
        ({"loss": lambda output, labels: output}, "return one number"),
        ({"data": (X[:, :3], Y)}, r"failed on the first batch, \(\(5, 3\) of float32, \(5,\) of int64\)"),
        ({"data": (X, Y[:3])}, "40 inputs and 3 labels"),
        ({"data": (X[:0], Y[:0])}, "data is empty"),
        ({"data": [1, 2, 3]}, r"data=\[1, 2, 3\]: pass \(x, y\)"),
        ({"data": "digits.csv"}, r"pass \(x, y\)"),
        ({"test": 1.5}, "test=1.5: pass a share"),
        ({"test": None, "test_metrics": {"a": hinge}}, "no test data"),
        ({"test_metrics": [hinge]}, "pass functions by name"),
        ({"test_metrics": {"seconds": hinge}}, "'seconds' is a column already"),
        ({"test": (X[:5, :2], Y[:5])}, "failed on the first batch of the test data"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"scheduler_steps": "step"}, "pass 'epoch' or 'batch'"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(other, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        compare(replace(MINE, **other), SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_that_cannot_be_visited_in_another_order_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(X, Y, strict=True)

    for data in (Stream(), DataLoader(Stream(), 5)):
        with pytest.raises(ValueError, match="data"):
            replace(MINE, data=data).check(Settings(0.1, 1))


@pytest.mark.parametrize("name", ["data", "test"])
def test_loaders_that_choose_their_examples_are_refused_and_not_shuffled_instead(name):
    part = DataLoader(TensorDataset(X, Y), 5, sampler=SubsetRandomSampler(range(10)))
    with pytest.raises(ValueError, match=rf"{name}: loader.sampler=SubsetRandomSampler .*Subset\(dataset"):
        replace(MINE, **{name: part}).check(Settings(0.1, 1))


@pytest.mark.parametrize("held", [tuple, lambda pair: TensorDataset(*pair)])
def test_a_run_is_not_resumed_on_other_data(tmp_path, held):
    x, y = torch.randn(600, 8), torch.arange(600) % 3
    task = replace(MINE, data=held((x, y)), test=None, model=lambda: nn.Linear(8, 3))
    compare(task, SMALL, out=tmp_path / "run")
    other = x.clone()
    other[1] += 1
    with pytest.raises(ValueError, match=r"its run has other options.*data"):
        compare(replace(task, data=held((other, y))), SMALL, out=tmp_path / "run", resume=True)


def test_a_factory_that_returns_one_model_for_all_runs_is_refused():
    shared = network()
    with pytest.raises(ValueError, match="the same module every time"):
        rows_of(replace(MINE, model=lambda: shared))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device here")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device='cuda': torch finds no such device"):
        replace(MINE, device="cuda").check(Settings(0.1, 1))


def test_policies_that_a_loader_cannot_serve_are_refused():
    with pytest.raises(ValueError, match="needs fresh signals"):
        compare(MINE, Config(policies={"proto": GraBProto()}, epochs=1, seeds=(0,)))
    with pytest.raises(ValueError, match="does not tell the labels and inputs"):
        compare(replace(MINE, data=Noisy()), Config(policies=("RR", "features"), epochs=1, seeds=(0,)))
    with pytest.raises(ValueError, match=r"cohort=2.*leave all at 1"):
        MINE.check(Settings(0.1, 2, cohort=2))


def test_labels_that_a_data_set_has_at_hand_are_enough_to_stratify():
    class Pictures(Noisy):
        targets = Y[:30].tolist()

    task = replace(MINE, data=Pictures())
    assert task.knows == ("labels",)
    done = compare(task, Config(epochs=1, seeds=(0,)))
    assert list(done.plan.policies) == [
        "RandomReshuffling",
        "ShuffleOnce",
        "PairGraB",
        "Steering",
        "stratified",
    ]


def test_one_thread_trains_and_the_setting_is_put_back():
    before, seen = torch.get_num_threads(), []
    noting = replace(MINE, step=lambda *_: seen.append(torch.get_num_threads()))
    rows_of(noting)
    assert set(seen) == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"batch_size": 6}, "problem.batch=6"),
        ({"optimizer": other_sgd}, "problem.optimizer='SGD, momentum 0.5'"),
        ({"optimizer": adam}, "problem.optimizer='Adam'"),
        ({"model": wider}, "problem.parameters=8"),
        ({"loss": hinge}, "problem.code="),
        ({"scheduler": partial_step(1, 0.5)}, "problem.scheduler='StepLR'"),
        ({"data": (X[:30], 1 - Y[:30])}, "problem.data="),
        ({"data": (X[1:31], Y[:30])}, "problem.data="),
        ({"data": (X[:20], Y[:20])}, "problem.n=20"),
        ({"test": (X[:10], Y[:10])}, "problem.test_data="),
    ],
)
def test_another_experiment_of_the_same_name_is_not_mixed_into_a_run(tmp_path, other, told):
    config = Config(policies=("RR", "PairGraB"), epochs=2, seeds=(0, 1), step_size=0.1)
    compare(MINE, config, out=tmp_path)
    (tmp_path / "cells" / "policy1-seed1.parquet").unlink()
    with pytest.raises(ValueError, match=r"problem\.\w+=.*choose another folder") as refused:
        compare(replace(MINE, **other), config, out=tmp_path, resume=True)
    assert told in str(refused.value)
    again = compare(replace(MINE), config, out=tmp_path, resume=True)
    assert again.table.num_rows == 12


def test_the_header_tells_model_data_optimizer_and_batch_and_the_config_holds_them(tmp_path):
    def decaying(params):
        return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)

    task = replace(MINE, optimizer=decaying)
    report = publish(compare(task, SMALL, out=tmp_path)).read_text(encoding="utf-8")
    told = "Linear (10 parameters) on 30 examples, SGD in batches of 5, momentum 0.9, weight decay 0.01"
    assert told in report
    assert "one unit a step" not in report
    resolved = json.loads((tmp_path / "config.json").read_text())["resolved"]
    assert resolved["problem"]["optimizer"] == "SGD, momentum 0.9, weight decay 0.01"
    assert (resolved["problem"]["batch"], resolved["problem"]["model"], resolved["step_size"]) == (
        5,
        "Linear",
        0.1,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_tasks_are_known_by_name_and_can_travel(name):
    task = task_of(name)
    again = pickle.loads(pickle.dumps(task))
    assert (again.name, again.step_size, again.grid) == (name, task.step_size, task.grid)


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_are_found_missing_before_anything_is_computed(name, tmp_path, monkeypatch):
    monkeypatch.delenv("WELLORDER_DATA", raising=False)
    with pytest.raises(ValueError, match="set WELLORDER_DATA"):
        compare(name, Config(policies=("RR",), epochs=1, seeds=(0,)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_are_scaled_by_the_data_sets_own_mean(monkeypatch):
    from wellorder._datasets import files

    images = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4), dtype=np.uint8)
    labels = np.arange(6)
    made = files.Dataset("made up", images, labels, images, labels, 10, (0.5,) * 3, (0.25,) * 3)
    monkeypatch.setitem(files.DATASETS, "cifar10", lambda folder, download: made)
    official.images_of.cache_clear()
    x, *_ = official.images_of("cifar10")
    official.images_of.cache_clear()
    np.testing.assert_allclose(x.numpy(), (images / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)


def test_the_networks_have_the_published_sizes():
    sizes = {kind: sum(p.numel() for p in kind().parameters()) for kind in (official.lenet, official.cnn)}
    assert sizes == {official.lenet: 62_006, official.cnn: 797_962}
    for name, recipe in official.RECIPES.items():
        shape = (2, 1, 28, 28) if "mnist" in name else (2, 3, 32, 32)
        assert recipe.model()(torch.zeros(shape)).shape == (2, 10)


def test_files_may_be_named_and_tasks_without_files_refuse_them(tmp_path):
    with pytest.raises(ValueError, match=r"cifar|test_batch"):
        task_of("cifar10", folder=str(tmp_path)).check(Settings(0.1, 2))
    with pytest.raises(ValueError, match="comes with its data"):
        task_of("digits", folder=str(tmp_path))
