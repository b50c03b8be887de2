"""The training loop that comparisons use: one row an epoch, same start for all policies."""

import numpy as np
import pytest
import torch
from torch import nn

from wellorder import Herding, PairGraB, RandomReshuffling, ShuffleOnce
from wellorder._datasets.networks import cnn, lenet
from wellorder.experiments._tasks.networks import RECIPES, LabelledData, Recipe, train


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def split():
    gen = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (90,), generator=gen)
    x = torch.randn(90, 1, 4, 4, generator=gen) + y.view(-1, 1, 1, 1)
    return LabelledData(x[:60], y[:60], x[60:], y[60:])


def test_rows_from_the_start_to_the_end_and_the_same_start_for_all(split):
    recipe = Recipe(model, 0.05, batch=8)
    runs = {
        type(p): list(train(recipe, split, p, epochs=3)) for p in (RandomReshuffling(), Herding(), PairGraB())
    }
    for rows in runs.values():
        assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
        assert [row["gradients"] for row in rows] == [0, 60, 120, 180]
        assert rows[-1]["loss"] < rows[0]["loss"]
        assert rows[-1]["seconds"] > rows[0]["seconds"] == 0.0
        assert 0 <= rows[-1]["test_accuracy"] <= 1
        assert np.isfinite([row["order_error"] for row in rows]).all()
    first = [(rows[0]["loss"], rows[0]["order_error"], rows[1]["loss"]) for rows in runs.values()]
    assert first.count(first[0]) == 3


def test_a_run_that_diverges_still_gives_all_its_rows(split):
    rows = list(train(Recipe(model, 1e20), split, ShuffleOnce(), epochs=3))
    assert [row["loss"] for row in rows][1:] == [np.inf] * 3


def test_the_recipes_networks_have_the_published_sizes():
    sizes = {kind: sum(p.numel() for p in kind().parameters()) for kind in (lenet, cnn)}
    assert sizes == {lenet: 62_006, cnn: 797_962}
    for name, recipe in RECIPES.items():
        shape = (2, 1, 28, 28) if "mnist" in name else (2, 3, 32, 32)
        assert recipe.model()(torch.zeros(shape)).shape == (2, 10)


def test_a_part_of_the_data(split):
    assert len(split.to("cpu", 7).x) == 7
    assert len(split.to("cpu").x) == 60
