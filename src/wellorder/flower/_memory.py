"""What must survive a restart: a file with two generations, and what a foreign strategy object has learnt."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._saving import load_state, save_state
from wellorder.flower._nodes import LOG

Arrays = dict[str, npt.NDArray[Any]]
MODEL = ("current_arrays", "current_bst", "strategy")
"""Attributes that are no memory: the model, shown anew in every round, and the strategy inside."""


class Memory:
    """The state file of a run, if it has one: written after every round, the round before kept beside it."""

    def __init__(self, path: Path | None, layers: Sequence[Any]) -> None:
        self.path, self._layers = path, layers
        self._new = [snapshot(layer) for layer in layers]
        self._damaged = False
        """Whether the file could not be read: then the round before must not give way to it."""
        if path is not None:
            _try(path)

    def beside(self, word: str) -> Path | None:
        """A file of the same name with another ending."""
        return None if self.path is None else self.path.with_name(f"{self.path.name}.{word}")

    def save(self, federation: Mapping[str, Any]) -> None:
        """Write the federation and what the strategies inside have learnt."""
        previous = self.beside("previous")
        if self.path is None or previous is None:
            return
        inner = [remembered(layer, new) for layer, new in zip(self._layers, self._new, strict=True)]
        if self.path.exists() and not self._damaged:
            previous.unlink(missing_ok=True)
            try:
                previous.hardlink_to(self.path)
            except OSError:  # not every file system has them
                shutil.copyfile(self.path, previous)
        save_state(self.path, {**federation, "inner": {f"{depth}": own for depth, own in enumerate(inner)}})
        self._damaged = False

    def load(self, given: Mapping[str, list[int]]) -> dict[str, Any] | None:
        """What was saved last, or, if that is damaged, the round before; None if there is nothing.

        ``given`` are the shapes of the model that the run is started with.
        """
        previous = self.beside("previous")
        if self.path is None or previous is None or not self.path.exists():
            return None
        try:
            saved = load_state(self.path)
        except ValueError as error:
            if not previous.exists():
                raise
            LOG.error("[ORDER] %s; going on from the round before", error)
            saved, self._damaged = load_state(previous), True
        told = f"state={str(self.path)!r}"
        if not {"model", "inner", "queue", "counts", "cohort"} <= saved.keys():
            raise ValueError(f"{told} was not saved by this strategy; delete it to start anew")
        kept = saved["model"]
        theirs = {name: list(kept[name].shape) for name in kept if kept[name].dtype.kind == "f"}  # trees grow
        if any(given.get(name) != shape for name, shape in theirs.items()):
            raise ValueError(
                f"{told} holds a model with arrays {theirs}, initial_arrays are {dict(given)}; "
                "pass the model that it was saved with, or another file"
            )
        if len(saved["inner"]) != len(self._layers):
            raise ValueError(
                f"{told} was saved with {len(saved['inner'])} strategies inside, now there are "
                f"{len(self._layers)}; pass those it was saved with, or another file"
            )
        return saved

    def recall(self, saved: Mapping[str, Any]) -> None:
        """Give the strategies inside back what they had learnt."""
        for layer, learnt in zip(self._layers, saved["inner"].values(), strict=True):
            recall(layer, learnt)


def _try(path: Path) -> None:
    """Refuse a path that cannot be written, before any round is trained for nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        probe = path.with_name(f".{path.name}.{os.getpid()}")
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"state={str(path)!r} cannot be written ({error}); pass another file") from error


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
