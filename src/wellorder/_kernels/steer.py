"""Steering: choose the next example, among a few of a window, so that the running sum turns back.

The window holds centred rows z and one over their lengths. A step draws some of its members, emits the one
with the smallest ⟨z, s⟩/‖z‖, where s is the sum of the rows emitted so far, and adds it to s. It goes by
direction alone: the smallest ‖s + z‖ would give a lower order error, and ruin training, because it takes
short rows first and leaves the hard examples to the end. By direction it is short rows that are seldom chosen
near the end of training, and wait for the epoch's; so a row's length may stand in it as one more number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from wellorder._compiled import fast, jit, prefetch
from wellorder._order import Order, Rows, rng

Ints = npt.NDArray[np.int64]
PARTS = (256, 8192)
"""Units that are taken in at a time, where an order is wanted as it is made. The first come soon; then twice
as many each time, up to the second number: who makes them in a thread takes Python's lock for each part."""
LINE = 16
"""Numbers in a line of the processor's cache."""


class Window:
    """Examples that wait to be emitted: their numbers, their centred rows, and the sum of all emitted so far.

    A row may be zero but for one block of ``width`` numbers (one-hot label ⊗ anything: a block for each
    label). Then the window holds the block b alone, and in which place of a row it stands. With the mean m,
    z = b - m, and ⟨z, s⟩ = ⟨b, s⟩ - ⟨m, s⟩: a product over the block, less one that all rows share.

    Numbers of different kinds may stand in one row: ``weights`` say what each counts, once its mean is off.
    Then rows are no blocks, and the mean is the same in all calls.

    With ``lengths``, so many times what a row is longer than ``usual`` stands beside its other numbers, as
    one more of them, and its sum beside theirs. Then rows are no blocks, and the mean stays, too.

    Memory is O(window · width), whatever passes through it; a step costs O(candidates · width + dim).
    """

    def __init__(
        self,
        size: int,
        dim: int,
        candidates: int,
        draw: np.random.Generator,
        width: int | None = None,
        weights: npt.NDArray[np.float64] | None = None,
        *,
        lengths: float = 0.0,
        usual: float = 0.0,
    ) -> None:
        self.candidates = candidates
        self.weights = np.ones(dim) if weights is None else weights
        self.lengths = np.array([lengths, usual])
        self.numbers = np.empty(size, np.int64)
        self.places = None if width is None else np.empty(size, np.int64)
        self.rows = np.empty((size, dim if width is None else width), np.float32)
        self.scales, self.beside = np.empty(size, np.float32), np.zeros(size, np.float32)
        self.excess = np.zeros(1)
        """The sum of what stood beside the rows emitted so far."""
        self.total, self.near = np.zeros(dim), np.zeros(dim, np.float32)
        self.filled = self.emitted = 0
        self.mean: npt.NDArray[np.float64] | None = None
        self.draws = draw.integers(2**63, size=1, dtype=np.uint64)

    def take_in(
        self,
        rows: Rows,
        which: Ints,
        numbers: Ints,
        mean: npt.NDArray[np.float64],
        places: Ints | None = None,
    ) -> Ints:
        """Take in ``rows[which]``, called ``numbers``; returns the numbers that leave the full window.

        Where rows are blocks, ``rows[i]`` stands in its row from ``places[i] * width`` on, and the mean is
        the same in all calls. Else a ``mean`` other than the last call's (a running one) holds for all that
        came before, too: the sum is that of the rows emitted so far less as many times this mean.
        """
        if self.places is None and self.mean is not None and not np.array_equal(mean, self.mean):
            shift = mean - self.mean
            _shift(
                self.rows, self.weights, self.lengths, self.beside, self.scales, self.filled, self.total,
                self.near, shift, self.emitted,
            )  # fmt: skip
        self.mean = mean.copy()
        out = np.empty(len(which), np.int64)
        self.filled, gone = _take_in(
            rows, places, which, numbers, mean, self.weights, self.lengths, self.filled, self.candidates,
            self.draws, self.numbers, self.rows, self.places, self.beside, self.scales, self.total, self.near,
            self.excess, out,
        )  # fmt: skip
        self.emitted += gone
        return out[:gone]

    def carry_on(self, total: npt.NDArray[np.float64], draws: int) -> None:
        """Go on as the window did whose sum and random state these were, after its members were taken in."""
        self.total[:], self.draws[0] = total, draws
        self.near[:] = self.total

    def drain(self) -> Ints:
        """Emit all that is left, steered to the end."""
        out = np.empty(self.filled, np.int64)
        if self.filled:
            _drain(
                self.filled, self.candidates, self.draws, self.mean, self.numbers,
                self.rows, self.places, self.beside, self.scales, self.total, self.near, self.excess, out,
            )  # fmt: skip
        self.emitted += self.filled
        self.filled = 0
        return out


def steered(
    rows: Rows,
    order: Order,
    mean: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64] | None,
    rule: tuple[int, int, float],
    draws: tuple[int, int],
) -> Iterator[Order]:
    """Steer ``rows[order]``, which come in this order, about ``mean``; ``draws``: the seed and the epoch.

    ``rule``: the window, the candidates, and what lengths count. ``weights`` say what each number of a row
    counts, as much as any other where there are none.

    Gives the new order part by part, as it is made. O(n·candidates·k) time.
    """
    (window, candidates, lengths), (seed, epoch) = rule, draws
    size, drawn = min(window, len(order)), rng(seed, epoch, "steering")
    weights = np.ones(len(mean)) if weights is None else weights
    usual = _usual(rows, order, mean, weights) if lengths else 0.0
    held = Window(size, rows.shape[1], candidates, drawn, weights=weights, lengths=lengths, usual=usual)
    at, (part, most) = 0, PARTS
    while at < len(order):
        which = order[at : at + part].astype(np.int64)
        yield held.take_in(rows, which, which, mean).astype(order.dtype)
        at, part = at + part, min(2 * part, most)
    yield held.drain().astype(order.dtype)


@jit
def draw(draws):  # type: ignore[no-untyped-def]
    """The next 64 random bits (splitmix64): one state, no memory, the same on every machine."""
    draws[0] += np.uint64(0x9E3779B97F4A7C15)
    x = draws[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def _member(draws, filled):  # type: ignore[no-untyped-def]
    return np.int64(((draw(draws) >> np.uint64(32)) * np.uint64(filled)) >> np.uint64(32))


@fast
def _along(rows, a, b, c, d, near):  # type: ignore[no-untyped-def]
    """Four rows' products with the sum, in one loop: it is read once, and the rows' reads overlap."""
    first, second, third, fourth = rows[a], rows[b], rows[c], rows[d]
    x = y = z = w = np.float32(0.0)
    for k in range(len(near)):
        x += first[k] * near[k]
        y += second[k] * near[k]
        z += third[k] * near[k]
        w += fourth[k] * near[k]
    return x, y, z, w


@fast
def _along_blocks(rows, places, a, b, c, d, near):  # type: ignore[no-untyped-def]
    """The same of four rows that are blocks: each meets its own part of the sum."""
    width = rows.shape[1]
    first, second, third, fourth = rows[a], rows[b], rows[c], rows[d]
    one, two = near[places[a] * width :], near[places[b] * width :]
    three, four = near[places[c] * width :], near[places[d] * width :]
    x = y = z = w = np.float32(0.0)
    for k in range(width):
        x += first[k] * one[k]
        y += second[k] * two[k]
        z += third[k] * three[k]
        w += fourth[k] * four[k]
    return x, y, z, w


@jit
def _choose(  # type: ignore[no-untyped-def]
    filled, candidates, draws, rows, places, beside, scales, near, excess, shared
):
    """The member, among ``candidates`` random ones, that points most against the sum."""
    best, least = np.int64(0), np.float32(np.inf)
    long = np.float32(excess[0])
    for done in range(0, candidates, 4):
        a = _member(draws, filled)
        b = _member(draws, filled) if done + 1 < candidates else a
        c = _member(draws, filled) if done + 2 < candidates else a
        d = _member(draws, filled) if done + 3 < candidates else a
        if places is None:
            x, y, z, w = _along(rows, a, b, c, d, near)
        else:
            x, y, z, w = _along_blocks(rows, places, a, b, c, d, near)
        for at, product in ((a, x), (b, y), (c, z), (d, w)):
            along = (product - shared + beside[at] * long) * scales[at]
            if along < least:
                best, least = at, along
    return best


@fast
def _add(row, total, near):  # type: ignore[no-untyped-def]
    """The sum is kept in float64, and looked at in float32."""
    for k in range(len(total)):
        total[k] += np.float64(row[k])
        near[k] = np.float32(total[k])


@fast
def _add_block(block, place, mean, total, near):  # type: ignore[no-untyped-def]
    """Add a row that is a block, less the mean; returns the sum's product with the mean."""
    mine = total[place * len(block) :]
    for k in range(len(block)):
        mine[k] += np.float64(block[k])
    return _less(1.0, mean, total, near)


@fast
def _less(times, mean, total, near):  # type: ignore[no-untyped-def]
    """Take the mean off the sum, so many times; returns their product, which follows from the sum alone."""
    product = 0.0
    for k in range(len(total)):
        total[k] -= times * mean[k]
        near[k] = np.float32(total[k])
        product += mean[k] * total[k]
    return np.float32(product)


@fast
def _square(row, mean, weights):  # type: ignore[no-untyped-def]
    """The squared length of a row less the mean."""
    square = 0.0
    for k in range(len(mean)):
        z = (np.float64(row[k]) - mean[k]) * weights[k]
        square += z * z
    return square


@jit
def _usual(rows, order, mean, weights):  # type: ignore[no-untyped-def]
    """The mean length of the rows of ``order``."""
    total, every = 0.0, len(order) == len(rows)
    for i in range(len(order)):
        total += np.sqrt(_square(rows[i if every else order[i]], mean, weights))
    return total / len(order)


@fast
def _put(row, mean, weights, lengths, place, beside, scale, at):  # type: ignore[no-untyped-def]
    length = 0.0
    for k in range(len(mean)):
        z = (np.float64(row[k]) - mean[k]) * weights[k]
        place[k] = np.float32(z)
        length += z * z
    if lengths[0] > 0.0:
        longer = lengths[0] * (np.sqrt(length) - lengths[1])
        beside[at] = np.float32(longer)
        length += longer * longer
    scale[at] = np.float32(1.0 / np.sqrt(length)) if length > 0.0 else np.float32(0.0)


@fast
def _put_block(row, mean, square, place, scale, at):  # type: ignore[no-untyped-def]
    """``mean`` is that of the block's place, and ``square`` the whole mean's squared length."""
    length = square
    for k in range(len(row)):
        b = np.float64(row[k])
        place[k] = np.float32(b)
        length += b * (b - 2.0 * mean[k])
    scale[at] = np.float32(1.0 / np.sqrt(length)) if length > 0.0 else np.float32(0.0)


@jit
def _shift(window, weights, lengths, beside, scales, filled, total, near, shift, emitted):  # type: ignore[no-untyped-def]
    for at in range(filled):
        _put(window[at], shift, weights, lengths, window[at], beside, scales, at)
    for k in range(len(total)):
        total[k] -= emitted * shift[k]
        near[k] = np.float32(total[k])


@jit
def _take_in(  # type: ignore[no-untyped-def]
    rows, blocks, which, numbers, mean, weights, lengths, filled, candidates, draws,
    held, window, places, beside, scales, total, near, excess, out,
):  # fmt: skip
    gone, square = 0, 0.0
    for k in range(len(mean)):  # np.dot would need SciPy here
        square += mean[k] * mean[k]
    shared = np.float32(0.0) if places is None else _less(0.0, mean, total, near)
    for i in range(len(which)):
        at = filled
        for k in range(0, rows.shape[1], LINE):
            prefetch(rows, which[i], k)  # it is known what comes: fetch it while the next one is chosen
        if filled == len(held):
            at = _choose(filled, candidates, draws, window, places, beside, scales, near, excess, shared)
            out[gone] = held[at]
            excess[0] += np.float64(beside[at])
            gone += 1
            if places is None:
                _add(window[at], total, near)
            else:
                shared = _add_block(window[at], places[at], mean, total, near)
        else:
            filled += 1
        held[at] = numbers[i]
        if places is None:
            _put(rows[which[i]], mean, weights, lengths, window[at], beside, scales, at)
        else:
            places[at] = blocks[which[i]]
            mine = mean[places[at] * rows.shape[1] :]
            _put_block(rows[which[i]], mine, square, window[at], scales, at)
    return filled, gone


@jit
def _drain(  # type: ignore[no-untyped-def]
    filled, candidates, draws, mean, held, window, places, beside, scales, total, near, excess, out
):
    count = filled
    shared = np.float32(0.0) if places is None else _less(0.0, mean, total, near)
    for i in range(count):
        at = _choose(filled, candidates, draws, window, places, beside, scales, near, excess, shared)
        out[i] = held[at]
        excess[0] += np.float64(beside[at])
        if places is None:
            _add(window[at], total, near)
        else:
            shared = _add_block(window[at], places[at], mean, total, near)
            places[at] = places[filled - 1]
        filled -= 1
        held[at] = held[filled]
        scales[at], beside[at] = scales[filled], beside[filled]
        window[at] = window[filled]
