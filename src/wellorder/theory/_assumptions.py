"""The order-error assumption: what it holds with, for the paper's methods and for your own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from wellorder.theory._methods import METHODS, Method, method_of
from wellorder.theory._setting import Keywords, Setting


@dataclass(frozen=True)
class Constants:
    r"""What Assumption ``asm:order error`` (``asm:FL:order error`` for clients) holds with.

    .. math:: \bar\phi_q^2 \le \sum_{i=1}^{\nu} A_i \bar\phi_{q-i}^2
        + \sum_{i=0}^{\nu} B_i \|\nabla f(x_{q-i})\|^2 + D
    """

    method: str
    label: str
    """The LaTeX label of the example that proves it."""
    p: float
    """The norm of the order error."""
    A: tuple[float, ...]
    """A_1, …, A_ν."""
    B: tuple[float, ...]
    """B_0, …, B_ν."""
    D: float
    nu: int
    c1: float
    c2: float
    uses: int | None
    """How often a run relies on chance, with probability δ of failing each time; None: once an epoch."""
    limits: tuple[tuple[str, float], ...]
    """Every upper limit of the step size, with its formula."""
    setting: Setting = field(repr=False)
    federated: bool = False

    @property
    def condition(self) -> float:
        """ΣB/(N²(1 − ΣA)), which must stay below 255."""
        return condition(self.A, self.B, self.setting.n)

    @property
    def epoch_probability(self) -> float:
        """With what probability the assumption holds in one epoch."""
        return 1.0 if self.uses == 0 else max(0.0, 1 - (self.uses or 1) * self.setting.delta)

    def probability(self, epochs: int) -> float:
        """With what probability it holds in all ``epochs``: 1 − Qδ by the union bound."""
        return max(0.0, 1 - (epochs if self.uses is None else self.uses) * self.setting.delta)

    def tight(self) -> Constants:
        """The same with the least c₁ and c₂ that the theorem admits; the paper rounds them up."""
        c1, c2 = least(self.A, self.B, self.setting.n)
        return replace(self, c1=c1, c2=c2)


def condition(A: Sequence[float], B: Sequence[float], n: int) -> float:  # noqa: N803
    """ΣB/(N²(1 − ΣA)) of Theorem ``thm:SGD``; infinite if ΣA ≥ 1."""
    return sum(B) / (n**2 * (1 - sum(A))) if sum(A) < 1 else math.inf


def least(A: Sequence[float], B: Sequence[float], n: int) -> tuple[float, float]:  # noqa: N803
    r"""The least admissible c₁ and c₂ of Theorems ``thm:SGD`` and ``thm:FL``; refuses what they do not cover.

    .. math:: c_1 = 1 \Big/ \Big(\frac{255}{512} - \frac{\sum B_i}{512 N^2 (1 - \sum A_i)}\Big), \quad
        c_2 = \frac{2 c_1}{1 - \sum A_i}

    >>> least((), (), 100)[0].__round__(3), least((3 / 5, 1 / 50), (0, 200.0, 200.0), 100)[1].__round__(2)
    (2.008, 10.57)
    """
    if not all(math.isfinite(value) and value >= 0 for value in (*A, *B)):
        raise ValueError(f"A={tuple(A)}, B={tuple(B)}: the theorems need finite constants of 0 or more")
    if sum(A) >= 1:
        raise ValueError(f"A={tuple(A)}: the sum is {sum(A):g}, but the theorems need less than 1")
    if condition(A, B, n) >= 255:
        raise ValueError(
            f"B={tuple(B)}: ΣB/(N²(1 − ΣA)) = {condition(A, B, n):g}, but the theorems need less than 255; "
            f"with n={n} and this A, keep ΣB below {255 * n**2 * (1 - sum(A)):g}"
        )
    c1 = 1 / ((255 - condition(A, B, n)) / 512)
    return c1, 2 * c1 / (1 - sum(A))


def constants(
    method: Any,
    n: int,
    *,
    A: Sequence[float] | None = None,  # noqa: N803
    B: Sequence[float] = (),  # noqa: N803
    D: float = 0.0,  # noqa: N803
    p: float = 2,
    **setting: Unpack[Keywords],
) -> Constants:
    """Constants of the order-error assumption for a method of the paper, or for one of your own.

    Parameters
    ----------
    method
        A name (``AP RR OP IG SO NP GraB-proto PairGraB-proto GraB PairGraB``, or for clients ``FL-AP
        FL-RR FL-OP FL-IG FL-SO FL-NP FL-GraB-proto FL-GraB``), or a policy; any name for your own.
    n
        N, the number of units.
    A, B, D, p
        Your own method's A_1…A_ν, B_0…B_ν, D and norm: checked, and c₁ and c₂ derived.
    **setting
        The fields of `Setting`.

    >>> known = constants("GraB", 1000, dim=20)
    >>> known.p, known.A, known.nu, (known.c1, known.c2), known.probability(epochs=50).__round__(3)
    (inf, (0.6, 0.02), 2, (3, 16), 0.995)
    >>> own = constants("mine", 1000, A=(0.5,), B=(0, 1000**2), D=40.0)
    >>> own.nu, round(own.c1, 3), round(own.c2, 3)
    (1, 2.024, 8.095)
    """
    if A is not None or B or D:
        return _own(str(method), Setting(n, **setting), tuple(A or ()), tuple(B), D, p)
    row = _row(method, setting)
    s = Setting(n, **setting)
    _check_shape(row, s)
    scaled = tuple(b * n**2 for b in row.B)
    return Constants(
        row.name, row.label, row.p, row.A, scaled, row.D(s), len(row.A), row.c1, row.c2,
        _uses(row, s), _limits(row, s), s, row.federated,
    )  # fmt: skip


def resolve(method: Any, n: int | None, setting: Keywords) -> Constants:
    """Make constants of whatever names a method: a `Constants`, a policy, or a name with its setting."""
    if isinstance(method, Constants):
        if n is not None or setting:
            raise ValueError(
                f"method={method.method!r} brings its own setting; leave out n and the other keywords"
            )
        return method
    if n is None:
        raise ValueError("n=None: pass the number of units, e.g. n=1000")
    return constants(method, n, **setting)


def _own(name: str, s: Setting, A: tuple[float, ...], B: tuple[float, ...], D: float, p: float) -> Constants:  # noqa: N803
    if p not in (2, math.inf):
        raise ValueError(f"p={p!r}: smoothness is known here for p=2 and p=numpy.inf; pass one of them")
    if not (math.isfinite(D) and D >= 0):
        raise ValueError(f"D={D!r}: pass a finite number, 0 or more")
    federated = name.startswith("FL-")
    c1, c2 = least(A, B, s.n)
    row = Method(name, "your own", "your own", p, lambda _: D)
    _check_shape(row, s)
    return Constants(
        name, row.label, p, A, B, D, max(len(A), len(B) - 1, 0), c1, c2, 0, _limits(row, s), s, federated
    )


def _row(method: Any, setting: Keywords) -> Method:
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(
                f"method={method!r} is not known; pass one of {', '.join(METHODS)}, or A, B and D of your own"
            )
        return METHODS[method]
    alone = setting.get("cohort", 1) == setting.get("local_steps", 1) == setting.get("server_step", 1) == 1
    return METHODS[method_of(method, federated=not alone)]


def _check_shape(row: Method, s: Setting) -> None:
    n, S = s.n, s.cohort  # noqa: N806
    if not row.federated:
        if not S == s.local_steps == s.server_step == 1:
            raise ValueError(
                f"cohort={S}, local_steps={s.local_steps}, server_step={s.server_step:g}: these belong to "
                f"clients, not to {row.name!r}; use an 'FL-' method such as 'FL-RR'"
            )
        if row.pairs and n % 2:
            raise ValueError(
                f"n={n}: {row.name} is proved for an even number of units; drop or add one, or use 'GraB'"
            )
        return
    if n % S:
        reason = f"Theorem 2 needs rounds of one size, and it does not divide n={n}"
        raise ValueError(f"cohort={S}: {reason}; {_cohorts(row, s)}")
    if row.pairs and S % 2:
        reason = f"{row.name} is proved for an even number of clients a round"
        raise ValueError(f"cohort={S}: {reason}; {_cohorts(row, s)}")


def _cohorts(row: Method, s: Setting) -> str:
    small = [k for k in range(1, math.isqrt(s.n) + 1) if s.n % k == 0]
    fit = {k for d in small for k in (d, s.n // d) if not (row.pairs and k % 2)}
    near = sorted(sorted(fit, key=lambda k: abs(k - s.cohort))[:3])
    return f"pass a cohort such as {', '.join(map(str, near))}" if near else "add or drop a client"


def _uses(row: Method, s: Setting) -> int | None:
    short, long = row.uses(s, 1), row.uses(s, 2)
    return short if short == long else None


def _limits(row: Method, s: Setting) -> tuple[tuple[str, float], ...]:
    """Every limit of the step size; the smallest binds."""
    eta, local, cohort = (s.server_step, s.local_steps, s.cohort) if row.federated else (1.0, 1, 1)
    visits, shape = local / cohort, "·K/S" if row.federated else ""
    walk = s.walk(pairs=row.pairs) if row.stale else 0.0
    amplified = 1 + eta if row.federated and row.p == math.inf else 1.0
    norm = "∞" if row.p == math.inf else "2"
    return (
        (f"1/({'η·' if row.federated else ''}L·N{shape})", 1 / (eta * s.smoothness * s.n * visits)),
        (
            f"1/({row.steps}·L_2{norm}·{'(N+C)' if row.stale else 'N'}{shape})",
            1 / (row.steps * s.two_to(row.p) * (s.n + walk) * visits),
        ),
        (
            f"1/({row.steps}·{'(1+η)·' if amplified > 1 else ''}L_{norm}·N{shape})",
            1 / (row.steps * amplified * s.to_itself(row.p) * s.n * visits),
        ),
    )
