"""What a guarantee depends on besides the method: the problem's constants and the run's shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypedDict

from wellorder._arguments import flag, norm_order, real_number, shown, whole_number

LARGEST, MOST = 1e50, 10**30
"""The largest number and the largest count: squares of their products, and their inverses, stay finite."""

MOST_EPOCHS = 10**6
"""The oldest rows: each epoch back has a constant of its own."""


class Known(TypedDict, total=False):
    """Optional keywords of the functions of `wellorder.theory`; `Setting` explains and defaults them."""

    smoothness: float
    smoothness_2inf: float | None
    smoothness_inf: float | None
    sigma: float
    gap: float
    delta: float
    first_error: float | None
    passes: int
    c: float | None
    age: int
    moved: float | None
    cohort: int
    local_steps: int
    server_step: float


class Keywords(Known, total=False):
    """All of them."""

    dim: int
    theta: float


@dataclass(frozen=True)
class Setting:
    """The constants of a problem and the shape of a run, checked.

    >>> Setting(1000, dim=4, sigma=2.0).two_to(math.inf)
    2.0
    """

    n: int
    """N, the number of units."""
    dim: int = 1
    """d, the number of parameters."""
    smoothness: float = 1.0
    """L: every f_u (so f as well) has an L-Lipschitz gradient in the 2-norm."""
    smoothness_2inf: float | None = None
    """L_{2,∞}; √d·L unless given, which always suffices."""
    smoothness_inf: float | None = None
    """L_∞; √d·L unless given, which always suffices."""
    sigma: float = 1.0
    """ς: ‖∇f_u(x) − ∇f(x)‖₂ ≤ ς for all units."""
    gap: float = 1.0
    """F_0 = f(x_0) − inf f."""
    delta: float = 1e-4
    """δ: the probability with which one use of a random argument may fail; 1 − Qδ for a run of Q uses."""
    theta: float = 0.0
    """θ ≥ ‖x_q − x_0‖₂ for all q; one-permutation methods only."""
    first_error: float | None = None
    """φ̄_0 in the 2-norm, if measured; one-permutation methods only."""
    passes: int = 10
    """P, how often an order is balanced: at x_0 by NP, before every epoch by Herding.

    Of a policy that is given instead of a name, its own: ``Herding()`` has 8.
    """
    c: float | None = None
    """The c of the policy's `Walk`; the least that the proofs ask for unless given."""
    age: int = 1
    """Every row is from one of the last so many epochs; Herding only, where ``moved`` is not known."""
    moved: float | None = None
    """ρ ≥ ‖x_q − y‖_∞ for the points y where the rows of epoch q were seen, if known; Herding only."""
    cohort: int = 1
    """S, the clients of a round."""
    local_steps: int = 1
    """K, the local steps of a client."""
    server_step: float = 1.0
    """η, the amplification at the epoch's end."""

    def __post_init__(self) -> None:
        for name in ("n", "dim", "passes", "age", "cohort", "local_steps"):
            check_count(name, getattr(self, name))
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if real_number(field.name, value, least=0) > LARGEST:
                raise ValueError(
                    f"{field.name}={shown(value)}: too large to be squared; pass at most {LARGEST:g}"
                )
        if not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta!r}: pass a number strictly between 0 and 1, such as 1e-4")
        for name in ("smoothness", "smoothness_2inf", "smoothness_inf", "server_step", "c"):
            value = getattr(self, name)
            if value is not None and value < 1 / LARGEST:
                raise ValueError(f"{name}={value!r}: pass a positive number, {1 / LARGEST:g} or more")
        if self.age > MOST_EPOCHS:
            raise ValueError(f"age={self.age}: rows as old as that say nothing; pass at most {MOST_EPOCHS}")
        if self.cohort > self.n:
            raise ValueError(
                f"cohort={self.cohort}: more clients in a round than there are; pass at most n={self.n}"
            )

    def to_itself(self, p: float) -> float:
        """The smoothness L_p, or an upper bound of it, for any p ≥ 2."""
        norm_order(p, least=2)
        if p == 2:
            return self.smoothness
        if p == math.inf:
            return self._root(p) * self.smoothness if self.smoothness_inf is None else self.smoothness_inf
        # ‖v‖_∞ ≤ ‖v‖_p ≤ ‖v‖₂, so L_p ≤ L_{2,p}; and ‖v‖_p ≤ d^{1/p}·‖v‖_∞.
        return min(self.two_to(p), float(self.dim ** (1 / p)) * self.to_itself(math.inf))

    def two_to(self, p: float) -> float:
        """The smoothness L_{2,p}, or an upper bound of it, for any p ≥ 2."""
        norm_order(p, least=2)
        if p == 2:
            return self.smoothness
        longest = self._root(math.inf) * self.smoothness
        longest = longest if self.smoothness_2inf is None else self.smoothness_2inf
        return longest if p == math.inf else min(longest, self._root(p) * self.smoothness)

    def _root(self, p: float) -> float:
        """‖v‖₂ ≤ d^{1/2 − 1/p}·‖v‖_p."""
        return float(self.dim ** (0.5 - 1 / p))

    def walk(self, *, pairs: bool) -> float:
        """C = 30·log(dN/δ), the balancing walk's reach for vectors of length 1; dN/(2δ) for pairs."""
        return 30 * math.log(self.dim * self.n / ((2 if flag("pairs", pairs) else 1) * self.delta))


def check_epochs(epochs: int) -> None:
    """Refuse an impossible number of epochs."""
    check_count("epochs", epochs)


def check_count(name: str, value: object) -> None:
    """Refuse what is no count, and counts beyond computation."""
    if isinstance(value, int) and value > MOST:
        raise ValueError(f"{name}={shown(value)}: too large to compute with; pass at most {MOST:.0e}")
    if not isinstance(value, int) or value < 2**63:
        whole_number(name, value, least=1)
