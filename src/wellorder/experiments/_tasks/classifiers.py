"""Two classifiers as problems, with analytic per-example gradients: a linear one, and one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from wellorder._compiled import fast
from wellorder._order import Order, frozen
from wellorder.problems._problem import Matrix, Point


@dataclass(frozen=True, eq=False)
class Softmax:
    """Multinomial logistic regression: f_u(W) = −log softmax(W·X_u)[y_u] + (l2/2)·‖W‖².

    W has a row for each class, X a column of ones.
    """

    X: Matrix = field(repr=False)
    y: npt.NDArray[np.int64] = field(repr=False)
    classes: int
    l2: float

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def dim(self) -> int:
        return self.classes * int(self.X.shape[1])

    @cached_property
    def minimiser(self) -> Point:
        """The minimiser by Newton's method: its value is right to about 1e-12."""
        found = minimize(
            self._value_and_gradient, np.zeros(self.dim), jac=True, hessp=self._curve, method="Newton-CG",
            options={"xtol": 1e-12, "maxiter": 100},
        )  # fmt: skip
        best: Point = frozen(found.x)
        return best

    def gradients(self, units: Order, x: Point) -> Matrix:
        rows = self.X[units]
        slopes = _softmax(rows @ self._weights(x).T)
        slopes[np.arange(len(rows)), self.y[units]] -= 1.0
        found: Matrix = (slopes[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
        found += self.l2 * x
        return found

    def value(self, x: Point) -> float:
        return self._value_and_gradient(x)[0]

    def steps(self, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
        """Fast `wellorder.problems.loop_steps`."""
        points, rows = np.empty((len(units) + 1, self.dim)), np.empty((len(units), self.dim))
        points[0] = x
        _softmax_steps(self.X, self.y, self.classes, self.l2, units, step_size, points, rows)
        return points, rows

    def scores(self, X: Matrix, x: Point) -> Matrix:  # noqa: N803
        """Logits of the rows of ``X``, one column a class."""
        return X @ self._weights(x).T

    def _weights(self, x: Point) -> Matrix:
        return x.reshape(self.classes, -1)

    def _value_and_gradient(self, x: Point) -> tuple[float, Point]:
        scores = self.scores(self.X, x)
        shares = _softmax(scores)
        loss = cross_entropy(scores, self.y) + 0.5 * self.l2 * float(x @ x)
        shares[np.arange(self.n), self.y] -= 1.0
        return loss, (shares.T @ self.X).ravel() / self.n + self.l2 * x

    def _curve(self, x: Point, vector: Point) -> Point:
        """∇²f(x)·vector."""
        shares = _softmax(self.scores(self.X, x))
        along = self.scores(self.X, vector)
        along = shares * (along - (shares * along).sum(axis=1, keepdims=True))
        curved: Point = (along.T @ self.X).ravel() / self.n + self.l2 * vector
        return curved


@dataclass(frozen=True, eq=False)
class Perceptron:
    """One hidden layer of tanh units, trained with a penalty.

    f_u(V, W) = −log softmax(W·[tanh(V·X_u); 1])[y_u] + (l2/2)·‖(V, W)‖²; X has a column of ones.
    """

    X: Matrix = field(repr=False)
    y: npt.NDArray[np.int64] = field(repr=False)
    classes: int
    hidden: int
    l2: float
    start: Point = field(repr=False)
    """The first point: small random weights."""

    minimiser = None

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def dim(self) -> int:
        return self.hidden * int(self.X.shape[1]) + self.classes * (self.hidden + 1)

    def gradients(self, units: Order, x: Point) -> Matrix:
        rows = self.X[units]
        V, W = self._layers(x)  # noqa: N806
        inner = np.tanh(rows @ V.T)
        outer = np.column_stack([inner, np.ones(len(rows))])
        slopes = _softmax(outer @ W.T)
        slopes[np.arange(len(rows)), self.y[units]] -= 1.0
        back = (slopes @ W[:, :-1]) * (1.0 - inner**2)
        first = (back[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
        second = (slopes[:, :, None] * outer[:, None, :]).reshape(len(rows), -1)
        found: Matrix = np.hstack([first, second])
        found += self.l2 * x
        return found

    def value(self, x: Point) -> float:
        return cross_entropy(self.scores(self.X, x), self.y) + 0.5 * self.l2 * float(x @ x)

    def steps(self, units: Order, x: Point, step_size: float) -> tuple[Matrix, Matrix]:
        """Fast `wellorder.problems.loop_steps`."""
        points, rows = np.empty((len(units) + 1, self.dim)), np.empty((len(units), self.dim))
        points[0] = x
        _perceptron_steps(self.X, self.y, self.classes, self.hidden, self.l2, units, step_size, points, rows)
        return points, rows

    def scores(self, X: Matrix, x: Point) -> Matrix:  # noqa: N803
        """Logits of the rows of ``X``, one column a class."""
        V, W = self._layers(x)  # noqa: N806
        scores: Matrix = np.tanh(X @ V.T) @ W[:, :-1].T + W[:, -1]
        return scores

    def _layers(self, x: Point) -> tuple[Matrix, Matrix]:
        cut = self.hidden * self.X.shape[1]
        return x[:cut].reshape(self.hidden, -1), x[cut:].reshape(self.classes, -1)


def cross_entropy(scores: Matrix, y: npt.NDArray[Any]) -> float:
    """Mean of −log softmax(scores)[y].

    >>> cross_entropy(np.zeros((3, 10)), np.array([0, 1, 2])).__round__(4) == np.log(10).round(4)
    np.True_
    """
    top = scores.max(axis=1)
    logs = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return float((logs - scores[np.arange(len(y)), y]).mean())


def _softmax(scores: Matrix) -> Matrix:
    shares: Matrix = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


@fast
def _softmax_steps(X, y, classes, l2, units, step_size, points, rows):  # type: ignore[no-untyped-def]  # noqa: N803
    width = X.shape[1]
    slopes = np.empty(classes)
    for t in range(len(units)):
        unit = units[t]
        for c in range(classes):
            score = 0.0
            for k in range(width):
                score += X[unit, k] * points[t, c * width + k]
            slopes[c] = score
        slopes[:] = np.exp(slopes - slopes.max())
        slopes /= slopes.sum()
        slopes[y[unit]] -= 1.0
        for c in range(classes):
            for k in range(width):
                at = c * width + k
                g = slopes[c] * X[unit, k] + l2 * points[t, at]
                rows[t, at] = g
                points[t + 1, at] = points[t, at] - step_size * g


@fast
def _perceptron_steps(X, y, classes, hidden, l2, units, step_size, points, rows):  # type: ignore[no-untyped-def]  # noqa: N803
    width, cut = X.shape[1], hidden * X.shape[1]
    inner, slopes, back = np.empty(hidden + 1), np.empty(classes), np.empty(hidden)
    inner[hidden] = 1.0
    for t in range(len(units)):
        unit, here, row = units[t], points[t], rows[t]
        for h in range(hidden):
            score = 0.0
            for k in range(width):
                score += X[unit, k] * here[h * width + k]
            inner[h] = np.tanh(score)
        for c in range(classes):
            score = 0.0
            for h in range(hidden + 1):
                score += inner[h] * here[cut + c * (hidden + 1) + h]
            slopes[c] = score
        slopes[:] = np.exp(slopes - slopes.max())
        slopes /= slopes.sum()
        slopes[y[unit]] -= 1.0
        back[:] = 0.0
        for c in range(classes):
            for h in range(hidden + 1):
                at = cut + c * (hidden + 1) + h
                row[at] = slopes[c] * inner[h] + l2 * here[at]
                if h < hidden:
                    back[h] += slopes[c] * here[at]
        for h in range(hidden):
            back[h] *= 1.0 - inner[h] * inner[h]
            for k in range(width):
                row[h * width + k] = back[h] * X[unit, k] + l2 * here[h * width + k]
        for k in range(len(row)):
            points[t + 1, k] = here[k] - step_size * row[k]
