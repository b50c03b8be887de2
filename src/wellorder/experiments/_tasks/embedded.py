"""The tasks that ship with wellorder: nothing to download."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from wellorder._order import frozen, rng
from wellorder.experiments._tasks.classifiers import Perceptron, Softmax, cross_entropy
from wellorder.experiments._tasks.task import (
    DISTANCE,
    EXCESS,
    LOSS,
    ORDER_ERROR,
    TEST_ACCURACY,
    TEST_LOSS,
    ProblemTask,
)
from wellorder.problems import Quadratics
from wellorder.problems import quadratics as draw_quadratics
from wellorder.problems._problem import Matrix, Point, Problem

TRAIN, HIDDEN = 1437, 32


def quadratics() -> ProblemTask:
    """The quadratics of Figure 1: 1,000 units in one dimension, drawn anew for each seed."""
    columns = (EXCESS, ORDER_ERROR, DISTANCE)
    title = "1,000 one-dimensional quadratics"
    return ProblemTask("quadratics", title, _quadratics, columns, 1e-3, 40, (1e-4, 1e-3, 1e-2))


def digits() -> ProblemTask:
    """Multinomial logistic regression on scikit-learn's handwritten digits."""
    columns = (EXCESS, LOSS, ORDER_ERROR, TEST_ACCURACY, TEST_LOSS)
    title = f"handwritten digits, logistic regression, {TRAIN:,} examples"
    return ProblemTask("digits", title, _softmax, columns, 0.03, 30, (1e-3, 1e-2, 1e-1), _held_out)


def digits_mlp() -> ProblemTask:
    """A network with 32 hidden units on scikit-learn's handwritten digits."""
    columns = (LOSS, ORDER_ERROR, TEST_ACCURACY, TEST_LOSS)
    title = f"handwritten digits, network with {HIDDEN} hidden units, {TRAIN:,} examples"
    return ProblemTask("digits-mlp", title, _network, columns, 0.03, 30, (1e-3, 1e-2, 1e-1), _held_out)


@cache
def _data() -> tuple[Matrix, npt.NDArray[np.int64], Matrix, npt.NDArray[np.int64]]:
    """Train and test images and labels, split at random once and for all; a column of ones for the bias."""
    images, labels = load_digits(return_X_y=True)
    rows = np.column_stack([images / 16.0, np.ones(len(images))])
    mixed = rng(0, 0, "digits").permutation(len(rows))
    train, test = mixed[:TRAIN], mixed[TRAIN:]
    parts: Any = (rows[train], labels[train].astype(np.int64), rows[test], labels[test].astype(np.int64))
    return tuple(map(frozen, parts))


def _quadratics(seed: int) -> Quadratics:
    return draw_quadratics(1000, seed=seed)


@cache
def _one_softmax() -> Softmax:
    return Softmax(*_data()[:2], classes=10, l2=1e-3)


def _softmax(seed: int) -> Softmax:  # noqa: ARG001
    return _one_softmax()


def _network(seed: int) -> Perceptron:
    rows, labels = _data()[:2]
    draw, width = rng(seed, 0, "network"), rows.shape[1]
    first = draw.standard_normal(HIDDEN * width) / np.sqrt(width)
    second = draw.standard_normal(10 * (HIDDEN + 1)) / np.sqrt(HIDDEN + 1)
    return Perceptron(rows, labels, 10, HIDDEN, 1e-4, frozen(np.concatenate([first, second])))


def _held_out(problem: Problem, x: Point) -> Mapping[str, float]:
    rows, labels = _data()[2:]
    scores = problem.scores(rows, x)  # type: ignore[attr-defined]
    return {
        "test_accuracy": float((scores.argmax(axis=1) == labels).mean()),
        "test_loss": cross_entropy(scores, labels),
    }
