"""``wellorder compare``: answers, refusals, and exit codes that mean something."""

import json
import sys

import pytest
from typer.testing import CliRunner

from wellorder._cli import app

SMALL = [
    "compare",
    "--task",
    "quadratics",
    "--policy",
    "RR",
    "--policy",
    "PairGraB",
    "--epochs",
    "8",
    "--jobs",
    "1",
]


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "run"
    return folder, run(*SMALL, "--seeds", 3, "--out", folder)


def test_it_ends_with_the_verdict_and_the_reports_path(done):
    folder, result = done
    assert result.exit_code == 0, result.output
    assert "\nPairGraB: " in result.stdout
    assert "\n• PairGraB, " in result.stdout
    assert "SGD, one unit a step." in result.stdout
    assert "outside the seeds' spread: yes" in result.stdout
    assert result.stdout.rstrip().endswith(str(folder / "report.html"))
    assert (folder / "report.html").exists()


def test_it_is_quiet_where_there_is_no_terminal(done):
    _, result = done
    assert result.stderr == ""
    assert "\x1b" not in result.stdout


def test_json_is_all_that_json_prints(tmp_path):
    result = run(*SMALL, "--seeds", 2, "--out", tmp_path / "run", "--json")
    found = json.loads(result.stdout)
    assert found["baseline"] == "RR"
    assert found["verdicts"][0]["policy"] == "PairGraB"
    assert found["report"] == str(tmp_path / "run" / "report.html")


def test_folders_are_numbered_unless_one_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert run(*SMALL, "--seeds", 1).exit_code == 0
        assert (tmp_path / f"runs/quadratics-{number}/report.html").exists()


def test_resume_finishes_a_run_and_refuses_other_options(done):
    folder, _ = done
    before = (folder / "table.parquet").read_bytes()
    (folder / "cells" / "policy1-seed2.parquet").unlink()
    (folder / "table.parquet").unlink()
    assert run("compare", "--resume", "--out", folder, "--jobs", 1).exit_code == 0
    assert (folder / "table.parquet").read_bytes() == before
    result = run("compare", "--resume", "--out", folder, "--epochs", 9)
    assert result.exit_code == 2
    assert "epochs=9 (was 8)" in result.stderr


def test_tuning_names_the_step_sizes_tried(tmp_path):
    result = run(*SMALL, "--seeds", 1, "--tune", "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert "RR: best step size" in result.stdout
    assert "best step size" in (tmp_path / "run/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "PairGrab2"], "did you mean PairGraB?"),
        (["--task", "digit"], "did you mean digits?"),
        (["--cohort", "1001"], "cohort=1001: a round takes 1 to 1000"),
        (["--cohort", "0"], "cohort=0"),
        (["--epochs", "0"], "epochs=0"),
        (["--lr", "0"], "step_size=0.0"),
        (["--seeds", "0"], "--seeds 0"),
        (["--seeds", "2", "--seed", "1"], "not --seed as well"),
        (["--tune", "--lr", "0.1"], "not both"),
        (["--tune", "--tune-each"], "pass one of them"),
        (["--jobs", "0"], "--jobs 0"),
        (["--resume"], "--resume needs --out"),
        (["--baseline", "Herd"], "not among the policies"),
        (["--epochs", "many"], "Invalid value for '--epochs'"),
        (["--out", "/dev/null/run"], "cannot be written"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2_before_any_computation(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def never(*args, **kwargs):
        raise AssertionError("something was trained")

    monkeypatch.setattr("wellorder.experiments._pool.train", never)
    result = run("compare", "--task", "quadratics", *words)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_a_training_run_that_fails_ends_with_1_and_its_reason(tmp_path, monkeypatch):
    def fails(*args):
        raise RuntimeError("the disk of numbers is full")

    monkeypatch.setattr("wellorder.experiments._tasks.task.ProblemTask.train", fails)
    result = run(*SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "the disk of numbers is full" in result.stderr


def test_an_existing_folder_is_refused_without_resume(done):
    folder, _ = done
    result = run(*SMALL, "--seeds", 3, "--out", folder)
    assert result.exit_code == 2
    assert "add --resume" in result.stderr


def test_resume_needs_a_run_of_a_task_that_the_command_knows(tmp_path):
    result = run("compare", "--resume", "--out", tmp_path / "typo")
    assert result.exit_code == 2
    assert "there is no run to resume" in " ".join(result.stderr.split())
    assert not (tmp_path / "typo").exists()
    (tmp_path / "config.json").write_text("")
    result = run("compare", "--resume", "--out", tmp_path)
    assert result.exit_code == 2
    assert "config.json: cannot be read" in " ".join(result.stderr.split())
    (tmp_path / "config.json").write_text('{"given": {"task": "evil.py:task"}, "resolved": {}}')
    (tmp_path / "evil.py").write_text("raise SystemExit('a folder decided which code is run')")
    result = run("compare", "--resume", "--out", tmp_path)
    assert result.exit_code == 2
    assert "resume it from Python" in " ".join(result.stderr.split())


def test_help_explains_every_option():
    result = run("compare", "--help")
    assert result.exit_code == 0
    for option in (
        "--task",
        "--policy",
        "--epochs",
        "--seeds",
        "--lr",
        "--tune",
        "--jobs",
        "--out",
        "--resume",
        "--json",
    ):
        assert option in result.stdout


@pytest.mark.parametrize(
    ("words", "defaults"),
    [
        (["compare"], ["digits", "those you would switch on", "the task's", "5", "RR", "linear", "16",
                       "the cores; on a GPU 1", "runs/TASK-NUMBER"]),
        (["reproduce", "fig1"], ["1; --all: the cores", "runs/fig1"]),
        (["reproduce", "fig2"], ["runs/fig2 or runs/fig3", "20000; quick: 200", "5; quick: 2", "the paper's",
                                 "1000; quick: 50", "float32; on CUDA tf32"]),
    ],
)  # fmt: skip
def test_help_tells_the_defaults(words, defaults, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 300)
    told = " ".join(run(*words, "--help").stdout.replace("(", "").replace(")", "").split())
    for default in defaults:
        assert f"[default: {default}]" in told


STRANGE = [r"$\frac{=RR", "$x$=SO", "[/]x=PairGraB", "_hidden=GraB", ":smile:=FlipFlop", "[bold]<b>%{y}=IG"]


def test_any_text_may_be_a_label(tmp_path):
    words = [word for text in STRANGE for word in ("--policy", text)]
    task = ["compare", "--task", "quadratics", *words, "--epochs", 2, "--seeds", 2, "--jobs", 1]
    result = run(*task, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    for text in STRANGE:
        assert f"{text.split('=')[0]} " in result.stdout
    for name in ("overview.png", "costs.png", "report.html"):
        assert (tmp_path / "run" / name).stat().st_size > 1000


def test_any_label_is_shown_on_a_terminal():
    import io

    from rich.live import Live

    from wellorder.experiments._progress import LiveWatch, plain_console
    from wellorder.report import Metric

    watch, screen = LiveWatch(Metric("loss", "loss"), 3), io.StringIO()
    with Live(
        watch, console=plain_console(file=screen, force_terminal=True, width=100), transient=True
    ) as live:
        for label in ("[/]x", ":smile:", "$x$"):
            watch.stage(f"step size of {label}", 2)
            watch.row(label, 0, {"epoch": 1, "loss": 0.5})
            live.refresh()
            assert f"step size of {label}" in screen.getvalue()


OWN = """
from wellorder.experiments import problem_task
from wellorder.problems import quadratics

def task():
    return problem_task(quadratics(40), step_size=2e-3)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mytask.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("mytask", None)


SHORT = ["--policy", "RR", "--policy", "PairGraB", "--epochs", 2, "--seeds", 2, "--jobs", 1]


def test_a_task_of_ones_own_is_compared_and_resumed_when_it_is_named_again(own):
    result = run("compare", "mytask.py:task", *SHORT)
    assert result.exit_code == 0, result.output
    folder = own / "runs/mytask-1"
    before = (folder / "table.parquet").read_bytes()
    assert "wellorder compare mytask.py:task" in (folder / "report.html").read_text(encoding="utf-8")
    (folder / "cells/policy0-seed0.parquet").unlink()
    refused = run("compare", "--resume", "--out", folder)
    assert refused.exit_code == 2
    assert "is one of your own; name it again" in " ".join(refused.stderr.split())
    assert run("compare", "mytask.py:task", "--resume", "--out", folder, "--jobs", 1).exit_code == 0
    assert (folder / "table.parquet").read_bytes() == before
    (own / "mytask.py").write_text(OWN + "# another")
    refused = run("compare", "mytask.py:task", "--resume", "--out", folder, "--jobs", 1)
    assert "problem.source=" in refused.stderr


@pytest.mark.slow
def test_a_task_that_cannot_be_pickled_goes_to_worker_processes_by_its_name(own):
    pytest.importorskip("torch")
    (own / "mytask.py").write_text(
        "import torch\nfrom wellorder.experiments import NetworkTask\n"
        "x = torch.arange(80.0).view(40, 2) / 80\n"
        "task = NetworkTask(lambda: torch.nn.Linear(2, 2), (x, (x[:, 0] > 0.5).long()), test=0.2)\n"
    )
    words = ["compare", "mytask.py:task", *SHORT[:-2], "--policy", "Steering"]
    for jobs in (1, 2):
        result = run(*words, "--jobs", jobs, "--out", own / f"jobs{jobs}")
        assert result.exit_code == 0, result.output
    assert (own / "jobs1/table.csv").read_bytes() == (own / "jobs2/table.csv").read_bytes()
    assert "Linear (6 parameters) on 32 examples, SGD in batches of 32, momentum 0.9." in result.stdout


def test_a_table_is_compared(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    lines = ["a,b,city,kind", *(f"{i % 7},{i * i % 11},here,{'odd' if i % 2 else 'even'}" for i in range(40))]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    words = ["--data", "table.csv", "--label", "kind", "--drop", "city"]
    result = run("compare", *words, *SHORT)
    assert result.exit_code == 0, result.output
    assert "Linear (6 parameters) on 32 examples, SGD in batches of 16" in result.stdout
    report = (tmp_path / "runs/table-1/report.html").read_text(encoding="utf-8")
    assert "wellorder compare --data table.csv --label kind --drop city --policy RR" in report
    refused = run("compare", *words[:-2])
    assert refused.exit_code == 2
    assert "column 'city' holds 'here' in row 1" in " ".join(refused.stderr.split())


def test_a_table_without_torch_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "wellorder.experiments._tasks.tables", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("compare", "--data", "table.csv", "--label", "y")
    assert result.exit_code == 2
    assert "pip install 'wellorder[torch,experiments]'" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quadratics", "--task", "digits"], "quadratics and --task digits: name one task"),
        (["mytask.py"], "name the task in it, too, as mytask.py:task"),
        (["mytask.py:tusk"], "did you mean task?"),
        (["mytask.py:task", "--data", "."], "loads its own data"),
        (["--label", "y"], "--label: only for a table"),
        (["--data", "table.csv"], "needs --label"),
        (["--data", "TABLE.CSV"], "needs --label"),
        (["--data", "table.csv", "--label", "y", "--task", "digits"], "a table is a task of its own"),
        (["--data", "table.csv", "--label", "y"], "there is no such file"),
    ],
)
def test_tasks_that_do_not_fit_together_are_refused(own, words, message):
    if message == "there is no such file":
        pytest.importorskip("torch")
    result = run("compare", *words)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert not (own / "runs").exists()


def test_a_gpu_is_not_shared_unless_somebody_asks(own, monkeypatch):
    from wellorder._cli import compare as here

    seen = []

    def noting(*_, jobs, **__):
        seen.append(jobs)
        raise ValueError("that is enough")

    monkeypatch.setattr(here, "cores", lambda: 3)
    monkeypatch.setattr(here, "compare", noting)
    lines = "found = task()", "object.__setattr__(found, 'device', 'cuda')", "return found"
    (own / "mytask.py").write_text(OWN + "\ndef gpu():\n    " + "\n    ".join(lines))
    for words in (["mytask.py:task"], ["mytask.py:gpu"], ["mytask.py:gpu", "--jobs", 2]):
        run("compare", *words, "--out", own / "run")
    assert seen == [3, 1, 2]


def test_the_tab_key_offers_tasks_names_in_files_and_policies(own):
    from wellorder._cli import completion

    assert [name for name, _ in completion.tasks("digits")] == ["digits", "digits-mlp"]
    assert completion.tasks("mytask.py:t") == [("mytask.py:task", "")]
    assert [name for name, _ in completion.tasks("my")] == ["mytask.py:"]
    assert completion.tasks("nothing.py:") == []
    assert "RR" in dict(completion.policies("r"))
    assert [name for name, _ in completion.policies("feat")] == ["features"]
    env = {
        "_WELLORDER_COMPLETE": "complete_bash",
        "COMP_WORDS": "wellorder compare --policy Steer",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(app, [], prog_name="wellorder", env=env)
    assert done.stdout.split() == ["Steering"]


def test_the_list_shows_policies_with_short_names_and_tasks():
    shown = run("list").stdout
    for word in ("PairGraB", "SO", "stratified", "features", "digits-mlp", "mytask.py:task"):
        assert word in shown
    found = json.loads(run("list", "--json").stdout)
    assert {"policy": "RandomReshuffling", "short": "RR"}.items() <= found["policies"][0].items()
    assert found["tasks"][0]["task"] == "quadratics"


def test_help_shows_examples():
    shown = run("compare", "--help").stdout
    assert "wellorder compare mytask.py:task --policy RR" in shown
    assert "--data table.csv --label y" in shown
