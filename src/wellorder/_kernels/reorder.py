"""Reordering: signs → next order, and the two balance-and-reorder passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, numbers, seed_of, shown
from wellorder._compiled import jit
from wellorder._kernels.balance import NO_VECTOR, add_rows, balance_centred, balance_pairs
from wellorder._kernels.sign_rules import Deterministic, SignRule, checked_rule
from wellorder._kernels.signals import dense
from wellorder._order import Order, Rows, Signs, Vector, is_permutation

BLOCK = 256
"""Rows gathered at a time: memory stays O(BLOCK · d)."""


def reorder(order: npt.ArrayLike, signs: npt.ArrayLike) -> Order:
    """Plus units keep their order in front; minus units follow, reversed.

    ``signs[u]`` belongs to unit ``u``; 0 marks a unit that was not observed, which stays between
    the two groups. O(n) time; 4 bytes a unit beyond the result.

    >>> reorder([4, 3, 1, 0, 2], [-1, 1, 1, -1, 0])
    array([1, 2, 4, 0, 3])
    """
    old = permutation_of(order)
    marks = array_of("signs", signs, cure=f"pass one of -1, 0, +1 for each of the {old.size} units")
    if marks.shape != old.shape or not np.isin(marks, (-1, 0, 1)).all():
        raise ValueError(
            f"signs of shape {marks.shape}: pass one of -1, 0, +1 for each of the {old.size} units"
        )
    return place(old, marks.astype(np.int8)[old])


def permutation_of(order: Any, n: int | None = None) -> Order:
    """Take a permutation of ``n`` units, or of as many as it has."""
    array = array_of("order", order, cure="pass a permutation of the units, a 1-D array")
    size = array.size if n is None else n
    if n == 0:
        raise ValueError("vectors of no rows: pass one for each unit")
    if array.ndim != 1 or not is_permutation(array, size):
        raise ValueError(f"order={shown(array)}: pass a permutation of 0..{size - 1}")
    return array


def place(order: Order, signs: Signs) -> Order:
    """`reorder` with ``signs[t]`` belonging to step ``t``: one pass, 4 bytes a unit, no checks."""
    new = np.empty_like(order)
    _place(order, signs, new)
    return new


@jit
def _place(order, signs, new):  # type: ignore[no-untyped-def]
    middle = 0
    for sign in signs:
        if sign > 0:
            middle += 1
    left, right = 0, len(order) - 1
    for t in range(len(order)):
        if signs[t] > 0:
            new[left] = order[t]
            left += 1
        elif signs[t] < 0:
            new[right] = order[t]
            right -= 1
        else:
            new[middle] = order[t]
            middle += 1


def basic_br(
    order: npt.ArrayLike,
    vectors: Any,
    mean: Vector | None = None,
    rule: SignRule | None = None,
    *,
    seed: int = 0,
) -> Order:
    """Balance the centred vectors along ``order``, then reorder (BasicBR).

    ``vectors[u]`` belongs to unit ``u``; ``mean`` is their average unless given. O(n·d) time.

    >>> basic_br(np.arange(4), np.array([[3.0], [3.0], [-3.0], [-3.0]]))
    array([1, 3, 2, 0])
    """
    rule = Deterministic() if rule is None else checked_rule(rule)
    old, rows, center = _checked(order, vectors, mean)
    signs, total = np.empty(len(old), np.int8), NO_VECTOR
    for start in range(0, len(old), BLOCK):
        steps = slice(start, start + BLOCK)
        block = rows[old[steps]]
        thresholds = rule.thresholds(seed_of(seed), 0, start, len(block))
        signs[steps], total, _ = balance_centred(block, center, total, thresholds, rule.limit)
    return place(old, signs)


def pair_br(
    order: npt.ArrayLike,
    vectors: Any,
    mean: Vector | None = None,
    rule: SignRule | None = None,
    *,
    seed: int = 0,
) -> Order:
    """Balance differences of consecutive vectors, then reorder (PairBR).

    The first of a pair carries the pair's sign, the second the opposite; an unpaired last unit keeps the
    middle. A ``mean`` cancels in the differences: it changes no sign and may be left out. O(n·d) time.

    >>> pair_br(np.arange(5), np.array([[1.0], [4.0], [2.0], [0.0], [9.0]]))
    array([1, 3, 4, 2, 0])
    """
    rule = Deterministic() if rule is None else checked_rule(rule)
    old, rows, _ = _checked(order, vectors, mean)
    signs, total = np.zeros(len(old), np.int8), NO_VECTOR
    for start in range(0, len(old) - 1, BLOCK):
        block = rows[old[start : start + BLOCK]]
        thresholds = rule.thresholds(seed_of(seed), 0, start // 2, len(block) // 2)
        pairs, total, _ = balance_pairs(block, NO_VECTOR, total, thresholds, rule.limit)
        signs[start : start + 2 * len(pairs)] = np.column_stack([pairs, -pairs]).ravel()
    return place(old, signs)


def _checked(order: npt.ArrayLike, vectors: Any, mean: Vector | None) -> tuple[Order, Rows, Vector]:
    rows = dense(vectors, None, "vectors")
    old = permutation_of(order, len(rows))
    if mean is None:
        return old, rows, add_rows(rows, NO_VECTOR) / len(rows)
    center = numbers("mean", mean, cure=f"pass {rows.shape[1]} finite numbers")
    if center.shape != rows.shape[1:] or not np.isfinite(center).all():
        raise ValueError(f"mean of shape {center.shape}: pass {rows.shape[1]} finite numbers")
    return old, rows, center
