"""A network with one hidden layer of tanh units, with analytic per-example gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wellorder._compiled import fast
from wellorder._order import Order
from wellorder.experiments._tasks.softmax import cross_entropy
from wellorder.problems._problem import Matrix, Point


@dataclass(frozen=True, eq=False)
class Perceptron:
    """f_u(V, W) = −log softmax(W·[tanh(V·X_u); 1])[y_u] + (l2/2)·‖(V, W)‖²; X carries a column of ones."""

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
        slopes = outer @ W.T
        slopes = np.exp(slopes - slopes.max(axis=1, keepdims=True))
        slopes /= slopes.sum(axis=1, keepdims=True)
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
        _steps(self.X, self.y, self.classes, self.hidden, self.l2, units, step_size, points, rows)
        return points, rows

    def scores(self, X: Matrix, x: Point) -> Matrix:  # noqa: N803
        """Logits of the rows of ``X``, one column a class."""
        V, W = self._layers(x)  # noqa: N806
        scores: Matrix = np.tanh(X @ V.T) @ W[:, :-1].T + W[:, -1]
        return scores

    def _layers(self, x: Point) -> tuple[Matrix, Matrix]:
        cut = self.hidden * self.X.shape[1]
        return x[:cut].reshape(self.hidden, -1), x[cut:].reshape(self.classes, -1)


@fast
def _steps(X, y, classes, hidden, l2, units, step_size, points, rows):  # type: ignore[no-untyped-def]  # noqa: N803
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
