"""Clients made of examples: a problem whose units are groups of another problem's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wellorder._order import Order, frozen, is_permutation
from wellorder.problems._problem import Matrix, Point, Problem, start_of


@dataclass(frozen=True, eq=False)
class Clients:
    """f_c(x) = mean of f_u(x) over the examples u of client c; all clients have equally many."""

    examples: Problem
    members: Order = field(repr=False)
    """(clients, examples of each)."""

    @property
    def n(self) -> int:
        return len(self.members)

    @property
    def dim(self) -> int:
        return self.examples.dim

    @property
    def minimiser(self) -> Point | None:
        return self.examples.minimiser

    @property
    def start(self) -> Point:
        return start_of(self.examples)

    def gradients(self, units: Order, x: Point) -> Matrix:
        own = self.members[units]
        rows = self.examples.gradients(own.ravel(), x)
        mean: Matrix = rows.reshape(*own.shape, self.dim).mean(axis=1)
        return mean

    def value(self, x: Point) -> float:
        return self.examples.value(x)


def clients(problem: Problem, groups: int | Sequence[npt.ArrayLike]) -> Clients:
    """Hand the units of ``problem`` to clients: so many runs of neighbours, or the groups given.

    Neighbours stay together, so data sorted by label gives clients of about one label each. Groups must be
    equally large and hold every unit once, so that the clients' mean is the objective of ``problem``.

    >>> from wellorder.problems import quadratics
    >>> clients(quadratics(6), 3).members
    array([[0, 1],
           [2, 3],
           [4, 5]])
    """
    if isinstance(groups, int | np.integer):
        if groups < 1 or problem.n % groups:
            raise ValueError(
                f"groups={groups}: {problem.n} units do not fall into so many equal groups; pass a divisor"
            )
        return Clients(problem, frozen(np.arange(problem.n).reshape(groups, -1)))
    sizes = sorted({np.size(group) for group in groups})
    if len(sizes) != 1:
        raise ValueError(f"groups of {sizes} units: pass groups of one size")
    members = np.stack([np.asarray(group) for group in groups])
    if members.ndim != 2 or not is_permutation(members.ravel(), problem.n):
        raise ValueError(
            f"groups must hold each of the units 0..{problem.n - 1} exactly once; pass 1-D lists of units"
        )
    return Clients(problem, frozen(members))
