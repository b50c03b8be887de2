"""Tables: flat, typed, and never half-written."""

from pathlib import Path

import numpy as np
import pytest

from wellorder._saving import write_whole
from wellorder.report._table import curves, joined, read_table, table_of, write_table


def rows(policy="RR", seeds=(0, 1), epochs=3):
    return [
        {
            "policy": policy,
            "seed": s,
            "epoch": e,
            "loss": s + 1 / (e + 1),
            "gradients": 10 * e,
            "seconds": 0.5 * e,
        }
        for s in seeds
        for e in range(epochs)
    ]


def test_the_same_table_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_table(table_of(rows()), tmp_path / f"{name}.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_parquet_keeps_every_bit_and_csv_is_readable(tmp_path):
    table = table_of([{**row, "loss": np.pi / (1 + row["epoch"])} for row in rows()])
    write_table(table, tmp_path / "t.parquet")
    write_table(table, tmp_path / "t.csv")
    assert read_table(tmp_path / "t.parquet").equals(table)
    assert (tmp_path / "t.csv").read_text().splitlines()[0].startswith('"policy","seed","epoch","loss"')


def test_infinite_and_missing_losses_survive(tmp_path):
    table = table_of([{**row, "loss": np.inf if row["seed"] else np.nan} for row in rows()])
    write_table(table, tmp_path / "t.parquet")
    found = curves(read_table(tmp_path / "t.parquet"), "RR", "loss")
    assert np.isnan(found[0]).all()
    assert np.isinf(found[1]).all()


def test_a_failed_write_leaves_the_old_file_and_no_scraps(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("old")

    def breaks(beside):
        beside.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, breaks)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_curves_do_not_depend_on_the_order_of_the_rows():
    table = table_of([*rows("A"), *rows("B")])
    mixed = table.take(np.random.default_rng(0).permutation(table.num_rows))
    for policy in "AB":
        found = curves(mixed, policy, "loss")
        assert sorted(map(tuple, found)) == sorted(map(tuple, curves(table, policy, "loss")))


def test_missing_rows_are_refused():
    table = table_of(rows())
    with pytest.raises(ValueError, match="5 rows for 2 seeds and 3 epochs"):
        curves(table.slice(0, 5), "RR", "loss")
    with pytest.raises(ValueError, match="at least one row"):
        table_of([])
    with pytest.raises(ValueError, match=r"\.parquet or \.csv"):
        write_table(joined([table]), Path("t.xlsx"))
