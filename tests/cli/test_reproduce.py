"""``wellorder reproduce``: the figure, its table, and its medians."""

import json

from typer.testing import CliRunner

from wellorder.cli import app
from wellorder.report.table import read_table

SMALL = ["reproduce", "fig1", "--seeds", "2", "--epochs", "5", "--n", "60", "--jobs", "1"]


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_it_writes_the_figure_and_the_table_behind_it_and_may_be_run_twice(tmp_path):
    for _ in range(2):
        result = run(*SMALL, "--out", tmp_path)
        assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} == {
        f"fig1.{s}" for s in ("png", "pdf", "csv", "parquet", "json")
    }
    assert read_table(tmp_path / "fig1.parquet").num_rows == 7 * 2 * 5
    assert "FL-GraB" in result.stdout
    assert str(tmp_path / "fig1.png") in result.stdout


def test_json_holds_the_medians(tmp_path):
    found = json.loads(run(*SMALL, "--out", tmp_path, "--json").stdout)
    assert set(found["medians"]) == {"RR", "SO", "GraB", "PairGraB", "FL-RR", "FL-OP", "FL-GraB"}
    assert found["config"]["cohort"] == 2


def test_bad_input_is_refused_with_exit_code_2(tmp_path):
    (tmp_path / "file").write_text("")
    for words, message in [
        (["--out", tmp_path / "file" / "x"], "cannot be written"),
        (["--out", tmp_path / "a", "--seeds", 0], "seeds=0"),
        (["--out", tmp_path / "b", "--epochs", 0], "epochs=0"),
    ]:
        result = run("reproduce", "fig1", "--jobs", 1, *words)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
    assert run("reproduce", "fig9").exit_code == 2
