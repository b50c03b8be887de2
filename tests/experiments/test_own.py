"""A task in a file of one's own: found by its name, sent by its name, and told from other files."""

import pickle
import sys
from concurrent.futures import Executor, Future

import numpy as np
import pytest

import wellorder as wo
from wellorder.experiments import Config, JobError, compare, problem_task
from wellorder.experiments._publish import command_of
from wellorder.experiments._tasks.own import own_task
from wellorder.problems import quadratics

FILE = """
from wellorder.experiments import ProblemTask, problem_task
from wellorder.problems import quadratics

task = problem_task(quadratics(40), step_size=2e-3)
problem = lambda seed: quadratics(40)
unpicklable = ProblemTask("lambdas", "With lambdas", problem, task.metrics, 2e-3, 5, (2e-3,))
number = 3

def make():
    return task

def fails():
    raise RuntimeError("no data here")
"""
SMALL = Config(policies=("RR", "PairGraB"), epochs=2, seeds=(0, 1))


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(FILE)
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("text", ["mine.py:task", "mine.py:make", "mine:task", "mine.py:unpicklable"])
def test_a_task_is_found_in_a_file_or_module_and_goes_where_it_is_sent(file, text):
    task = own_task(text)
    again = pickle.loads(pickle.dumps(task))
    assert again.place == task.place
    assert task.command == [text]
    assert task.name == ("lambdas" if "unpicklable" in text else "mine")
    here, there = (compare(each, SMALL).table.drop_columns(["seconds"]) for each in (task, again))
    assert here.equals(there)
    assert command_of(compare(task, SMALL).plan).startswith(f"wellorder compare {text} --policy RR")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.py:number", "mine.py:number is int, not a task"),
        ("mine.py:fails", "failed with RuntimeError: no data here"),
        ("mine.py:tusk", "has no 'tusk'; did you mean task"),
        ("nine.py:task", "there is no such file here"),
        ("nine:task", "there is no such module"),
        (":task", "write FILE.py:NAME"),
    ],
)
def test_what_is_no_task_is_refused(file, text, message):
    with pytest.raises(ValueError, match=message):
        own_task(text)


def test_a_run_is_resumed_only_while_the_file_is_the_same(file, tmp_path):
    compare(own_task("mine.py:task"), SMALL, out=tmp_path / "run")
    (tmp_path / "run/cells/policy1-seed1.parquet").unlink()
    assert compare(own_task("mine.py:task"), SMALL, out=tmp_path / "run", resume=True).table.num_rows == 12
    file.write_text(FILE.replace("2e-3)", "2e-3)  # changed"))
    with pytest.raises(ValueError, match=r"problem\.source="):
        compare(own_task("mine.py:task"), SMALL, out=tmp_path / "run", resume=True)


class Here(Executor):
    """Runs everything at once, in this process, after a trip through a pickle."""

    def __init__(self):
        self.jobs = 0

    def submit(self, function, /, *given, **named):
        self.jobs += 1
        done = Future()
        try:
            done.set_result(pickle.loads(pickle.dumps(function))(*pickle.loads(pickle.dumps(given)), **named))
        except Exception as error:
            done.set_exception(error)
        return done


def test_an_executor_gives_the_same_table(file):
    task, executor = own_task("mine.py:unpicklable"), Here()
    there = compare(task, SMALL, executor=executor).table
    assert executor.jobs == 4
    assert there.drop_columns(["seconds"]).equals(compare(task, SMALL).table.drop_columns(["seconds"]))


def test_an_executor_that_fails_names_the_run():
    short = {"AP": wo.Arbitrary([range(40)])}
    task = problem_task(quadratics(40), step_size=2e-3)
    with pytest.raises(JobError, match=r"AP, seed 0: .*orders: 1 given"):
        compare(task, Config(policies=short, epochs=2, seeds=(0,)), executor=Here())
    with pytest.raises(ValueError, match=r"executor=3: pass a concurrent\.futures\.Executor"):
        compare(task, SMALL, executor=3)
    with pytest.raises(ValueError, match="jobs=2: the executor decides"):
        compare(task, SMALL, executor=Here(), jobs=2)


@pytest.mark.slow
def test_dask_trains_what_this_process_would(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task = own_task("mine.py:unpicklable")  # goes by its name, for its lambdas cannot be pickled
    settings = {"n_workers": 2, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        there = compare(task, SMALL, executor=client.get_executor(), out=tmp_path / "run")
        with pytest.raises(JobError, match="AP, seed 0"):
            compare(
                task,
                Config(policies={"AP": wo.Arbitrary([range(40)])}, epochs=2, seeds=(0,)),
                executor=client.get_executor(),
            )
    sys.modules.pop("mine", None)
    here = compare(task, SMALL)
    assert there.table.drop_columns(["seconds"]).equals(here.table.drop_columns(["seconds"]))
    assert np.isfinite(there.table.column("seconds").to_numpy()).all()


def test_a_progress_bar_is_shown_on_a_terminal_unless_somebody_says_no(monkeypatch, capsys):
    from wellorder.experiments import _progress

    usual = _progress.plain_console
    monkeypatch.setattr(_progress, "plain_console", lambda **options: usual(force_terminal=True, **options))
    task = problem_task(quadratics(40), step_size=2e-3)
    compare(task, SMALL)
    assert "training" in capsys.readouterr().err
    compare(task, SMALL, progress=False)
    assert capsys.readouterr().err == ""
