"""A file of named arrays and plain facts that is old or new, never half-written (safetensors format)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wellorder._saving import write_whole

Arrays = Mapping[str, npt.NDArray[Any]]
TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
NAMES = {np.dtype(code): name for name, code in TYPES.items()}
FACTS = "wellorder"


def write(path: Path, arrays: Arrays, facts: Mapping[str, Any]) -> None:
    """Write beside ``path``, flush to the disk, and rename: a reader sees the old file or the new one.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> write(path, {"x": np.arange(3.0)}, {"round": 7})
    >>> read(path)
    ({'x': array([0., 1., 2.])}, {'round': 7})
    """
    header: dict[str, Any] = {"__metadata__": {FACTS: json.dumps(facts)}}
    at = 0
    for name, array in arrays.items():
        kind = NAMES.get(array.dtype.newbyteorder("<"))
        if kind is None:
            raise ValueError(
                f"array {name!r} of dtype {array.dtype} cannot be saved; use numbers or booleans"
            )
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)

    def fill(beside: Path) -> None:
        with beside.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for array in arrays.values():
                file.write(
                    np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data.cast("B")
                    if array.nbytes
                    else b""
                )

    write_whole(path, fill)


def read(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Arrays and facts of a file that `write` made; nothing in it is executed."""
    data = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        facts = json.loads(header.pop("__metadata__")[FACTS])
        arrays = {name: _array(data, 8 + length, entry) for name, entry in header.items()}
    except (struct.error, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or of another kind ({error}); delete it to start anew"
        ) from error
    return arrays, facts


def _array(data: bytes, start: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    first, last = entry["data_offsets"]
    dtype, shape = np.dtype(TYPES[entry["dtype"]]), tuple(map(int, entry["shape"]))
    if not 0 <= first <= last <= len(data) - start or last - first != dtype.itemsize * int(np.prod(shape)):
        raise ValueError("its arrays do not fit")
    return (
        np.frombuffer(data, dtype, count=(last - first) // dtype.itemsize, offset=start + first)
        .reshape(shape)
        .copy()
    )
