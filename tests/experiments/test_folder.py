"""Folders: one process at a time, files that appear all at once, leftovers swept, damage named."""

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from wellorder.experiments import Config, RunFolder, compare, problem_task
from wellorder.experiments._folder import whole_folder
from wellorder.problems import quadratics

SMALL = Config(policies=("RR", "PairGraB"), epochs=4, seeds=(0, 1, 3))
HOLD = """
import sys, time
from pathlib import Path
from wellorder.experiments import RunFolder
with RunFolder.claimed(Path(sys.argv[1])):
    print("claimed", flush=True)
    time.sleep(120)
"""


@pytest.fixture
def task():
    return problem_task(quadratics(60), step_size=2e-3, name="small")


def test_a_folder_in_which_a_run_is_at_work_is_refused_and_its_owner_named(task, tmp_path):
    words = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "claimed\n"
        for resume in (False, True):
            if resume:
                (tmp_path / "run/config.json").write_text('{"given": {}, "resolved": {}}')
            claim = RunFolder.claimed(tmp_path / "run", resume=resume)
            with pytest.raises(
                ValueError, match=rf"at work in this folder \(process {other.pid} on .*, since"
            ):
                claim.__enter__()
        (tmp_path / "run/config.json").unlink()
        other.kill()
    assert compare(task, SMALL, out=tmp_path / "run").table.num_rows == 30
    assert not (tmp_path / "run/.lock").exists()


def test_of_runs_that_start_at_once_in_one_folder_one_is_trained_and_the_others_are_told(task, tmp_path):
    whole = compare(task, SMALL, out=tmp_path / "alone").table.drop_columns(["seconds"])

    def start(_):
        try:
            return compare(task, SMALL, out=tmp_path / "run")
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(start, range(6)))
    told = [answer for answer in found if isinstance(answer, str)]
    assert len(told) == 5
    assert [text for text in told if "folder (process" not in text and "not empty" not in text] == []
    done = next(answer for answer in found if not isinstance(answer, str))
    assert done.table.drop_columns(["seconds"]).equals(whole)


def test_the_lock_is_let_go_when_a_run_fails(task, tmp_path):
    class Breaks:
        def stage(self, title, rows):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        compare(task, SMALL, out=tmp_path, watch=Breaks())
    assert compare(task, SMALL, out=tmp_path, resume=True).table.num_rows == 30


NAMES = [f"part{k}" for k in range(5)]
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "ctypes.dlsym"}


def fill(out, text):
    with whole_folder(out) as beside:
        for name in NAMES:
            (beside / name).write_text(text)


def killed_at(event, work):
    """Do ``work`` in a forked child that is killed just before its so-manyth change of the file system."""
    child = os.fork()
    if not child:
        seen = [0]

        def count(name, args):
            writes = name == "open" and isinstance(args[1], str) and "w" in args[1]
            if name in CHANGES or writes:
                seen[0] += 1
                if seen[0] == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("before", [False, True])
def test_files_appear_all_at_once_wherever_the_process_is_killed(tmp_path, before):
    old = dict.fromkeys(NAMES, "old") if before else {}
    for event in range(1, 100):
        out = tmp_path / str(event) / "fig[1]"
        if before:
            fill(out, "old")
        killed = killed_at(event, lambda out=out: fill(out, "new"))
        found = {file.name: file.read_text() for file in out.iterdir()} if out.exists() else {}
        assert found in (old, dict.fromkeys(NAMES, "new")), f"killed before change {event}"
        fill(out, "newer")
        assert {file.name: file.read_text() for file in out.iterdir()} == dict.fromkeys(NAMES, "newer")
        assert [path.name for path in out.parent.iterdir()] == ["fig[1]"], "leftovers are not swept"
        if not killed:
            break
    assert event > 10
    assert not killed


def test_other_files_in_the_folder_stay_and_a_living_neighbour_is_not_swept(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear reader")
    (out / ".unfinished-old").mkdir()
    with whole_folder(out) as mine:
        fill(out, "theirs")
        for name in NAMES:
            (mine / name).write_text("mine")
    assert {file.name for file in out.iterdir()} == {"letter.txt", *NAMES}
    assert {(out / name).read_text() for name in NAMES} == {"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_error_leaves_nothing_behind(tmp_path):
    def fails():
        with whole_folder(tmp_path / "out") as beside:
            (beside / "part").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert not list(tmp_path.iterdir())


def test_leftover_folders_of_a_killed_run_are_swept(task, tmp_path):
    compare(task, SMALL, out=tmp_path)
    (tmp_path / ".unfinished-x").mkdir()
    (tmp_path / ".unfinished-x" / "part").write_text("half")
    compare(task, SMALL, out=tmp_path, resume=True)
    assert not list(tmp_path.rglob(".unfinished-*"))


def test_a_full_disk_names_the_cure(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from wellorder._cli import app

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "keep", full)
    words = [
        "compare",
        "--task",
        "quadratics",
        "--policy",
        "RR",
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
    ]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 1
    told = " ".join(result.stderr.split())
    assert "No space left on device; free some space; finished seeds are kept, and --resume finishes" in told


DEEP = "[" * 100_000
DAMAGE = {
    "config.json": ["", "{", "[]", "{}", "null", '"x"', DEEP, '{"given": 1}', '{"given": [], "resolved": {}}',
                    '{"given": {}, "resolved": {}}', '{"given": {"task": ["x"]}, "resolved": {}}',
                    '{"given": {"task": "quadratics", "epochs": "4"}, "resolved": {}}',
                    '{"given": {"task": "quadratics", "nonsense": 1}, "resolved": {}}',
                    '{"given": {"task": "quadratics", "seeds": 5}, "resolved": {}}',
                    '{"given": {"task": "quadratics", "policies": [1]}, "resolved": {}}'],
    "about.json": ["", "{", "[]", DEEP, '{"started": 3}', '{"started": [1]}', '{"started": [{}]}',
                   '{"started": [{"versions": 1, "machine": {}}]}'],
    "tuning.json": ["", "[]", DEEP, '{"RR": 1}', '{"RR": {}}', '{"RR": {"best": "x"}}',
                    '{"RR": {"best": 1, "coarse": [], "fine": [], "tried": [], "edge": ""}}',
                    '{"RR": {"best": 1, "coarse": 3, "fine": [], "tried": [[1, 2, 3]], "edge": 0}}'],
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run with everything in it."""
    folder = tmp_path_factory.mktemp("damaged") / "run"
    compare("quadratics", TUNED, out=folder)
    return folder


TUNED = Config(policies=("RR", "PairGraB"), epochs=4, seeds=(0, 1), tune="baseline")


def resumed(folder):
    from typer.testing import CliRunner

    from wellorder._cli import app

    result = CliRunner().invoke(app, ["compare", "--resume", "--out", str(folder), "--jobs", "1", "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stderr.split())


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in DAMAGE for text in DAMAGE[name]])
def test_a_damaged_file_is_named_with_its_cure_and_the_cure_works(finished, tmp_path, name, text):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / name).write_text(text)
    code, told = resumed(folder)
    assert code == 2, told
    assert name in told
    assert ("another folder" if name == "config.json" else "delete it") in told
    if name != "config.json":
        (folder / name).unlink()
        assert resumed(folder)[0] == 0
        assert (folder / "table.csv").read_bytes() == (finished / "table.csv").read_bytes()


def wrong_cells(cell):
    """Cells that are not of the run, by what is wrong with them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    good = pq.read_table(cell)
    at = (
        good.column_names.index("loss")
        if "loss" in good.column_names
        else good.column_names.index("distance")
    )
    yield "no table", lambda: cell.write_bytes(b"PAR1 nothing PAR1")
    yield "cut off", lambda: cell.write_bytes(cell.read_bytes()[:-40])
    yield "empty", lambda: cell.write_bytes(b"")
    yield "too long", lambda: pq.write_table(pa.concat_tables([good] * 50), cell)
    yield "too short", lambda: pq.write_table(good.slice(0, 2), cell)
    yield "no metrics", lambda: pq.write_table(good.select(["policy", "seed", "epoch"]), cell)
    yield "no seed", lambda: pq.write_table(good.drop_columns(["seed"]), cell)
    words = pa.array(["x"] * good.num_rows)
    yield "words for numbers", lambda: pq.write_table(good.set_column(at, "distance", words), cell)
    yield "another seed", lambda: shutil.copy(cell.parent / "policy0-seed1.parquet", cell)
    yield "another policy", lambda: shutil.copy(cell.parent / "policy1-seed0.parquet", cell)


@pytest.mark.parametrize("case", range(10))
def test_a_cell_that_is_not_of_the_run_is_named_and_can_be_deleted(finished, tmp_path, case):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    cell = folder / "cells" / "policy0-seed0.parquet"
    what, damage = list(wrong_cells(cell))[case]
    damage()
    code, told = resumed(folder)
    assert code == 2, (what, told)
    assert "policy0-seed0.parquet" in told
    assert "delete it: what it held is made again, and the rest is kept" in told
    cell.unlink()
    assert resumed(folder)[0] == 0
    assert (folder / "table.csv").read_bytes() == (finished / "table.csv").read_bytes()
