"""The public contract checks: what every policy promises, ours and yours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._arguments import flag, function, whole_number
from wellorder._order import (
    Order,
    Policy,
    is_permutation,
    load_state_dict,
    policy_of,
    remembers,
    rng,
    state_dict,
)

EPOCHS = 4
DIM = 3


class ContractError(ValueError):
    """A policy broke a promise; the message names the promise and shows how."""

    __module__ = "wellorder"  # a traceback names the address that users know


@dataclass(frozen=True)
class Trial:
    """A policy under test, and how to feed it."""

    policy: Policy[Any]
    permutation: bool
    convert: Callable[[npt.NDArray[np.float64]], Any]
    sizes: tuple[int, ...] = (1, 2, 3, 8, 13)

    @property
    def n(self) -> int:
        """The size to use where one is enough."""
        return self.sizes[-1]

    def rows(self, n: int, epoch: int) -> npt.NDArray[np.float64]:
        """Made-up signals, indexed by unit, with one mean and one scale that no policy expects."""
        return 3.0 + 5.0 * rng(n, epoch, "check").standard_normal((n, DIM))

    def observe(self, state: Any, units: Order, rows: npt.NDArray[np.float64]) -> Any:
        """Show the policy the signals of ``units``."""
        return self.policy.observe(state, units, self.convert(rows[units]))

    def epoch(self, state: Any, block: int = 4, skip: frozenset[int] = frozenset()) -> Any:
        """Visit what the policy wants to see of this epoch, ``block`` units at a time."""
        needs = self.policy.needs
        if needs.at_visits() or needs.at_start(state.epoch):
            order, rows = state.order.copy(), self.rows(len(state.order), state.epoch)
            order = np.array([unit for unit in order if int(unit) not in skip], order.dtype)
            for at in range(0, len(order), block):
                state = self.observe(state, order[at : at + block], rows)
        return state

    def orders(self, n: int, seed: int, block: int = 4) -> list[list[int]]:
        """The orders of the first epochs."""
        state, orders = self.policy.init(n, seed=seed), []
        for _ in range(EPOCHS):
            state = self.epoch(state, block)
            orders.append(state.order.tolist())
            state = self.policy.advance(state)
        return orders


def check_policy(
    policy: Policy[Any],
    *,
    permutation: bool = True,
    convert: Callable[[npt.NDArray[np.float64]], Any] | None = None,
    units: int | None = None,
) -> None:
    """Check that ``policy`` keeps every promise of the contract; `ContractError` names the first it breaks.

    Parameters
    ----------
    policy
        A frozen dataclass with ``needs``, ``init``, ``observe`` and ``advance``.
    permutation
        False for a policy that draws with replacement.
    convert
        Turns NumPy rows into the signals to show it, e.g. ``torch.from_numpy``; rows themselves by default.
    units
        The only number of units that the policy accepts (8 or more), if it is tied to one.

    >>> from wellorder import PairGraB
    >>> check_policy(PairGraB())
    """
    policy_of(policy)
    flag("permutation", permutation)
    if convert is not None:
        function("convert", convert, "from NumPy rows to signals")
    if units is not None:
        whole_number("units", units, least=8, cure="pass the policy's own number of units, 8 or more")
    sizes = Trial.sizes if units is None else (units,)
    trial = Trial(policy, permutation, convert or (lambda rows: rows), sizes)
    for promise in PROMISES:
        promise(trial)


def is_frozen_printable_comparable(trial: Trial) -> None:
    """A policy is a frozen dataclass; its print tells the settings, and equal settings are equal."""
    policy = trial.policy
    _expect(is_dataclass(policy), is_frozen_printable_comparable, "it is not a dataclass")
    names = [f.name for f in fields(policy) if f.init]  # type: ignore[arg-type]
    twin = type(policy)(**{name: getattr(policy, name) for name in names})
    _expect(policy == twin, is_frozen_printable_comparable, f"{policy!r} != {twin!r}")
    _expect(type(policy).__name__ in repr(policy), is_frozen_printable_comparable, f"it prints as {policy!r}")
    try:
        setattr(policy, names[0] if names else "anything", None)
    except (FrozenInstanceError, TypeError):
        return
    raise ContractError(f"{_name(is_frozen_printable_comparable)}: its fields can be set")


def orders_are_permutations(trial: Trial) -> None:
    """Every epoch's order holds each unit exactly once, for any n, odd or even; int32 below 2³¹ units."""
    for n in trial.sizes:
        state = trial.policy.init(n, seed=1)
        for _ in range(EPOCHS):
            state = trial.epoch(state)
            _expect_order(trial, state, n, orders_are_permutations)
            state = trial.policy.advance(state)


def same_seed_same_orders(trial: Trial) -> None:
    """The same seed gives the same orders, whatever else draws random numbers."""
    first = trial.orders(trial.n, seed=5)
    kept = np.random.get_state()  # noqa: NPY002  (the global generator is what must not matter)
    np.random.seed(0)  # noqa: NPY002
    second = trial.orders(trial.n, seed=5)
    np.random.set_state(kept)  # noqa: NPY002
    _expect(first == second, same_seed_same_orders, f"{first} and then {second}")


def seeds_are_not_shifted_copies(trial: Trial) -> None:
    """Seed s+1 is not seed s one epoch later."""
    one, two = trial.orders(trial.n, seed=0), trial.orders(trial.n, seed=1)
    fixed = len({tuple(order) for order in one}) == 1
    shifted = one[1:] == two[:-1] or two[1:] == one[:-1]
    _expect(fixed or not shifted, seeds_are_not_shifted_copies, f"seed 0 gave {one}, seed 1 {two}")


def epochs_are_counted(trial: Trial) -> None:
    """A state is frozen, and tells its seed, its epoch and its order."""
    state = trial.policy.init(trial.n, seed=7)
    try:
        state.epoch = 5
    except (FrozenInstanceError, AttributeError, TypeError):
        pass
    else:
        raise ContractError(f"{_name(epochs_are_counted)} But its epoch can be set; use a frozen dataclass")
    for epoch in range(3):
        said = (state.seed, state.epoch, len(state.order))
        _expect(
            said == (7, epoch, trial.n), epochs_are_counted, f"epoch {epoch} says (seed, epoch, n) = {said}"
        )
        state = trial.policy.advance(trial.epoch(state))


def block_size_does_not_matter(trial: Trial) -> None:
    """Orders are the same however an epoch is cut into blocks, blocks that split a pair included."""
    for n in trial.sizes:
        whole = trial.orders(n, seed=2, block=n)
        for block in (1, 2, 3, 5):
            cut = trial.orders(n, seed=2, block=block)
            _expect(whole == cut, block_size_does_not_matter, f"n={n}: {whole} whole, {cut} by {block}")


def arguments_are_untouched(trial: Trial) -> None:
    """``observe`` writes neither to ``units`` nor to ``signals``."""
    if not _looks(trial):
        return
    state = trial.policy.init(trial.n, seed=3)
    rows, order = trial.rows(trial.n, 0), state.order.copy()
    for at in (0, 3):
        units = order[at : at + 3].copy()
        signals = trial.convert(rows[units])
        before = np.asarray(signals).copy()
        state = trial.policy.observe(state, units, signals)
        same = np.array_equal(units, order[at : at + 3]) and np.array_equal(np.asarray(signals), before)
        _expect(same, arguments_are_untouched, "an argument changed")


def buffers_are_not_kept(trial: Trial) -> None:
    """What the caller does with its buffers after ``observe`` changes nothing."""
    if not _looks(trial):
        return
    for block in (1, trial.n):
        expected, state = trial.orders(trial.n, seed=4, block=block), trial.policy.init(trial.n, seed=4)
        for epoch in range(EPOCHS):
            if trial.policy.needs.at_visits() or trial.policy.needs.at_start(epoch):
                rows, order = trial.rows(trial.n, epoch), state.order.copy()
                for at in range(0, trial.n, block):
                    units = order[at : at + block].copy()
                    signals = rows[units]
                    state = trial.policy.observe(state, units, trial.convert(signals))
                    units[:], signals[:] = 0, np.nan
            _expect(state.order.tolist() == expected[epoch], buffers_are_not_kept, f"epoch {epoch} changed")
            state = trial.policy.advance(state)


def states_are_independent(trial: Trial) -> None:
    """Two states of one policy do not know each other."""
    expected = trial.orders(trial.n, seed=6)
    mine, other = trial.policy.init(trial.n, seed=6), trial.policy.init(trial.n, seed=9)
    for epoch in range(EPOCHS):
        mine, other = trial.epoch(mine), trial.epoch(other)
        _expect(mine.order.tolist() == expected[epoch], states_are_independent, f"epoch {epoch} changed")
        mine, other = trial.policy.advance(mine), trial.policy.advance(other)


def resume_in_mid_epoch(trial: Trial) -> None:
    """A state saved at any step and loaded again goes on as if nothing had happened."""
    for n in trial.sizes[-2:]:
        expected = trial.orders(n, seed=8, block=1)
        state = trial.policy.init(n, seed=8)
        for epoch in range(EPOCHS):
            state = load_state_dict(trial.policy, state_dict(trial.policy, state))
            if trial.policy.needs.at_visits() or trial.policy.needs.at_start(epoch):
                order, rows = state.order.copy(), trial.rows(n, epoch)
                for at in range(n):
                    state = trial.observe(state, order[at : at + 1], rows)
                    state = load_state_dict(trial.policy, state_dict(trial.policy, state))
            _expect(state.order.tolist() == expected[epoch], resume_in_mid_epoch, f"n={n}, epoch {epoch}")
            state = trial.policy.advance(state)


def unobserved_units_are_kept(trial: Trial) -> None:
    """Units that were never shown are neither lost nor doubled, nor is an epoch in which none was."""
    for n in trial.sizes:
        for skip in (range(n), range(0, n, 2), range(1)):
            state = trial.policy.init(n, seed=2)
            for _ in range(EPOCHS):
                state = trial.policy.advance(trial.epoch(state, skip=frozenset(skip)))
                _expect_order(trial, state, n, unobserved_units_are_kept)


def bad_signals_are_refused(trial: Trial) -> None:
    """NaN, infinity, wrong shapes: a ValueError, and the state goes on as if they had not come."""
    if not _looks(trial):
        return

    def spoil(rows: npt.NDArray[np.float64], value: float) -> npt.NDArray[np.float64]:
        bad = rows.copy()
        bad[1, 1] = value
        return bad

    spoils: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {
        "NaN": lambda rows: spoil(rows, np.nan),
        "infinity": lambda rows: spoil(rows, np.inf),
        "one row too few": lambda rows: rows[:-1],
        "one row too many": lambda rows: np.vstack([rows, rows[:1]]),
        "a 1-D array": lambda rows: rows[:, 0].copy(),
        "a 3-D array": lambda rows: rows[:, :, None].copy(),
        "another dimension": lambda rows: np.ascontiguousarray(rows[:, :-1]),
    }
    for what, spoiled in spoils.items():
        for later in (True, False):  # the units come again, or are left out, as the message advises
            _survives(trial, what, spoiled, later)


def _survives(
    trial: Trial, what: str, spoiled: Callable[[npt.NDArray[np.float64]], Any], later: bool
) -> None:
    """Compare the orders after a refusal with those of a policy that never met the bad block."""
    state, twin = trial.policy.init(trial.n, seed=5), trial.policy.init(trial.n, seed=5)
    for epoch in range(EPOCHS):
        if trial.policy.needs.at_visits() or trial.policy.needs.at_start(epoch):
            order, rows = state.order.copy(), trial.rows(trial.n, epoch)
            rest = order[3 if later else 6 :]
            state = trial.observe(state, order[:3], rows)
            bad = trial.convert(spoiled(rows[order[3:6]]))
            _refuses(trial.policy.observe, state, order[3:6], bad, what, bad_signals_are_refused)
            state = trial.observe(state, rest, rows)
            twin = trial.observe(trial.observe(twin, order[:3], rows), rest, rows)
        same = state.order.tolist() == twin.order.tolist()
        _expect(same, bad_signals_are_refused, f"after {what}, epoch {epoch} changed")
        state, twin = trial.policy.advance(state), trial.policy.advance(twin)


def bad_units_are_refused(trial: Trial) -> None:
    """Unknown, repeated or out-of-turn units: a ValueError, and the state goes on as if they had not come."""
    if not trial.permutation:
        return
    expected, state = trial.orders(trial.n, seed=5), trial.policy.init(trial.n, seed=5)
    for epoch in range(EPOCHS):
        shown = trial.policy.needs.at_visits() or trial.policy.needs.at_start(epoch)
        order, rows = state.order.copy(), trial.rows(trial.n, epoch)
        state = trial.observe(state, order[:3], rows)
        wrong: dict[str, list[Any]] = {
            "an unknown unit": [int(order[3]), trial.n],
            "a negative unit": [-1],
            "a unit twice": [int(order[3]), int(order[3])],
            "a unit observed before": [int(order[1])],
            "units out of turn": [int(order[4]), int(order[3])],
            "units that are no ints": [0.5],
        }
        for what, units in wrong.items():
            signals = trial.convert(rows[: len(units)])
            _refuses(trial.policy.observe, state, np.array(units), signals, what, bad_units_are_refused)
        state = trial.observe(state, order[3:], rows)
        if shown:
            ok = state.order.tolist() == expected[epoch]
            _expect(ok, bad_units_are_refused, f"after refusals, epoch {epoch} changed")
        state = trial.policy.advance(state)


def bad_sizes_and_seeds_are_refused(trial: Trial) -> None:
    """No units, or a negative seed: a ValueError that names the argument."""
    for n, seed, argument in [
        (0, 0, "n"),
        (-3, 0, "n"),
        (2.5, 0, "n"),
        (trial.n, -1, "seed"),
        (trial.n, 0.5, "seed"),
    ]:
        try:
            trial.policy.init(n, seed=seed)  # type: ignore[arg-type]
        except ValueError as error:
            named = f"{argument}=" in str(error)
            _expect(named, bad_sizes_and_seeds_are_refused, f"n={n}, seed={seed} said only: {error}")
        else:
            raise ContractError(f"{_name(bad_sizes_and_seeds_are_refused)}: n={n}, seed={seed} was accepted")


def foreign_and_damaged_states_are_refused(trial: Trial) -> None:
    """``load_state_dict`` refuses another policy's state, a missing entry, and a changed order."""
    policy = trial.policy
    saved = state_dict(policy, trial.epoch(policy.init(trial.n, seed=1)))
    damaged = {
        "another policy's state": {**saved, "policy": "SomethingElse()"},
        "a state without its order": {k: v for k, v in saved.items() if k != "order"},
        "a changed order": {**saved, "order": saved["order"][::-1].copy()},
        "a changed epoch": {**saved, "epoch": saved["epoch"] + 1},
    }
    for what, mapping in damaged.items():
        try:
            load_state_dict(policy, mapping)
        except ValueError:
            continue
        raise ContractError(f"{_name(foreign_and_damaged_states_are_refused)}: {what} was accepted")


def what_is_remembered_outlives_advance(trial: Trial) -> None:
    """If a policy ``remembers``, ``advance`` leaves the old state valid, and ``init`` takes ``rows=``."""
    policy, n, promise = trial.policy, trial.n, what_is_remembered_outlives_advance
    if not remembers(policy):
        return
    expected, state = trial.orders(n, seed=3), policy.init(n, seed=3)
    for epoch in range(EPOCHS):
        policy.advance(state)  # as it is made ahead, while the epoch runs
        state = trial.epoch(state)
        _expect(state.order.tolist() == expected[epoch], promise, f"advance changed epoch {epoch}")
        policy.advance(state)
        state = policy.advance(state)
    given: Any = policy
    try:
        known = given.init(n, seed=3, rows=trial.convert(trial.rows(n, 0)))
    except TypeError as error:
        raise ContractError(f"{_name(promise)} But {error}") from error
    _expect_order(trial, known, n, promise)


PROMISES: tuple[Callable[[Trial], None], ...] = (
    is_frozen_printable_comparable,
    orders_are_permutations,
    same_seed_same_orders,
    seeds_are_not_shifted_copies,
    epochs_are_counted,
    block_size_does_not_matter,
    arguments_are_untouched,
    buffers_are_not_kept,
    states_are_independent,
    resume_in_mid_epoch,
    unobserved_units_are_kept,
    bad_signals_are_refused,
    bad_units_are_refused,
    bad_sizes_and_seeds_are_refused,
    foreign_and_damaged_states_are_refused,
    what_is_remembered_outlives_advance,
)
"""One list of promises; each is a function that raises `ContractError`."""


def _looks(trial: Trial) -> bool:
    return trial.policy.needs.at_visits() or trial.policy.needs.at_start(0)


def _name(promise: Callable[[Trial], None]) -> str:
    return f"broken promise: {(promise.__doc__ or '').splitlines()[0]}"


def _expect(kept: bool, promise: Callable[[Trial], None], how: str) -> None:
    if not kept:
        raise ContractError(f"{_name(promise)} But {how}")


def _expect_order(trial: Trial, state: Any, n: int, promise: Callable[[Trial], None]) -> None:
    order = state.order
    kept = (
        is_permutation(order, n)
        if trial.permutation
        else order.shape == (n,) and 0 <= order.min() <= order.max() < n
    )
    _expect(kept, promise, f"n={n}, epoch {state.epoch}: {order}")
    _expect(order.dtype == np.int32, promise, f"its order has dtype {order.dtype}; use int32 below 2³¹ units")
    _expect(not order.flags.writeable, promise, "its order can be written to; make it read-only")


def _refuses(
    verb: Callable[..., Any],
    state: Any,
    units: Any,
    signals: Any,
    what: str,
    promise: Callable[[Trial], None],
) -> None:
    try:
        verb(state, units, signals)
    except ValueError as error:
        named = "unit" in str(error) or "signal" in str(error)
        _expect(named, promise, f"{what} was refused without naming units or signals: {error}")
        return
    raise ContractError(f"{_name(promise)} But {what} was accepted")
