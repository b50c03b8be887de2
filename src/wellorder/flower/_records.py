"""Flower's records as NumPy arrays and plain values, and back."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

KINDS = {
    "train": "train_metrics_clientapp",
    "evaluate": "evaluate_metrics_clientapp",
    "server": "evaluate_metrics_serverapp",
}
"""What a history holds for each round, and the attribute of Flower's result that it fills."""


def report_of(reply: Message) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """What a reply holds: its arrays' names and its metrics, by record."""
    content = reply.content
    arrays = {name: list(record) for name, record in content.array_records.items()}
    return arrays, {name: dict(record) for name, record in content.metric_records.items()}


def reply_arrays(reply: Message, key: str, model: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a reply; none if they cannot be read, or told from others.

    They are under the strategy's key, or in its only record, or in the only one that names the model's.
    """
    records = dict(reply.content.array_records)
    likely = [record for record in records.values() if not set(record).isdisjoint(model)]
    fitting = [records[key]] if key in records else likely if len(records) > 1 else list(records.values())
    try:
        return arrays_of(fitting[0]) if len(fitting) == 1 else {}
    except (TypeError, ValueError):
        return {}


def arrays_of(record: ArrayRecord) -> dict[str, npt.NDArray[Any]]:
    """Views of a record's arrays: their bytes are read where they are, and nothing is unpickled."""
    return {name: _view(array) for name, array in record.items()}


def _view(array: Array) -> npt.NDArray[Any]:
    header = io.BytesIO(array.data)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    reader = readers.get(np.lib.format.read_magic(header)) if array.stype == "numpy.ndarray" else None
    if reader is None:
        return array.numpy()
    shape, fortran, dtype = reader(header)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    flat = np.frombuffer(array.data, dtype, count=math.prod(shape), offset=header.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def record_of(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


class History:
    """What every round reported: in Flower's result, and, with ``path``, in a file of JSON lines beside it.

    A line is appended for each report, so that a long run does not rewrite what it has.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.result = path, Result()

    def add(self, kind: str, number: int, metrics: MetricRecord | None) -> None:
        """Enter a round's report."""
        if metrics is None:
            return
        getattr(self.result, KINDS[kind])[number] = metrics
        if self.path is not None:
            line = json.dumps({"kind": kind, "round": number, "metrics": dict(metrics)})
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def load(self, rounds: int) -> None:
        """Read the reports of the first ``rounds``; one that a crash cut off is passed over, and ended."""
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
                kind, number, metrics = row["kind"], int(row["round"]), MetricRecord(row["metrics"])
            except (ValueError, KeyError, TypeError):
                continue
            if kind in KINDS and number <= rounds:
                getattr(self.result, KINDS[kind])[number] = metrics

    def clear(self) -> None:
        """Forget what an earlier run left in the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
