"""Network tasks: a comparison of orders on a network and data of one's own, or on official files."""

import json
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from wellorder import Herding, RandomReshuffling  # noqa: E402
from wellorder.experiments import Config, compare, publish  # noqa: E402
from wellorder.experiments._tasks import task_of  # noqa: E402
from wellorder.experiments._tasks.networks import LabelledData, NetworkTask, Recipe, data_of  # noqa: E402
from wellorder.experiments._training import Settings  # noqa: E402

NAMES = ["fashion-mnist", "fashion-mnist-logistic", "cifar10", "cifar10-cnn"]


def network():
    return torch.nn.Linear(4, 2)


def points():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return LabelledData(x[:30], y[:30], x[30:], y[30:])


def test_a_task_of_ones_own_yields_the_columns_it_names():
    task = NetworkTask("mine", "Mine", Recipe(network, 0.1, batch=5), points)
    for policy in (RandomReshuffling(), Herding()):
        rows = list(task.train(policy, 0, Settings(0.1, 2)))
        assert [row["epoch"] for row in rows] == [0, 1, 2]
        assert {metric.column for metric in task.metrics} <= set(rows[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_tasks_are_known_by_name_and_can_travel(name):
    task = task_of(name)
    again = pickle.loads(pickle.dumps(task))
    assert (again.name, again.step_size, again.grid) == (name, task.step_size, task.grid)


def test_rounds_of_clients_are_refused():
    with pytest.raises(ValueError, match=r"cohort=2.*leave all at 1"):
        task_of("cifar10").check(Settings(0.1, 2, cohort=2))
    with pytest.raises(ValueError, match=r"server_step=2.0: cifar10.*leave all at 1"):
        task_of("cifar10").check(Settings(0.1, 2, server_step=2.0))


def test_missing_files_are_named_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("WELLORDER_DATA", str(tmp_path))
    with pytest.raises((ValueError, FileNotFoundError), match=r"cifar|CIFAR"):
        partial(data_of, "cifar10")()


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
    monkeypatch.setitem(files.DATASETS, "cifar10", lambda folder: made)
    split = data_of("cifar10")
    np.testing.assert_allclose(split.x.numpy(), (images / 255 - 0.5) / 0.25, rtol=1e-5, atol=1e-6)


def wider():
    return torch.nn.Linear(4, 2, bias=False)


def other_points():
    x, y, *test = (getattr(points(), part) for part in ("x", "y", "test_x", "test_y"))
    return LabelledData(x, 1 - y, *test)


MINE = NetworkTask("mine", "Mine", Recipe(network, 0.1, batch=5), points)
SMALL = Config(policies=("RR", "PairGraB"), epochs=2, seeds=(0, 1))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"recipe": Recipe(network, 0.1, batch=6)}, "problem.batch=6"),
        ({"recipe": Recipe(network, 0.1, batch=5, momentum=0.5)}, "problem.momentum=0.5"),
        ({"recipe": Recipe(network, 0.1, batch=5, weight_decay=0.1)}, "problem.weight_decay=0.1"),
        ({"recipe": Recipe(wider, 0.1, batch=5)}, "problem.parameters=8"),
        ({"load": other_points}, "problem.data="),
        ({"examples": 20}, "problem.n=20"),
    ],
)
def test_another_experiment_of_the_same_name_is_not_mixed_into_a_run(tmp_path, other, told):
    compare(MINE, SMALL, out=tmp_path)
    (tmp_path / "cells" / "policy1-seed1.parquet").unlink()
    with pytest.raises(ValueError, match=r"problem\.\w+=.*choose another folder") as refused:
        compare(replace(MINE, **other), SMALL, out=tmp_path, resume=True)
    assert told in str(refused.value)
    again = compare(replace(MINE), SMALL, out=tmp_path, resume=True)
    assert again.table.num_rows == 12


def test_the_header_tells_model_optimizer_and_batch_and_the_config_holds_them(tmp_path):
    task = replace(MINE, recipe=Recipe(network, 0.1, batch=5, weight_decay=0.01))
    report = publish(compare(task, SMALL, out=tmp_path)).read_text(encoding="utf-8")
    assert "Linear (10 parameters), SGD in batches of 5, momentum 0.9, weight decay 0.01" in report
    assert "one unit a step" not in report
    resolved = json.loads((tmp_path / "config.json").read_text())["resolved"]["problem"]
    assert (resolved["batch"], resolved["momentum"], resolved["model"]) == (5, 0.9, "Linear")


def test_files_may_be_named_and_tasks_without_files_refuse_them(tmp_path):
    with pytest.raises(ValueError, match=r"cifar|test_batch"):
        task_of("cifar10", folder=str(tmp_path)).check(Settings(0.1, 2))
    with pytest.raises(ValueError, match="comes with its data"):
        task_of("digits", folder=str(tmp_path))
