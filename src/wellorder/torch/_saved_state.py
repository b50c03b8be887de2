"""A loader's state as tensors, numbers and strings: safe to load with ``weights_only=True``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from wellorder._arguments import shown
from wellorder._order import Policy, load_state_dict, state_dict
from wellorder.torch._observing import Observer, RunningOrderError

COUNTS = ("observed", "unobserved", "not_finite", "steps")
NUMBERS: dict[str, float] = {
    "step": 0, "ranks": 1, "rank": 0, "seen_in": -1, "postponed": 0, "seconds": 0.0, "wall": 0.0,
}  # fmt: skip
"""What each of them is where it is missing, and at least; and of what kind."""
SPOILT = (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError, RuntimeError)
"""What is raised where something else than what was saved is read."""
LOOKED_AT = 1000
"""Given rows, about so many, that are compared with a state's."""
_OTHER_ROWS = (
    "the rows given to this loader are not those in the state that was loaded, which are used: orders go on "
    "as they were. Begin anew if the data set or its features have changed"
)


def packed(observer: Observer) -> dict[str, Any]:
    """The contents, copied, of an observer in which no rows are pending but for other ranks'."""
    running = observer.running_error
    held = {f.name: getattr(observer.state, f.name) for f in fields(observer.state)}
    state = replace(observer.state, **{name: v.double() for name, v in held.items() if isinstance(v, Tensor)})
    sums = np.stack(running.sums) if running.sums else np.zeros((0, 0), np.float32)
    return {
        "policy": {name: _tensor(value) for name, value in state_dict(observer.policy, state).items()},
        "counts": {name: getattr(observer, name) for name in COUNTS},
        "errors": torch.tensor(observer.errors, dtype=torch.float64),
        "running_error": {
            "sums": torch.from_numpy(sums),
            "counts": torch.tensor(running.counts, dtype=torch.int64),
        },
        **({"pending": observer.pending()} if observer.together else {}),
    }


def unpacked(policy: Policy[Any], mapping: Mapping[str, Any], like: Tensor | None, **how: Any) -> Observer:
    """The observer that `packed` saved; exact signals' accumulators go back to where the model lives.

    Rows that wait for other ranks' are the caller's to put back; ``how`` says how an observer is made.
    """
    try:
        plain = {name: _array(value) for name, value in mapping["policy"].items()}
        counts, errors = mapping["counts"], mapping["errors"]
        sums, sizes = mapping["running_error"]["sums"], mapping["running_error"]["counts"]
    except SPOILT as error:
        raise ValueError(
            f"damaged state: {error} is missing; load a whole state_dict of an OrderedLoader"
        ) from error
    try:
        told = {name: int(counts[name]) for name in COUNTS}
        past, running = [float(value) for value in errors], RunningOrderError()
        running.sums, running.counts = [*np.array(_array(sums), np.float32)], [int(count) for count in sizes]
        if np.ndim(_array(sums)) != 2 or len(running.sums) != len(running.counts):
            raise ValueError("running_error needs a row and a count for each batch")
    except SPOILT as error:
        raise ValueError(
            f"damaged state: its counts or order errors are spoilt ({error}); load an intact copy"
        ) from error
    state = load_state_dict(policy, plain)
    if like is not None:
        vectors = {f.name: getattr(state, f.name) for f in fields(state)}
        homes = {name: torch.from_numpy(v).to(like) for name, v in vectors.items() if _is_vector(v)}
        state = replace(state, **homes)
    observer = Observer(policy, state, **how)
    for name, count in told.items():
        setattr(observer, name, count)
    observer.errors, observer.running_error = past, running
    return observer


def checked(mapping: Mapping[str, Any], ours: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """A state with all its `NUMBERS`; refuses a damaged one, and that of a loader with other batches.

    On other ``ranks`` the size of batches may differ.
    """
    theirs = mapping.get("loader") if isinstance(mapping, Mapping) else None
    if not isinstance(theirs, Mapping) or "step" not in mapping:
        raise ValueError(
            f"mapping={shown(mapping)}: this is no OrderedLoader's state_dict; load what loader.state_dict() "
            "gave"
        )
    numbers = {name: _number(name, mapping.get(name, least), least) for name, least in NUMBERS.items()}
    for name, value in ours.items():
        if name == "batch_size" and numbers["ranks"] != ranks:
            continue
        if getattr(theirs.get(name), "ndim", 0) or theirs.get(name) != value:
            raise ValueError(
                f"this state was saved with {name}={shown(theirs.get(name))}, and this loader has "
                f"{name}={value!r}; make the loader as it was when the state was saved"
            )
    return {**mapping, **numbers}


def _number(name: str, value: Any, least: float) -> float:
    """A number of the same kind as the ``least`` that it may be."""
    try:
        number = type(least)(value)
    except SPOILT:
        number = math.nan
    if not number >= least:
        raise ValueError(f"damaged state: {name}={shown(value)}; load an intact copy")
    return number


def check_given(own: Any, loaded: Any) -> None:
    """Refuse a state without the rows that this loader was given; say so if those in it are others."""
    if not hasattr(own, "given"):  # a policy of the user's, whose state is its own
        return
    length, there = own.given, loaded.given
    if there != length:
        what = f"rows of {there} numbers" if there else "no rows"
        raise ValueError(
            f"this state was saved by a loader that was given {what}, and this one was given rows of "
            f"{length} numbers, which would be lost; leave rows= out to go on as before, or begin anew"
        )
    some = slice(None, None, -(-len(own.rows) // LOOKED_AT))
    ours, theirs = own.rows[some, :length], loaded.rows[some, :length]
    if not np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(np.abs(ours).max(initial=0.0))):
        warnings.warn(_OTHER_ROWS, UserWarning, stacklevel=3)


def with_all_pending(state: dict[str, Any]) -> dict[str, Any]:
    """A state for all ranks, each of which must call this: it holds what any of them saw."""
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, (state["rank"], state.pop("pending")))
    return {**state, "pending_of_all": dict(found)}


def with_own_pending(mapping: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """A state that `with_all_pending` made, as this rank would have saved it alone; others as they are."""
    every = mapping.get("pending_of_all", {})
    return {**mapping, "rank": rank, "pending": every[rank]} if rank in every else mapping


def reopened(policy: Policy[Any], state: Any) -> Any:
    """The state at its epoch's start, with all that is known by now."""
    if not getattr(state, "seen", 0):
        return state
    if not hasattr(policy, "open"):
        raise ValueError(
            f"this state was saved in mid-epoch on another number of ranks, and {type(policy).__name__} "
            "cannot begin an epoch anew; load it on as many ranks, or one that was saved at an epoch's end"
        )
    return policy.open(state, state.epoch)


def _is_vector(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float64 and value.size > 0


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
