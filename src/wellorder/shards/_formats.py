"""Doors: what people have on their disks, as a list of shards and a function that reads one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from wellorder._arguments import instance_of, named_path, shown, whole_number
from wellorder._extras import needed_by
from wellorder.shards._reading import TableRows

AT_ONCE = 128
"""Examples of a streamed data set that are made together."""


@dataclass(frozen=True)
class RowGroup:
    """A part of a table's file: a row group of parquet, or a record batch of Arrow."""

    path: str
    group: int
    size: int = field(repr=False)
    """Rows in it, as the file says: ``sizes=lambda group: group.size`` for a survey by samples."""

    def __post_init__(self) -> None:
        instance_of("path", self.path, str, "pass the path of a file, as a string")
        for name in ("group", "size"):
            whole_number(name, getattr(self, name), least=0)


def row_groups(
    paths: Iterable[str | os.PathLike[str]], *, columns: Sequence[str] | None = None
) -> tuple[list[RowGroup], Callable[[RowGroup], Iterable[dict[str, Any]]]]:
    """Parquet and Arrow (IPC) files, by row group: the shards, and the function that reads one.

    An example is a dict by column. Numbers and lists of fixed length come as NumPy arrays, as the rest is.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> path = Path(tempfile.mkdtemp()) / "table.parquet"
    >>> table = pyarrow.table({"x": [0.5, 1.5, 2.5], "y": [0, 1, 0]})
    >>> pyarrow.parquet.write_table(table, path, row_group_size=2)
    >>> shards, read = row_groups([path])
    >>> [group.size for group in shards], list(read(shards[1]))
    ([2, 1], [{'x': np.float64(2.5), 'y': np.int64(0)}])
    """
    with needed_by("wellorder.shards.row_groups", "experiments"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    shards = []
    for given in [paths] if isinstance(paths, str | os.PathLike) else _listed("paths", paths):
        with named_path("paths", given):
            path = os.fspath(given)  # as it was given: of "s3://…", a Path would drop a slash
            try:
                if Path(path).suffix == ".parquet":
                    data = pq.read_metadata(path)
                    sizes = [data.row_group(group).num_rows for group in range(data.num_row_groups)]
                else:
                    with pa.OSFile(path) as file, pa.ipc.open_file(file) as batches:
                        sizes = [batches.get_batch(i).num_rows for i in range(batches.num_record_batches)]
            except pa.ArrowInvalid as error:
                raise ValueError(
                    f"it is neither a .parquet file nor an Arrow IPC file ({error}); read a stream of Arrow "
                    "through datasets, or pass a reader of your own"
                ) from error
        shards += [RowGroup(path, group, size) for group, size in enumerate(sizes)]
    return shards, partial(_read_group, columns=None if columns is None else _names(columns))


def _listed(name: str, values: Any) -> list[Any]:
    """Take a list, of whatever can be iterated over."""
    if not isinstance(values, Iterable) or isinstance(values, Mapping) or getattr(values, "ndim", 1) != 1:
        raise ValueError(f"{name}={shown(values)}: pass a list")
    return list(values)


def _names(columns: Any) -> list[str]:
    names = [columns] if isinstance(columns, str) else _listed("columns", columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"columns={shown(columns)}: pass a list of names, or None for all")
    return names


def hugging_face(dataset: Any) -> tuple[range, Callable[[int], Iterable[dict[str, Any]]]]:
    """A streamed data set of Hugging Face's: its shards by number, and the function that reads one.

    ``dataset`` is a ``datasets.IterableDataset``, from ``load_dataset(…, streaming=True)`` or
    ``to_iterable_dataset(num_shards=…)``, before its ``shuffle``. With one shard alone there is nothing to
    order; then the window does what it can.
    """
    if not hasattr(dataset, "shard") or not hasattr(dataset, "num_shards"):
        raise ValueError(
            f"dataset={type(dataset).__name__}: pass a datasets.IterableDataset, e.g. "
            "load_dataset(..., streaming=True) or dataset.to_iterable_dataset(num_shards=64)"
        )
    return range(int(dataset.num_shards)), partial(_read_hugging_face, dataset)


def _read_hugging_face(dataset: Any, shard: int) -> Iterator[Any]:
    # By batches: its plain iterator deals out shards among a DataLoader's workers, and of one shard it
    # would give nothing to any worker but the first.
    part = dataset.shard(num_shards=dataset.num_shards, index=shard)
    for batch in part.iter(batch_size=AT_ONCE):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))


def _read_group(shard: RowGroup, columns: list[str] | None) -> TableRows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if Path(shard.path).suffix == ".parquet":
        with pq.ParquetFile(shard.path) as file:
            table = file.read_row_group(shard.group, columns=columns)
    else:
        with pa.OSFile(shard.path) as file, pa.ipc.open_file(file) as batches:
            table = pa.Table.from_batches([batches.get_batch(shard.group)])
        table = table if columns is None else table.select(columns)
    return TableRows({name: _values(table.column(name), pa) for name in table.column_names})


def _values(column: Any, pa: Any) -> Any:
    """A column's values, one for each row, without a Python object for every number in a list."""
    column = column.combine_chunks()
    kind = column.type
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_numpy(zero_copy_only=False)
    if column.null_count == 0 and pa.types.is_fixed_size_list(kind) and not column.flatten().null_count:
        inner = column.flatten()
        if pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type):
            return np.reshape(inner.to_numpy(zero_copy_only=False), (-1, kind.list_size))
    return column.to_pylist()
