"""One flat table of a run.

Every run, whatever trained it, is one flat table: a row for each ``policy``, ``seed`` and ``epoch``, with
the cumulative number of ``gradients``, the cumulative training ``seconds``, and any further float columns
(losses, order error, test metrics …). Epoch q is measured at x_q, so a run of Q epochs has the rows 0..Q.
Verdicts, plots and reports read nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from wellorder._arguments import flag, instance_of, path_of, shown, whole_number
from wellorder._saving import write_whole

KEYS = ("policy", "seed", "epoch")
TEXT = ("setting", "policy")
WHOLE = ("seed", "epoch", "gradients")
Table = Any
"""A `pyarrow.Table`."""


@dataclass(frozen=True)
class Metric:
    """A column worth looking at: its words, whether low is good, and its natural axis."""

    column: str
    label: str
    lower_is_better: bool = True
    log: bool = True
    percent: bool = False
    about: str = ""
    """A few more words for the reader who meets it first."""
    held_out: bool = False
    """Whether it is measured on data that were not trained on."""

    def __post_init__(self) -> None:
        for name in ("column", "label", "about"):
            instance_of(name, getattr(self, name), str, "pass a line of text")
        for name in ("lower_is_better", "log", "percent", "held_out"):
            flag(name, getattr(self, name))


def number(value: float, metric: Metric, more: int = 0) -> str:
    """A value as readers like it, with some digits more if need be.

    >>> number(0.000123456, Metric("loss", "loss")), number(0.987, Metric("a", "a", percent=True))
    ('0.000123', '98.70 %')
    """
    if not np.isfinite(value):
        return "diverged"
    return f"{100 * value:.{2 + more}f} %" if metric.percent else f"{value:.{3 + more}g}"


def times(ratio: float) -> str:
    """A multiple of the baseline's, as tables show it.

    >>> times(0.524), times(float("nan"))
    ('× 0.52', '–')
    """
    return "–" if np.isnan(ratio) else f"× {ratio:.2f}"


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Make a table of rows with equal keys: policy is text, counts are int64, all else is float64.

    >>> table_of([{"policy": "RR", "seed": 0, "epoch": 0, "loss": 1}]).schema.field("loss").type
    DataType(double)
    """
    cure = "pass a list of rows, each a mapping from columns to values, all with the same columns"
    try:
        listed = list(rows)
    except TypeError:
        raise ValueError(f"rows={shown(rows)}: {cure}") from None
    if not listed:
        raise ValueError("rows=[]: pass at least one row")
    if not all(isinstance(row, Mapping) and row.keys() == listed[0].keys() for row in listed):
        raise ValueError(f"rows={shown(listed)}: {cure}")
    types = {name: _type(name) for name in listed[0]}
    return pa.table({name: pa.array([row[name] for row in listed], kind) for name, kind in types.items()})


def checked_table(table: Any, name: str = "table") -> Table:
    """Take a table; refuses anything else, and one without the columns that every run has."""
    cure = "pass a table of runs, such as table_of made"
    if not isinstance(table, pa.Table) or not {*KEYS} <= {*table.column_names}:
        raise ValueError(f"{name}={shown(table)}: {cure}, with the columns {', '.join(KEYS)}")
    return table


def checked_metric(metric: Any, table: Table, name: str = "metric") -> Metric:
    """Take a metric of a table."""
    instance_of(name, metric, Metric, "pass a wellorder.report.Metric")
    if metric.column not in table.column_names:
        raise ValueError(
            f"{name}={shown(metric)}: the table has no such column; use one of "
            f"{', '.join(table.column_names)}"
        )
    found: Metric = metric
    return found


def joined(tables: Sequence[Table]) -> Table:
    """Put tables with equal columns one below the other."""
    return pa.concat_tables(tables).combine_chunks()


def column(table: Table, name: str) -> npt.NDArray[Any]:
    """One column as a NumPy array."""
    values: npt.NDArray[Any] = table.column(name).to_numpy()
    return values


def policies_of(table: Table) -> list[str]:
    """The policies in their order of appearance."""
    return list(dict.fromkeys(table.column("policy").to_pylist()))


def curves(table: Table, policy: str, name: str) -> npt.NDArray[np.float64]:
    """A policy's column as a matrix (seeds, epochs), seeds in order of appearance, epochs ascending.

    >>> rows = [{"policy": "RR", "seed": s, "epoch": e, "loss": 10 * s + e} for s in (0, 1) for e in range(3)]
    >>> curves(table_of(rows), "RR", "loss")
    array([[ 0.,  1.,  2.],
           [10., 11., 12.]])
    """
    mine = column(table, "policy") == policy
    seeds, epochs, values = (column(table, key)[mine] for key in ("seed", "epoch", name))
    order = list(dict.fromkeys(seeds.tolist()))
    ticks = np.unique(epochs)
    if len(values) != len(order) * len(ticks):
        raise ValueError(
            f"policy {policy!r}: {len(values)} rows for {len(order)} seeds and {len(ticks)} epochs"
        )
    rank = {seed: at for at, seed in enumerate(order)}
    matrix = np.full((len(order), len(ticks)), np.nan)
    matrix[[rank[s] for s in seeds.tolist()], np.searchsorted(ticks, epochs)] = values
    return matrix


def write_table(table: Table, path: Path) -> None:
    """Write Parquet or CSV, by the suffix of ``path``; whole or not at all."""
    checked_table(table)
    path = path_of("path", path)
    if not path.parent.is_dir():
        raise ValueError(f"path={path}: its folder does not exist; make it first")
    if path.suffix == ".parquet":
        write_whole(path, lambda beside: pa.parquet.write_table(table, beside))
    elif path.suffix == ".csv":
        write_whole(path, lambda beside: pa.csv.write_csv(table, beside))
    else:
        raise ValueError(f"path={shown(path)}: tables are written as .parquet or .csv; name such a file")


def read_table(path: Path, *, rows: int | None = None) -> Table:
    """Read a Parquet table of a run; with ``rows``, one of so many and no other, before it is loaded."""
    path = path_of("path", path)
    if rows is not None:
        whole_number("rows", rows, least=0)
    try:
        told = pa.parquet.read_metadata(path)
        if rows is not None and told.num_rows != rows:
            raise ValueError(f"path={path.name} has {told.num_rows} rows, not rows={rows}; pass another file")
        found = pa.parquet.read_table(path)
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise ValueError(
            f"path={path.name} cannot be read as a table ({error}); pass another file"
        ) from error
    for name in found.column_names:
        if found.schema.field(name).type != _type(name):
            raise ValueError(
                f"path={path.name} has a column {name!r} of {found.schema.field(name).type}, not "
                f"{_type(name)}; pass another file"
            )
    return found


def as_text(data: Any) -> str:
    r"""JSON for any reader: what is not finite becomes null, which JSON has, unlike NaN.

    >>> as_text({"a": float("nan")})
    '{\n  "a": null\n}'
    """
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not np.isfinite(data) else data


def _type(name: str) -> Any:
    return pa.string() if name in TEXT else pa.int64() if name in WHOLE else pa.float64()
