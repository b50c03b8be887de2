"""A table of numbers as a task: a linear model or a small network, on all columns but the label."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import nn
from torch.nn import functional

from wellorder._arguments import named_path, one_of, real_number, shown, whole_number
from wellorder.experiments._names import meant
from wellorder.experiments._tasks.networks import NetworkTask

KINDS = ("classification", "regression")
MODELS = ("linear", "mlp")
HIDDEN = 64
MOST_CLASSES = 50
"""Whole numbers with more values than this are taken for quantities."""
BATCH = 16
LEAST = 20
"""Rows; fewer tell nothing about an order."""
Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class PlainSGD:
    """SGD with this step size; an object, so that it can travel."""

    step_size: float

    def __call__(self, params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.step_size)


def table_task(
    path: str | Path,
    label: str,
    *,
    kind: str | None = None,
    model: str = "linear",
    drop: Sequence[str] = (),
    batch_size: int = BATCH,
    test: float = 0.2,
    epochs: int = 20,
) -> NetworkTask:
    """Make a task of a table: ``.csv``, ``.parquet``, or ``.npz`` with an array of labels.

    Features are standardised; so is a real label. A share of the rows is held out to test on, other ones for
    each seed. The model is trained by SGD in batches.

    Parameters
    ----------
    path
        The file. Its columns are numbers, without missing values; those of an ``.npz`` are its arrays.
    label
        The column, or the array, to predict: classes (of any type) or a quantity.
    kind
        "classification" or "regression"; unless given, text, truth values and few whole numbers are classes.
    model
        "linear" (logistic or softmax regression, or least squares) or "mlp", with 64 hidden units.
    drop
        Columns to leave out.
    batch_size, test, epochs
        Rows in a step; the share to hold out; how long.
    """
    drop = _named("drop", drop)
    if kind is not None:
        one_of("kind", kind, KINDS)
    one_of("model", model, MODELS)
    whole_number("batch_size", batch_size, least=1)
    if not 0 < real_number("test", test) < 1:
        raise ValueError(f"test={test}: pass a share between 0 and 1 to hold out")
    with named_path("path", path) as file:
        columns = _columns(file)
    for name, option in [(label, "label"), *((name, "drop") for name in drop)]:
        if not isinstance(name, str) or name not in columns:
            raise ValueError(
                f"{option}={shown(name)}: {file.name} has no such column; {meant(str(name), list(columns))}"
            )
    if label in drop:
        raise ValueError(f"drop={label!r} is the label; drop others, or pass another label")
    kept = {name: values for name, values in columns.items() if name != label and name not in drop}
    if not kept:
        raise ValueError(f"{file.name} has no column beside {label!r} to learn from; add some")
    if (rows := len(columns[label])) < LEAST:
        raise ValueError(f"{file.name} has {rows} row{'s' * (rows != 1)}; pass {LEAST} or more")
    x = np.column_stack([_numbers(name, values) for name, values in kept.items()])
    y, classes = _labels(label, columns[label], kind)
    words = {"linear": "linear model", "mlp": f"network with {HIDDEN} hidden units"}
    step_size = 0.05 if model == "mlp" else min(0.1, (2.0 if classes else 0.2) / (x.shape[1] + 1))
    told = {"--label": label, "--task": kind, "--model": model if model != "linear" else None,
            "--batch": str(batch_size) if batch_size != BATCH else None}  # fmt: skip
    command = ["--data", str(path)]
    command += [word for option, value in told.items() if value for word in (option, value)]
    return NetworkTask(
        partial(network, x.shape[1], classes or 1, model == "mlp"),
        (_standardised(x), y if classes else _standardised(y[:, None])),
        functional.cross_entropy if classes else functional.mse_loss,
        PlainSGD(step_size),
        batch_size=batch_size,
        test=test,
        epochs=epochs,
        name=file.stem,
        title=f"{file.name}: {label}, {f'{classes} classes' if classes else 'a quantity'}, {words[model]}",
        command=(*command, *(word for name in drop for word in ("--drop", name))),
    )


def network(inputs: int, outputs: int, hidden: bool) -> nn.Module:
    """A linear model, or one hidden layer."""
    if not hidden:
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def _columns(file: Path) -> Columns:
    """The columns of a file, by name; nothing in it is ever run or unpickled."""
    readers = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    if not file.is_file():
        raise FileNotFoundError
    if file.suffix.lower() not in readers:
        raise ValueError(f"{file.name} is no table that can be read; pass a .csv, a .parquet or an .npz")
    try:
        found = readers[file.suffix.lower()](file)
    except (pa.ArrowException, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"cannot be read ({str(error).splitlines()[0] if str(error) else error!r}); "
                         "write it again") from error  # fmt: skip
    lengths = {len(values) for values in found.values()}
    if len(lengths) != 1:
        raise ValueError(f"its arrays have {sorted(lengths)} rows; pass one table, equally long throughout")
    return found


def _csv(file: Path) -> Columns:
    return _of_arrow(pa.csv.read_csv(file, convert_options=pa.csv.ConvertOptions(strings_can_be_null=True)))


def _parquet(file: Path) -> Columns:
    return _of_arrow(pa.parquet.read_table(file))


def _of_arrow(table: Any) -> Columns:
    if len(set(table.column_names)) < table.num_columns:
        raise ValueError("two columns have the same name")
    found: Columns = {}
    for name in table.column_names:
        values = table.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        number = pa.types.is_floating(values.type) or pa.types.is_integer(values.type)
        if values.null_count and not number:
            found[name] = np.array(values.to_pylist(), object)
        else:
            found[name] = values.to_numpy()  # missing numbers become NaN
    return found


def _npz(file: Path) -> Columns:
    """Arrays by name; those with several columns count as so many."""
    found: Columns = {}
    with np.load(file, allow_pickle=False) as arrays:
        for name in arrays.files:
            values = arrays[name]
            if not values.ndim:
                raise ValueError(f"the array {name!r} holds one value")
            flat = values.reshape(len(values), -1)
            parts = (
                {name: flat[:, 0]} if values.ndim == 1 else {f"{name}[{i}]": c for i, c in enumerate(flat.T)}
            )
            found |= parts
    return found


def _numbers(name: str, values: npt.NDArray[Any]) -> Floats:
    """A column of finite numbers; anything else is refused by its first row."""
    if values.dtype.kind not in "biuf":
        row, value = _first_odd(values)
        if value is None:
            raise _missing(name, sum(v is None for v in values), row)
        raise ValueError(
            f"column {name!r} holds {shown(value)} in row {row}, which is no number; encode it as numbers "
            f"(a column of 0 and 1 for each value), or leave it out with --drop {name} (drop=[{name!r}])"
        )
    found = values.astype(np.float64)
    odd = ~np.isfinite(found)
    if odd.any():
        row = int(np.argmax(odd)) + 1
        if np.isnan(found[row - 1]):
            raise _missing(name, int(np.isnan(found).sum()), row)
        raise ValueError(f"column {name!r} is infinite in row {row}; put a finite number there")
    return found


def _missing(name: str, count: int, row: int) -> ValueError:
    return ValueError(
        f"column {name!r} has {count} missing value{'s' * (count > 1)}, the first in row {row} (not counting "
        f"the header); fill or delete such rows, or leave the column out with --drop {name} (drop=[{name!r}])"
    )


def _first_odd(values: npt.NDArray[Any]) -> tuple[int, Any]:
    """The first row, counted from 1, whose value is missing (None) or no number, and that value."""
    for row, value in enumerate(values.tolist(), 1):
        try:
            float(value)
        except (TypeError, ValueError):
            return row, value
    return 1, values.tolist()[0]


def _labels(name: str, values: npt.NDArray[Any], kind: str | None) -> tuple[npt.NDArray[Any], int]:
    """Labels as numbers, and how many classes they are of; 0 for a quantity."""
    text = values.dtype.kind not in "biuf"
    if text and any(value is None for value in values):
        row = next(row for row, value in enumerate(values, 1) if value is None)
        raise _no_label(name, sum(value is None for value in values), row)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        missing = np.isnan(values)
        if missing.any():
            raise _no_label(name, int(missing.sum()), int(np.argmax(missing)) + 1)
        row = int(np.argmax(~np.isfinite(values))) + 1
        raise ValueError(f"label={name!r} is infinite in row {row}; put a finite number there")
    if text:
        values = np.array([str(value) for value in values])
    whole = text or values.dtype.kind == "b" or bool((values == np.round(values)).all())
    known, places = np.unique(values, return_inverse=True)
    if kind is None:
        kind = "classification" if text or (whole and len(known) <= MOST_CLASSES) else "regression"
    if len(known) < 2:
        raise ValueError(f"label={name!r} has the same value in every row; there is nothing to learn")
    if kind == "regression":
        if text:
            raise ValueError(
                f"label={name!r} holds {shown(values[0].item())}, which is no quantity; write numbers, "
                "such as 1.5, or pass --task classification"
            )
        return values.astype(np.float64), 0
    if len(known) > len(values) // 2:
        cure = "a quantity needs numbers, such as 1.5" if text else "pass --task regression"
        raise ValueError(
            f"label={name!r} has {len(known)} values in {len(values)} rows, hardly classes; {cure}"
        )
    return places.astype(np.int64), len(known)


def _no_label(name: str, count: int, row: int) -> ValueError:
    return ValueError(
        f"label={name!r} is missing in {count} row{'s' * (count > 1)}, the first is row {row} (not counting "
        "the header); delete rows without a label"
    )


def _standardised(values: Floats) -> Floats:
    """Every column with mean 0 and variance 1; a constant one is 0."""
    spread = values.std(axis=0)
    found: Floats = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return found


def _named(name: str, values: Any) -> tuple[str, ...]:
    if (
        isinstance(values, str)
        or not isinstance(values, Sequence)
        or not all(isinstance(v, str) for v in values)
    ):
        raise ValueError(f"{name}={shown(values)}: pass a list of columns' names")
    return tuple(values)
