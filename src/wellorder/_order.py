"""The contract: what a policy, its state, and a block of signals are."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from wellorder._arguments import array_of, room_for, seed_of, shown, whole_number
from wellorder._compiled import jit

Order = npt.NDArray[np.integer[Any]]
"""The type of an order: a 1-D integer array, of which ``order[t]`` is the unit at step ``t``."""
Signs = npt.NDArray[np.int8]
Rows = npt.NDArray[np.floating[Any]]
Vector = Any
"""A 1-D NumPy array or torch tensor: an accumulator in the space of the signals."""


class Needs(Enum):
    """What a policy must be shown, and when.

    >>> Needs.FRESH_ONCE.at_start(0), Needs.FRESH_ONCE.at_start(1)
    (True, False)
    """

    NOTHING = "nothing"
    SIGNALS = "signals at each visit"
    FRESH = "fresh signals at every epoch's start"
    FRESH_ONCE = "fresh signals at the first epoch's start"

    def at_visits(self) -> bool:
        """Whether the policy observes the signals that training itself produces."""
        return self is Needs.SIGNALS

    def at_start(self, epoch: int) -> bool:
        """Whether, before ``epoch`` is trained, every unit's signal at the current point must be observed."""
        first = whole_number("epoch", epoch, least=0) == 0
        return self is Needs.FRESH or (self is Needs.FRESH_ONCE and first)


class Keeps(Enum):
    """What of a signal a policy works with, and so what it may be shown.

    A policy that keeps ``ROWS`` needs plain 2-D arrays; one that works with ``PRODUCTS`` takes any `Signals`,
    whose vectors nobody has to write out.
    """

    NOTHING = "nothing"
    PRODUCTS = "inner products"
    ROWS = "whole rows"


class State(Protocol):
    """All that a policy remembers: frozen, printable, plain arrays and scalars."""

    @property
    def seed(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def order(self) -> Order: ...


class Remembered:
    """Base of the states here: a copy, or one that comes out of a pickle, is as read-only as the original."""

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        frozen(self.order)  # type: ignore[attr-defined]


S = TypeVar("S", bound=State)
A = TypeVar("A", bound=npt.NDArray[Any])
T = TypeVar("T")


class Policy(Protocol[S]):
    """The rule that turns signals into the next order; a frozen dataclass of hyper-parameters.

    The verbs map a state to a state. The old state is spent: only the one returned is valid,
    and `state_dict` makes a copy for those who want one. A verb that raises leaves its state valid.

    Beside ``needs``, a policy's class may say ``keeps`` (a `Keeps`; rows unless it says otherwise, since
    every policy that looks at signals can look at rows), ``permutes`` (False where an order may hold a unit
    twice) and ``remembers`` (True where signals need not come in every epoch). Read them by `keeps_of`,
    `permutes` and `remembers`, which know what is meant where nothing is said. ``advance`` of a policy that
    remembers leaves the old state valid, so that the next order can be made ahead; its ``init`` takes
    ``rows=``, one for each unit, that are known before the first epoch.
    """

    needs: ClassVar[Needs]

    def init(self, n: int, *, seed: int = 0) -> S:
        """Open epoch 0 over the units ``0..n-1``."""
        ...

    def observe(self, state: S, units: npt.ArrayLike, signals: Any) -> S:
        """Take in the signals of ``units``, which follow ``state.order``; blocks may have any size.

        Units that are passed over stay unobserved. ``units`` and ``signals`` are neither changed nor kept.
        """
        ...

    def advance(self, state: S) -> S:
        """Close this epoch and open the next."""
        ...


def policy_of(policy: Any, name: str = "policy") -> Any:
    """Take a policy: an object with ``needs`` and the three verbs; refuses anything else, its class included.

    >>> from wellorder import GraB
    >>> policy_of(GraB)
    Traceback (most recent call last):
    ValueError: policy=GraB is a class; pass an object: GraB()
    """
    if isinstance(policy, type):
        raise ValueError(f"{name}={policy.__name__} is a class; pass an object: {policy.__name__}()")
    verbs = all(callable(getattr(policy, verb, None)) for verb in ("init", "observe", "advance"))
    if not verbs or not isinstance(getattr(policy, "needs", None), Needs):
        raise ValueError(f"{name}={shown(policy)}: pass a wellorder policy, e.g. wellorder.PairGraB()")
    return policy


def own_state(state: Any, kind: type[T]) -> T:
    """Take a state that a policy's own ``init`` has made; refuses another policy's."""
    if not isinstance(state, kind):
        raise ValueError(
            f"state={shown(state)}: no {kind.__name__} of this policy; pass what its init, observe, advance "
            "or load_state_dict returned"
        )
    return state


def keeps_of(policy: Policy[Any]) -> Keeps:
    """What a policy keeps of the signals it is shown: as its class says, or rows if it looks at any.

    >>> from wellorder import Herding, PairGraB, RandomReshuffling
    >>> [keeps_of(policy).value for policy in (RandomReshuffling(), PairGraB(), Herding())]
    ['nothing', 'inner products', 'whole rows']
    """
    said: Keeps | None = getattr(policy, "keeps", None)
    if said is not None:
        return said
    return Keeps.NOTHING if policy.needs is Needs.NOTHING else Keeps.ROWS


def permutes(policy: Policy[Any]) -> bool:
    """Whether every order of a policy holds each unit exactly once, as all do that do not say otherwise."""
    return bool(getattr(policy, "permutes", True))


def remembers(policy: Policy[Any]) -> bool:
    """Whether a policy keeps what earlier epochs showed, so that not every epoch must show it anything."""
    return bool(getattr(policy, "remembers", False))


@runtime_checkable
class Signals(Protocol):
    """``b`` vectors of a space that nobody has to materialise; a plain 2-D array is one too."""

    def __len__(self) -> int: ...

    def gram(self) -> Any:
        """All inner products of the rows, ``(b, b)``."""
        ...

    def dot(self, vector: Vector) -> Any:
        """The rows' inner products with a vector that `combine` made (or its NumPy copy), ``(b,)``."""
        ...

    def combine(self, weights: npt.NDArray[np.float64]) -> Vector:
        """Sum the rows, weighted: one 1-D array."""
        ...


@runtime_checkable
class SignalShortcuts(Signals, Protocol):
    """What signals may offer beyond the three questions, where they know a cheaper or safer way.

    Each is looked for by name and used where it is found, so a class may have any of them.
    """

    def differences(self, pending: Vector) -> Signals | None:
        """Signals of the differences of consecutive rows, the first row paired with ``pending`` if not empty.

        None says that there is no cheaper way this time.
        """
        ...

    def add_to(self, total: Vector, weights: npt.NDArray[np.float64]) -> Vector:
        """Add the weighted sum of the rows to ``total``, in place if that helps: the old one is spent."""
        ...

    def finite(self) -> npt.NDArray[np.bool_]:
        """Which rows are finite, ``(b,)``; others are left out before a policy sees them."""
        ...

    def take(self, index: npt.NDArray[np.intp]) -> Signals:
        """The signals of some of the rows."""
        ...


def rng(seed: int, epoch: int, stream: str) -> np.random.Generator:
    """Make the generator of one stream in one epoch of one seed, independent of all others.

    >>> rng(0, 1, "order").integers(100) == rng(0, 1, "order").integers(100)
    np.True_
    >>> rng(1, 0, "order").integers(2**60) == rng(0, 1, "order").integers(2**60)
    np.False_
    """
    return np.random.Generator(np.random.PCG64(_entropy(seed, epoch, stream)))


def uniforms(seed: int, epoch: int, stream: str, start: int, count: int) -> npt.NDArray[np.float64]:
    """Draws ``start .. start+count-1`` of a stream of uniforms, whatever was drawn before.

    >>> bool((uniforms(0, 0, "walk", 0, 5)[3:] == uniforms(0, 0, "walk", 3, 2)).all())
    True
    """
    whole_number("start", start, least=0)
    whole_number("count", count, least=0)
    bits = np.random.PCG64(_entropy(seed, epoch, stream))
    with room_for("count", count):
        return np.random.Generator(bits.advance(start)).random(count)


def _entropy(seed: int, epoch: int, stream: str) -> np.random.SeedSequence:
    seed_of(seed)
    whole_number("epoch", epoch, least=0)
    return np.random.SeedSequence(seed, spawn_key=(epoch, zlib.crc32(f"wellorder.{stream}".encode())))


def units_of(n: int, seed: int) -> Order:
    """Units ``0..n-1`` in their own order, int32 below 2³¹; checks ``n`` and ``seed`` on the way in."""
    whole_number("n", n, least=1, cure="there must be at least one unit; pass the number of units")
    seed_of(seed)
    with room_for("n", n):
        return np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)


def shuffled(n: int, seed: int, epoch: int) -> Order:
    """Draw a uniformly random order of ``n`` units for one epoch. O(n) time, 4 bytes a unit."""
    order = units_of(n, seed)
    rng(seed, epoch, "order").shuffle(order)
    return frozen(order)


def frozen(array: A) -> A:
    """Make an array read-only, so that no caller can bend a state; returns it."""
    if not isinstance(array, np.ndarray):
        raise ValueError(f"array={shown(array)}: pass a NumPy array")
    array.setflags(write=False)
    return array


def is_permutation(order: Order, n: int) -> bool:
    """Whether ``order`` holds each of ``0..n-1`` exactly once. O(n) time, one byte a unit."""
    if order.shape != (n,) or order.dtype.kind not in "iu" or not n:
        return False
    if order.min() < 0 or order.max() >= n:
        return False
    seen = np.zeros(n, bool)
    seen[order] = True
    return bool(seen.all())


def visit(order: Order, seen: int, units: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Steps of ``order``, from ``seen`` on, at which ``units`` are visited; refuses units out of turn.

    Steps in between are passed over (a skipped batch, a lost client). Costs O(1) per unit visited
    or passed over, so O(n) an epoch.

    >>> visit(np.array([3, 1, 0, 2]), 1, [1, 2])
    array([1, 3])
    """
    _checked_order(order)
    wanted = array_of("units", units, cure="pass a 1-D array of unit numbers")
    if wanted.ndim != 1 or (wanted.dtype.kind not in "iu" and wanted.size):
        raise ValueError(
            f"units of shape {wanted.shape} and dtype {wanted.dtype}: pass a 1-D array of unit numbers"
        )
    if type(seen) is not int or not 0 <= seen <= len(order):  # compiled code below indexes by it
        raise ValueError(
            f"seen={shown(seen)}: pass an int, for an epoch of {len(order)} steps has seen 0 to {len(order)} "
            "of them"
        )
    steps = np.empty(len(wanted), np.int64)
    found = _match(order, seen, wanted.astype(np.int64), steps)
    if found < len(wanted):
        raise ValueError(_out_of_turn(order, seen, wanted, found))
    return steps


def _checked_order(order: Any) -> None:
    """Compiled code reads it: a plain 1-D array of integers."""
    if type(order) is not np.ndarray or order.ndim != 1 or order.dtype.kind not in "iu":
        raise ValueError(f"order={shown(order)}: pass a 1-D array of unit numbers, such as state.order")


@jit
def _match(order, seen, wanted, steps):  # type: ignore[no-untyped-def]
    step = seen
    for i in range(len(wanted)):
        while step < len(order) and order[step] != wanted[i]:
            step += 1
        if step >= len(order):
            return i
        steps[i] = step
        step += 1
    return len(wanted)


def _out_of_turn(order: Order, seen: int, wanted: npt.NDArray[Any], at: int) -> str:
    unit = wanted[at]
    where = f"units[{at}]={unit}"
    if unit < 0 or unit >= len(order):
        return f"{where}: unknown unit; pass units of the order, 0..{len(order) - 1}"
    if unit in wanted[:at]:
        return f"{where}: given twice; observe each unit once an epoch"
    if unit in order[:seen]:
        return f"{where}: its turn in this epoch has passed, observed or skipped; call advance first"
    return f"{where}: out of turn; pass units in the order state.order[{seen}:] visits them"


def describe(value: Any) -> str:
    """A name for a policy and its hyper-parameters that is the same in every process.

    >>> from wellorder import GraB
    >>> describe(GraB(reorders=2))
    'GraB(rule=Deterministic(), reorders=2)'
    """
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(f"{f.name}={describe(getattr(value, f.name))}" for f in fields(value) if f.init)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple | list):
        text = ", ".join(describe(v) for v in value)
        return (
            f"<{len(value)} values, crc {zlib.crc32(text.encode()):08x}>" if len(text) > 80 else f"({text})"
        )
    if isinstance(value, np.generic):
        return repr(value.item())
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)


def shown_name(name: Any) -> str:
    """A name that was read from somewhere, as an error shows it."""
    return name if isinstance(name, str) and len(name) <= 200 else shown(name)


def state_dict(policy: Policy[S], state: S) -> dict[str, Any]:
    """Copy a state into plain NumPy arrays, ints, floats and strings, with a checksum.

    It goes into npz as it is, into JSON with ``tolist`` for the arrays, and into safetensors or
    ``torch.load(weights_only=True)`` with ``torch.from_numpy`` for them; nothing needs unpickling.

    >>> from wellorder import PairGraB
    >>> sorted(state_dict(PairGraB(), PairGraB().init(4)))[:4]
    ['checksum', 'clipped', 'epoch', 'observed']
    """
    policy_of(policy)
    given: Any = state
    if not is_dataclass(given) or isinstance(given, type) or not hasattr(given, "order"):
        raise ValueError(f"state={shown(state)}: pass what {describe(policy)}'s verbs returned")
    plain = {f.name: _plain(getattr(given, f.name)) for f in fields(given)}
    return {"policy": describe(policy), **plain, "checksum": _checksum(plain)}


def load_state_dict(policy: Policy[S], mapping: Mapping[str, Any]) -> S:
    """Rebuild the state that `state_dict` saved; refuses another policy's state, or a damaged one.

    >>> from wellorder import RandomReshuffling, ShuffleOnce
    >>> load_state_dict(ShuffleOnce(), state_dict(RandomReshuffling(), RandomReshuffling().init(4)))
    Traceback (most recent call last):
    ValueError: this state belongs to RandomReshuffling(), not to ShuffleOnce(); load it ...
    """
    policy_of(policy)
    if not isinstance(mapping, Mapping) or "policy" not in mapping:
        raise ValueError(
            f"mapping={shown(mapping)} is no policy's state: the entry 'policy' is missing; pass what "
            "state_dict returned"
        )
    if str(mapping["policy"]) != describe(policy):  # an array of one text, where it was kept in an .npz file
        raise ValueError(
            f"this state belongs to {shown_name(mapping['policy'])}, not to {describe(policy)}; "
            "load it with the policy that saved it"
        )
    try:
        n, seed = len(mapping["order"]), int(mapping["seed"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"damaged state: order or seed missing or spoilt ({error}); load a whole one"
        ) from error
    blank = policy.init(n, seed=seed)
    names = [f.name for f in fields(blank)]  # type: ignore[arg-type]
    missing = [name for name in [*names, "checksum"] if name not in mapping]
    if missing:
        raise ValueError(f"damaged state: {', '.join(missing)} missing; load a whole state_dict")
    values = {name: _restore(name, mapping[name], getattr(blank, name)) for name in names}
    if _checksum(values) != _restore("checksum", mapping["checksum"], 0):
        raise ValueError("damaged state: its checksum does not match; load an intact copy")
    _check_values(policy, blank, values)
    return type(blank)(**values)


def _check_values(policy: Policy[Any], blank: State, values: Mapping[str, Any]) -> None:
    """Refuse a state that no training makes: a checksum tells damage, not forgery, and kernels trust a state.

    Names mean the same in every policy here: steps ``seen`` and ``observed`` of n, ``waiting`` a step or -1;
    int8 arrays hold signs and marks; ``rows`` has one for each unit, whose first numbers were ``given``.
    Numbers are finite, except where a policy's own first state (``blank``) holds others: NaN may stand for
    what is not known yet.
    """
    order, n = values["order"], len(values["order"])
    if permutes(policy) and not is_permutation(order, n):
        raise ValueError(f"damaged state: order is no permutation of 0..{n - 1}; load an intact copy")
    if order.min() < 0 or order.max() >= n:
        raise ValueError(f"damaged state: order holds units outside 0..{n - 1}; load an intact copy")
    limits = {"epoch": (0, 2**63), "waiting": (-1, n - 1)} | dict.fromkeys(
        ("seen", "observed", "pairs"), (0, n)
    )
    for name, value in values.items():
        low, high = limits.get(name, (-np.inf, np.inf))
        if isinstance(value, int) and not low <= value <= high:
            raise ValueError(f"damaged state: {name}={value} is outside {low}..{high}; load an intact copy")
        if not isinstance(value, np.ndarray):
            continue
        if name in limits and value.size and not (low <= value.min() and value.max() <= high):
            raise ValueError(f"damaged state: {name} is outside {low}..{high}; load an intact copy")
        if value.dtype == np.int8 and value.size and not (value.min() >= -1 and value.max() <= 1):
            raise ValueError(f"damaged state: {name} holds more than -1, 0 and 1; load an intact copy")
        if (
            value.dtype.kind == "f"
            and not np.isfinite(value).all()
            and np.isfinite(getattr(blank, name)).all()
        ):
            raise ValueError(f"damaged state: {name} is not finite; load an intact copy")
        if name == "rows" and value.size and len(value) != n:
            raise ValueError(f"damaged state: {len(value)} rows for {n} units; load an intact copy")
    given, rows, known = (values.get(name) for name in ("given", "rows", "known"))
    if isinstance(given, int) and isinstance(rows, np.ndarray) and isinstance(known, np.ndarray):
        length = rows.shape[1]
        if not 0 <= given <= length:
            raise ValueError(
                f"damaged state: given={given} of {length} numbers in a row; load an intact copy"
            )
        beside = 0 < given < length
        if ((known > 0).any() and not length) or ((known < 0).any() and not beside):
            raise ValueError("damaged state: known marks units that have no rows; load an intact copy")


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return value.item()
    return np.array(value) if isinstance(value, np.ndarray) else value


def _restore(name: str, value: Any, blank: Any) -> Any:
    if not isinstance(blank, np.ndarray):
        try:
            return type(blank)(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"damaged state: {name}={shown(value)} is not of type {type(blank).__name__}; load an intact "
                "copy"
            ) from error
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # what becomes of them is checked next
            array = np.array(_plain(value), dtype=blank.dtype)
    except (TypeError, ValueError, OverflowError, DeprecationWarning) as error:  # NumPy 1 warns, 2 overflows
        raise ValueError(
            f"damaged state: {name} holds no {blank.dtype} numbers; load an intact copy"
        ) from error
    if not array.size and not blank.size:
        array = array.reshape(blank.shape)
    if array.ndim != blank.ndim or (blank.size and array.shape != blank.shape):
        raise ValueError(
            f"damaged state: {name} has shape {array.shape}, expected {blank.shape}; load an intact copy"
        )
    return frozen(array) if not blank.flags.writeable else array


def _checksum(values: Mapping[str, Any]) -> int:
    total = 0
    data: Any
    for name in sorted(values):
        value = values[name]
        if isinstance(value, np.ndarray):
            # Signals may combine in float32, but a state is loaded into a fresh one's dtypes: sum up values.
            wide = value.astype(np.float64, copy=False) if value.dtype.kind == "f" else value
            data = bytes(0) if not wide.size else np.ascontiguousarray(wide).data
        else:
            data = repr(value).encode()
        total = zlib.crc32(data, zlib.crc32(name.encode(), total))
    return total
