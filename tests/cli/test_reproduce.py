"""``wellorder reproduce``: the figure, its table, and its medians."""

import json

from typer.testing import CliRunner

from wellorder._cli import app
from wellorder._cli.reproduce import Whereabouts
from wellorder.report._table import read_table

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


def test_a_second_run_that_is_refused_or_interrupted_leaves_every_byte_of_the_first(tmp_path, monkeypatch):
    assert run(*SMALL, "--out", tmp_path).exit_code == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert len(before) == 5

    def breaks(*args):
        raise KeyboardInterrupt

    for words in (["--lr", "-1"], ["--epochs", "0"], ["--n", "1"], ["--jobs", "-3"]):
        result = run(*SMALL, *words, "--out", tmp_path)
        assert result.exit_code == 2, result.output
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    for place in (
        "experiments._figure_1.run_seed",
        "experiments._figure_1.plot",
        "_cli.reproduce.write_table",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"wellorder.{place}", breaks)
            result = run(*SMALL, "--epochs", 6, "--out", tmp_path)
        assert result.exit_code == 130, result.output
        assert "resume" not in result.stderr
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_diverged_run_is_told_in_valid_json(tmp_path):
    def never(word):
        raise AssertionError(word)

    result = run(*SMALL, "--lr", 1e3, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout, parse_constant=never)
    json.loads((tmp_path / "fig1.json").read_text(), parse_constant=never)


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


def test_cdgrab_writes_its_figure_and_refuses_what_cannot_be_run(tmp_path):
    small = ["reproduce", "cdgrab", "--n", 64, "--seeds", 2, "--epochs", 3, "--workers", 4, "--workers", 1]
    result = run(*small, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} == {
        f"cdgrab.{s}" for s in ("png", "pdf", "csv", "parquet", "json")
    }
    found = json.loads(result.stdout)
    assert set(found["medians"]) == {"1 worker", "4 workers"}
    assert found["medians"]["1 worker"]["CD-GraB"] == found["medians"]["1 worker"]["PairGraB"]
    assert read_table(tmp_path / "cdgrab.parquet").num_rows == 2 * 3 * 2 * 4
    for words in (["--workers", 40], ["--n", 1], ["--epochs", 0], ["--seeds", 0], ["--workers", 0]):
        assert run(*small, *words, "--out", tmp_path / "no").exit_code == 2
    assert not (tmp_path / "no").exists()


def test_a_run_that_goes_on_says_where_it_is(capsys):
    where = Whereabouts("rounds", 10, quiet=False)
    where.round(4, 3, 20)
    where.round(4, 4, 20)
    assert capsys.readouterr().err.startswith("round 83 of 200, about ")
    Whereabouts("rounds", 10, quiet=True).round(0, 1, 20)
    assert capsys.readouterr().err == ""
