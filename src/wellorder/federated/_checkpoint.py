"""Checkpoints: plain arrays in one .npz file, written beside and renamed; nothing in it needs unpickling."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from wellorder._saving import write_whole

SEPARATOR = "/"


def save(path: str | os.PathLike[str], tree: dict[str, Any]) -> None:
    """Write a tree of arrays, numbers and strings; the old file stays whole until the new one is."""

    def fill(beside: Path) -> None:
        with beside.open("wb") as file:
            np.savez(file, **_flat(tree, ""))

    write_whole(path, fill)


def load(path: str | os.PathLike[str], fingerprint: str) -> dict[str, Any] | None:
    """Read what `save` wrote, or None if there is nothing yet; refuses the checkpoint of another run."""
    if not Path(path).exists():
        return None
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            flat = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"checkpoint={str(path)!r} cannot be read ({error}); delete it to start anew"
        ) from error
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(SEPARATOR)
        branch = tree
        for part in above:
            branch = branch.setdefault(part, {})
        branch[last] = value.item() if value.ndim == 0 else value
    if tree.get("fingerprint") != fingerprint:
        raise ValueError(
            f"checkpoint={str(path)!r} belongs to another run ({tree.get('fingerprint')}); "
            "pass another file, or delete it to start anew"
        )
    return tree


def _flat(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}{SEPARATOR}"))
        else:
            flat[f"{prefix}{name}"] = np.asarray(value)
    return flat
