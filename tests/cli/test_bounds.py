"""``wellorder bounds``: the table, the JSON, the plot, and clear errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wellorder._cli import app
from wellorder.theory import METHODS, bound, constants, rate, rate_table, tuned_step_size

run = CliRunner().invoke


def report(*arguments):
    result = run(app, ["bounds", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("flags", [[], ["--fl"]], ids=["examples", "clients"])
def test_the_table_names_every_method(flags):
    result = run(app, ["bounds", *flags])
    assert result.exit_code == 0, result.output
    for name, method in METHODS.items():
        if method.federated == bool(flags):
            assert f" {name} " in result.output
    assert "has the smallest bound" in result.output


def test_the_json_carries_the_numbers_of_the_library():
    found = report("--n", "500", "--epochs", "1000", "--sigma", "3", "--dim", "4")
    assert [row["method"] for row in found["methods"]] == [m for m in METHODS if not METHODS[m].federated]
    row = next(row for row in found["methods"] if row["method"] == "GraB")
    known = constants("GraB", 500, sigma=3.0, dim=4, delta=1e-5)
    expected = bound(known, tuned_step_size(known, 1000), 1000)
    assert row["bound"] == expected.total
    assert row["terms"]["order"] == expected.order
    assert (row["p"], row["A"], row["label"]) == ("inf", [0.6, 0.02], "ex:GraB")


def test_methods_that_the_shape_excludes_are_named_with_the_cure():
    found = report("--fl", "--cohort", "5")
    refused = {row["method"]: row["refused"] for row in found["methods"] if "refused" in row}
    assert set(refused) == {"FL-GraB-proto", "FL-GraB"}
    assert "such as 2, 4, 8" in refused["FL-GraB"]
    table = run(app, ["bounds", "--fl", "--cohort", "5"]).output
    for method, reason in refused.items():
        assert f"– {method}: {reason}\n" in table


def test_advice_to_clients_is_of_theorem_2_whatever_the_rounds():
    found = report("--fl", "--cohort", "1", "--local-steps", "1")
    smallest = min(row["bound"] for row in found["methods"] if row["method"] in ("FL-RR", "FL-AP"))
    assert f"≤ {smallest:.3g} with" in found["advice"]
    assert "every client takes part once an epoch" in found["advice"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_written_whole(tmp_path, ending):
    file = tmp_path / f"bounds.{ending}"
    result = run(app, ["bounds", "--plot", str(file), "--epochs", "1000"])
    assert result.exit_code == 0, result.output
    assert file.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "0"], "n=0"),
        (["--epochs", "0"], "epochs=0"),
        (["--delta", "1.5"], "delta=1.5"),
        (["--fl", "--n", "10", "--cohort", "20"], "cohort=20"),
        (["--fl", "--n", "10", "--cohort", "3"], "pass a cohort such as"),
        (["--cohort", "4"], "add --fl"),
        (["--sigma", "1e200"], "sigma=1e+200: too large"),
        (["--theta", "1e200"], "theta=1e+200: too large"),
        (["--smoothness", "1e-300"], "smoothness=1e-300: pass a positive number"),
        (["--epochs", "1" + 400 * "0"], "too large to compute with"),
        (["--plot", "bounds.gif"], "end the name in"),
        (["--tables", "--plot", "bounds.png"], "leave out --json and --plot"),
        (["--tables", "--json"], "leave out --json and --plot"),
        (["--plot", "no/such/folder/bounds.png"], "make it first"),
    ],
)
def test_bad_input_ends_with_code_2_and_the_cure(arguments, message):
    result = run(app, ["bounds", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


def test_a_plot_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "bounds.png"
    folder.mkdir()
    result = run(app, ["bounds", "--plot", str(folder)], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "this is a folder" in result.output
    assert list(tmp_path.iterdir()) == [folder]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    result = run(app, ["bounds", "--plot", str(tmp_path / "other.png")], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "No space left on device" in result.output
    assert list(tmp_path.iterdir()) == [folder]


def test_a_plot_says_that_one_permutation_is_drawn_at_the_start(tmp_path):
    file = tmp_path / "bounds.svg"
    assert run(app, ["bounds", "--plot", str(file)]).exit_code == 0
    assert "as if the parameters stayed at x₀ (θ = 0)" in file.read_text()
    assert run(app, ["bounds", "--plot", str(file), "--theta", "0.5"]).exit_code == 0
    assert "stayed at" not in file.read_text()


def test_numbers_at_the_edge_are_bounded_all_the_same():
    for flags in (["--sigma", "1e50"], ["--passes", "2000"], ["--smoothness", "1e-50"], ["--gap", "1e50"]):
        found = report(*flags)
        assert all(0 <= row["bound"] < float("inf") for row in found["methods"])


def test_the_command_runs_as_a_process():
    command = [sys.executable, "-m", "wellorder", "bounds", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["setting"]["n"] == 1000


@pytest.mark.parametrize(("flags", "number"), [([], 1), (["--fl"], 2)], ids=["examples", "clients"])
def test_the_papers_table_is_printed_with_its_values_and_related_work(flags, number):
    result = run(app, ["bounds", *flags], env={"COLUMNS": "200"})
    assert f"Table {number}: upper bounds" in result.output
    for row in rate_table(related=True):
        if row.table == {1: "tab:SGD", 2: "tab:FL"}[number]:
            assert row.rate in result.output
            assert row.source in ("", "ours") or row.source in result.output
            assert row.note in result.output
    assert ("Wang et al., 2022, Theorem 3.1" in result.output) == bool(flags)
    value = rate(
        "FL-RR" if flags else "RR", 100, 1000, **(dict(cohort=2, local_steps=5) if flags else {})
    ).total
    assert f"{value:.3g}" in result.output


def test_both_tables_alone():
    output = run(app, ["bounds", "--tables"], env={"COLUMNS": "200"}).output
    assert "Table 1:" in output
    assert "Table 2:" in output
    assert "smallest bound" not in output
    assert [row["source"] for row in report()["related"]].count("Wang et al., 2022, Theorem 3.1") == 1


@pytest.mark.parametrize("flags", [[], ["--fl", "--cohort", "5"], ["--json"], ["--tables"]], ids=str)
def test_ascii_terminals_are_served(flags):
    command = [sys.executable, "-m", "wellorder", "bounds", *flags]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "160"}
    result = subprocess.run(command, capture_output=True, check=True, env=env)
    text = result.stdout.decode("ascii")
    assert b"Traceback" not in result.stderr
    if "--json" in flags:
        assert "ς" in json.loads(text)["advice"]
    else:
        assert "(LF0N*sigma/(NQ))^(2/3)" in text
        assert "||grad f(x_q)||^2" in text


def test_expected_bounds_are_marked_and_old_rows_need_smaller_steps():
    rows = {row["method"]: row for row in report("--age", "4")["methods"]}
    young = {row["method"]: row for row in report()["methods"]}
    assert rows["RR-expected"]["expected"]
    assert not rows["RR"]["expected"]
    assert rows["Herding"]["max_step_size"] == pytest.approx(young["Herding"]["max_step_size"] / 4)
    assert " mean " in run(app, ["bounds"]).output
