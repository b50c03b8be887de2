"""What a foreign strategy object has learnt since it was made: found in its attributes, saved, given back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
MODEL = ("current_arrays", "current_bst", "strategy")
"""Attributes that are no memory: the model, shown anew in every round, and the strategy inside."""


def snapshot(layer: Any) -> dict[str, Any]:
    """The attributes of a new object: plain values as JSON, others themselves."""
    return {name: _text(value) or value for name, value in vars(layer).items() if name not in MODEL}


def remembered(layer: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """All arrays of an object, and the plain values that differ from its `snapshot`; refuses other changes.

    >>> class Momentum: pass
    >>> layer = Momentum(); layer.rate, layer.norm, layer.vector = 0.1, 1.0, None
    >>> before = snapshot(layer)
    >>> layer.norm, layer.vector = 0.5, [np.ones(2)]
    >>> learnt = remembered(layer, before)
    >>> learnt["arrays"], learnt["plain"]
    ({'vector/0': array([1., 1.])}, {'norm': 0.5})
    """
    arrays: Arrays = {}
    kinds, plain = {}, {}
    for name, value in vars(layer).items():
        if name in MODEL:
            continue
        text, parts = _text(value), _parts(value)
        if parts is not None:
            kinds[name] = next((k.__name__ for k in (dict, list, tuple) if isinstance(value, k)), "array")
            arrays |= {f"{name}/{key}": np.asarray(part) for key, part in parts.items()}
        elif text:
            if before.get(name) != text:
                plain[name] = value
        elif before.get(name) is not value:
            kind = type(layer).__name__
            raise ValueError(
                f"inner: {kind}.{name} has become a {type(value).__name__}, which state=… cannot save; "
                "keep it in NumPy arrays (or a list or dict of them) or plain numbers, or leave out state"
            )
    return {"kind": type(layer).__name__, "kinds": kinds, "plain": plain, "arrays": arrays}


def recall(layer: Any, learnt: Mapping[str, Any]) -> None:
    """Give an object back what `remembered` found."""
    kind, arrays = type(layer).__name__, learnt["arrays"]
    if learnt["kind"] != kind:
        raise ValueError(f"inner: {kind}, but the state was saved with {learnt['kind']}; pass that strategy")
    for name, how in learnt["kinds"].items():
        parts = {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}
        many = {"dict": parts, "list": list(parts.values()), "tuple": tuple(parts.values())}
        setattr(layer, name, many[how] if how in many else parts["0"])
    for name, value in learnt["plain"].items():
        setattr(layer, name, value)


def check_memory(layer: Any) -> None:
    """Refuse an object whose memory hides in a part of its own; a restart must not forget spent privacy."""
    if getattr(layer, "accountant", None) is not None:
        raise ValueError(
            f"inner: {type(layer).__name__}(accountant=…) keeps the privacy spent where state=… cannot save "
            "it; leave out state, or the accountant"
        )


def _parts(value: Any) -> dict[str, Any] | None:
    """The arrays of a value that is nothing but arrays."""
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, float | int):
        return {"0": value}
    if isinstance(value, list | tuple):
        parts = {str(i): part for i, part in enumerate(value)}
    elif type(value) is dict and all(isinstance(key, str) for key in value):
        parts = dict(value)
    else:
        return None
    return parts if parts and all(isinstance(p, np.ndarray | np.generic) for p in parts.values()) else None


def _text(value: Any) -> str:
    """JSON of a value that comes back from it the same; else nothing."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return ""
    again = json.loads(text)
    return text if value == again or repr(value) == repr(again) else ""  # NaN differs from itself
