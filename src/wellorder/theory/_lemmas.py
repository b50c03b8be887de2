"""Lemmas 3–5: balancing and reordering shrink the herding error; both sides, on your own vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import whole_number
from wellorder._kernels.balance import balance
from wellorder._kernels.reorder import permutation_of, place
from wellorder._kernels.sign_rules import SignRule, Walk, checked_rule
from wellorder._kernels.signals import dense
from wellorder._order import Order
from wellorder.theory._checks import Check
from wellorder.theory._setting import Setting

Matrix = npt.NDArray[np.float64]


def check_lemmas(
    vectors: Any,
    order: npt.ArrayLike,
    *,
    cohort: int | None = None,
    rule: SignRule | None = None,
    delta: float = 1e-4,
    seed: int = 0,
) -> tuple[Check, ...]:
    r"""Balance and reorder the vectors once, and evaluate both sides of Lemmas 3, 4 and 5.

    .. math:: \max_n \Big\|\sum_{i<n} z_{\pi'(i)}\Big\|_\infty
        \le \tfrac12 \max_n \Big\|\sum_{i<n} z_{\pi(i)}\Big\|_\infty
        + \tfrac12 \max_n \Big\|\sum_{i<n} \epsilon_i z_{\pi(i)}\Big\|_\infty + \Big\|\sum_i z_i\Big\|_\infty

    holds for any signs ("relation"). With the walk as sign rule the middle term is at most
    C·a/2, or C·a for pairs, with probability 1 − δ ("bound"), where a is the longest vector's length and
    C = 30·log(dN/δ), or 30·log(dN/(2δ)).

    Parameters
    ----------
    vectors, order
        Rows by unit, (n, d), and the unit at each step.
    cohort
        S, for Lemma 5: prefixes at multiples of S only. It must be even and divide n.
    rule
        The sign rule; the walk that the lemmas are about unless given. "bound" is promised for no other.
    delta, seed
        δ, and the seed of the walk.

    Returns
    -------
    tuple of Check
        Relation and bound of Lemma 3; of Lemma 4 if n is even; of Lemma 5 if ``cohort`` is given.

    >>> z = np.random.default_rng(0).standard_normal((64, 3))
    >>> for check in check_lemmas(z - z.mean(axis=0), np.arange(64), cohort=4):
    ...     print(check.what, bool(check.holds.all()))
    Lemma 3, relation True
    Lemma 3, bound True
    Lemma 4, relation True
    Lemma 4, bound True
    Lemma 5, relation True
    Lemma 5, bound True
    """
    rows = np.asarray(dense(vectors, None, "vectors"), np.float64)
    steps = permutation_of(order, len(rows))
    if rule is not None:
        checked_rule(rule)
    n = len(steps)
    setting = Setting(n, dim=rows.shape[1], delta=delta)
    z = rows[steps]
    checks = [*_basic(z, steps, rows, setting, rule, seed)]
    if n % 2 == 0:
        checks += _pairs(z, steps, rows, setting, rule, seed, None)
    if cohort is not None:
        cure = f"Lemma 5 needs an even cohort that divides n={n}; pass such a one"
        if whole_number("cohort", cohort, least=1, most=n, cure=cure) % 2 or n % cohort:
            raise ValueError(f"cohort={cohort}: {cure}")
        checks += _pairs(z, steps, rows, setting, rule, seed, cohort)
    return tuple(checks)


def _basic(
    z: Matrix, steps: Order, rows: Matrix, setting: Setting, rule: SignRule | None, seed: int
) -> list[Check]:
    walk, longest = setting.walk(pairs=False), _longest(rows)
    signs, _, _ = balance(z, rule or _walk(walk, longest), seed=seed)
    after = _herding(rows[place(steps, signs)])
    before, left_over = _herding(z) / 2, float(np.abs(rows.sum(axis=0)).max())
    signed = _herding(signs[:, None] * z) / 2
    return _both(
        "Lemma 3", "lem:basic-balancing-reordering", after, before + left_over, signed, walk * longest / 2,
        setting.delta, rule is None,
    )  # fmt: skip


def _pairs(
    z: Matrix,
    steps: Order,
    rows: Matrix,
    setting: Setting,
    rule: SignRule | None,
    seed: int,
    cohort: int | None,
) -> list[Check]:
    walk, longest = setting.walk(pairs=True), _longest(rows)
    signs, _, _ = balance(z[::2] - z[1::2], rule or _walk(walk, 2 * longest), seed=seed)
    both = np.column_stack([signs, -signs]).ravel().astype(np.int8)
    every = cohort or 1
    after = _herding(rows[place(steps, both)], every)
    before, left_over = _herding(z, every) / 2, float(np.abs(rows.sum(axis=0)).max())
    signed = _herding(signs[:, None] * (z[::2] - z[1::2])) / 2
    label = "lem:FL:pair-balancing-reordering" if cohort else "lem:pair-balancing-reordering"
    return _both(
        f"Lemma {5 if cohort else 4}", label, after, before + left_over, signed, walk * longest,
        setting.delta, rule is None,
    )  # fmt: skip


def _both(
    name: str,
    label: str,
    after: float,
    certain: float,
    signed: float,
    chance: float,
    delta: float,
    promised: bool,
) -> list[Check]:
    left = np.array([after])
    reasons = () if promised else ("the bound is about the walk of Algorithm alg:balancing alone",)
    return [
        Check(f"{name}, relation", label, left, np.array([certain + signed]), 1.0),
        Check(f"{name}, bound", label, left, np.array([certain + chance]), 1 - delta, reasons),
    ]


def _walk(reach: float, longest: float) -> Walk:
    return Walk(reach * longest**2 or math.ulp(1.0))


def _longest(rows: Matrix) -> float:
    return float(np.linalg.norm(rows, axis=1).max())


def _herding(rows: Matrix, every: int = 1) -> float:
    return float(np.abs(np.cumsum(rows, axis=0)[every - 1 :: every]).max())
