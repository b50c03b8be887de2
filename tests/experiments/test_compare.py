"""Comparisons: runs are data, and a broken run goes on as if nothing had happened."""

import base64
import json

import numpy as np
import pytest

import wellorder as wo
from wellorder.experiments import Config, RunFolder, compare, problem_task, two_stage
from wellorder.experiments._compare import Silent
from wellorder.experiments._config import resolve
from wellorder.experiments._publish import command_of, publish, summary
from wellorder.problems import quadratics
from wellorder.report import Metric, headline
from wellorder.report._verdict import Kind

SMALL = Config(policies=("RR", "PairGraB"), epochs=4, seeds=(0, 1, 3))


@pytest.fixture
def task():
    return problem_task(quadratics(60), step_size=2e-3, name="small")


class Breaks(Silent):
    """Pulls the plug after so many rows."""

    def __init__(self, rows):
        self.left = rows

    def row(self, label, seed, row):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def tables(folder):
    return {name: (folder / name).read_bytes() for name in ("table.parquet", "table.csv")}


def test_the_table_holds_every_policy_seed_and_epoch(task):
    table = compare(task, SMALL).table
    assert table.num_rows == 2 * 3 * 5
    assert table.column_names[:3] == ["policy", "seed", "epoch"]
    assert table.column_names[-2:] == ["gradients", "seconds"]
    run = wo.sgd(quadratics(60), wo.PairGraB(), step_size=2e-3, epochs=4, seed=3)
    last = table.slice(table.num_rows - 5, 5)
    np.testing.assert_array_equal(last.column("distance").to_numpy()[:4], run.distance)
    np.testing.assert_array_equal(last.column("order_error").to_numpy()[:4], run.order_error)


def test_a_run_is_a_folder_of_data(task, tmp_path):
    done = compare(task, SMALL, out=tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["given"] == {
        "task": "small",
        "policies": ["RR", "PairGraB"],
        "epochs": 4,
        "seeds": [0, 1, 3],
    }
    assert config["resolved"]["step_size"] == 2e-3
    assert config["resolved"]["policies"]["RR"] == "RandomReshuffling()"
    about = json.loads((tmp_path / "run/about.json").read_text())
    assert about["started"][0]["versions"]["numpy"] == np.__version__
    assert about["started"][0]["machine"]["cores"] >= 1
    assert RunFolder(tmp_path / "run").table().equals(done.table)


@pytest.mark.parametrize("rows", [1, 7, 12, 29])
def test_an_interrupted_run_resumes_to_the_identical_table(task, tmp_path, rows):
    compare(task, SMALL, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        compare(task, SMALL, out=tmp_path / "broken", watch=Breaks(rows))
    assert len(list((tmp_path / "broken/cells").glob("*.parquet"))) == (rows - 1) // 5
    compare(task, SMALL, out=tmp_path / "broken", resume=True)
    assert tables(tmp_path / "broken") == tables(tmp_path / "whole")


def test_finished_seeds_are_not_trained_again(task, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        compare(task, SMALL, out=tmp_path, watch=Breaks(23))
    counted = Breaks(-1)
    compare(task, SMALL, out=tmp_path, resume=True, watch=counted)
    assert -1 - counted.left == 10


def test_a_folder_of_other_options_is_not_resumed(task, tmp_path):
    compare(task, SMALL, out=tmp_path)
    with pytest.raises(ValueError, match="not empty; add --resume"):
        compare(task, SMALL, out=tmp_path)
    other = Config(policies=("RR", "PairGraB"), epochs=5, seeds=(0, 1, 3))
    with pytest.raises(ValueError, match=r"epochs=5 \(was 4\)"):
        compare(task, other, out=tmp_path, resume=True)


def test_another_problem_of_the_same_name_is_not_mixed_into_a_run(task, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        compare(task, SMALL, out=tmp_path, watch=Breaks(7))
    for other in (quadratics(500, dim=3, seed=7), quadratics(60, seed=1)):
        mine = problem_task(other, step_size=2e-3, name="small")
        with pytest.raises(ValueError, match=r"problem\.\w+=.* \(was "):
            compare(mine, SMALL, out=tmp_path, resume=True)
    assert len(list((tmp_path / "cells").iterdir())) == 1
    again = problem_task(quadratics(60), step_size=2e-3, name="small")
    assert compare(again, SMALL, out=tmp_path, resume=True).table.num_rows == 30


def test_only_a_run_is_resumed(task, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear reader")
    for name in ("foreign", "missing"):
        with pytest.raises(ValueError, match=r"no run to resume .* leave out --resume"):
            compare(task, SMALL, out=tmp_path / name, resume=True)
        with pytest.raises(ValueError, match="no run to resume"):
            RunFolder.start(tmp_path / name, resume=True)
    assert [p.name for p in tmp_path.rglob("*")] == ["foreign", "letter.txt"]


def test_a_run_killed_before_it_began_is_begun_anew(task, tmp_path):
    RunFolder.start(tmp_path)
    (tmp_path / "cells" / ".unfinished-x.parquet").write_text("")
    assert compare(task, SMALL, out=tmp_path).table.num_rows == 30


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"given": 1}'])
def test_a_broken_config_is_named_with_its_cure(task, tmp_path, text):
    compare(task, SMALL, out=tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json: .*another folder"):
        compare(task, SMALL, out=tmp_path, resume=True)


def test_a_run_resumed_under_other_versions_says_so_in_its_report(task, tmp_path):
    compare(task, SMALL, out=tmp_path)
    about = json.loads((tmp_path / "about.json").read_text())
    about["started"][0]["versions"]["numpy"] = "1.0"
    (tmp_path / "about.json").write_text(json.dumps(about))
    done = compare(task, SMALL, out=tmp_path, resume=True)
    assert f"resumed under other conditions: numpy (1.0, {np.__version__})" in done.folder.mixed()
    assert "resumed under other conditions" in publish(done).read_text(encoding="utf-8")


def test_a_single_policy_is_reported_without_a_verdict(task, tmp_path):
    done = compare(task, Config(policies=("GraB",), epochs=2, seeds=(0, 1)), out=tmp_path)
    assert done.verdicts == []
    assert "GraB alone was trained" in publish(done).read_text(encoding="utf-8")


def test_tuning_on_the_baseline_is_reused_and_remembered(task, tmp_path):
    config = Config(policies=("RR", "PairGraB"), epochs=10, seeds=(0, 1), tune="baseline")
    done = compare(task, config, out=tmp_path)
    assert list(done.searches) == ["RR"]
    assert len(set(done.step_sizes.values())) == 1
    assert done.step_sizes["RR"] == done.searches["RR"].best

    titles = []

    class Looks(Silent):
        def stage(self, title, rows):
            titles.append(title)

    again = compare(task, config, out=tmp_path, resume=True, watch=Looks())
    assert again.searches == done.searches
    assert titles == ["training"]


def test_tuning_each_policy_searches_for_all_and_tells_of_edges():
    tiny = problem_task(quadratics(60), step_size=1e-7)
    done = compare(tiny, Config(policies=("RR", "PairGraB"), epochs=3, seeds=(0,), tune="each"))
    assert set(done.searches) == {"RR", "PairGraB"}
    assert all(search.edge == "high" for search in done.searches.values())
    assert "at the grid's edge" in summary(done)["searches"]["RR"]
    assert summary(done)["searches"]["RR"].endswith("try --lr 1e-05")


def test_the_curves_of_a_search_are_kept_and_drawn(tmp_path):
    from wellorder.experiments._tuning import plot

    wild = problem_task(quadratics(60), step_size=1.0)  # ten times as much diverges
    done = compare(
        wild, Config(policies=("RR", "$GraB=GraB"), epochs=20, seeds=(0, 1), tune="each"), out=tmp_path
    )
    report = publish(done).read_text(encoding="utf-8")
    drawn = (tmp_path / "tuning.png").read_bytes()
    assert base64.b64encode(drawn).decode() in report
    told = json.loads((tmp_path / "summary.json").read_text())["tuning"]["RR"]
    tried = done.searches["RR"].tried
    assert told == [[size, tried[size] if np.isfinite(tried[size]) else None] for size in sorted(tried)]
    assert None in [value for _, value in told]
    axes = plot(done.searches, done.plan.metric).axes[0]
    drawn = [[x, y] for x, y in zip(*axes.lines[0].get_data(), strict=True)]
    assert drawn == [pair for pair in told if pair[1] is not None and pair[1] < 1e6 * min(tried.values())]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["RR", r"\$GraB"]


def test_the_search_minimises_the_judged_metric(task):
    done = compare(task, Config(policies=("RR",), epochs=10, seeds=(0, 1, 2), tune="baseline"))

    def losses(grid):
        ends = []
        for value in grid:
            runs = [
                wo.sgd(quadratics(60), wo.RandomReshuffling(), step_size=value, epochs=10, seed=s)
                for s in range(3)
            ]
            ends.append(np.median([quadratics(60).value(run.x[-1]) for run in runs]))
        return ends

    assert done.searches["RR"].best == two_stage(losses, task.grid).best


class Costly:
    """Ordered, it needs 30 % fewer epochs, each of which takes three times as long."""

    name, title, step_size, epochs, grid = "costly", "Costly", 0.1, 20, (0.1,)
    metrics = (Metric("loss", "training loss", log=False),)

    def check(self, settings):
        return 10

    def train(self, policy, seed, settings):
        pace, price = (1.0, 1.0) if policy == wo.RandomReshuffling() else (1.4, 3.0)
        for epoch in range(settings.epochs + 1):
            loss = 1.0 - 0.04 * pace * epoch + 0.001 * seed
            yield {
                "epoch": epoch,
                "loss": loss,
                "gradients": 10 * epoch,
                "seconds": price * epoch + 0.001 * seed,
            }


def test_where_ordering_loses_time_the_headline_says_so(tmp_path):
    done = compare(Costly(), Config(policies=("RR", "GraB"), seeds=range(5)), out=tmp_path)
    line = headline(done.verdicts, "RR")
    assert "fewer epochs" in line
    assert "times the time" in line
    assert line.rstrip(".").endswith("not worth its time")
    assert "not worth its time" in publish(done).read_text(encoding="utf-8")


def test_two_names_for_one_policy_show_no_difference(task):
    config = Config(
        policies=("RR", "one=PairGraB", "two=PairGraB"), epochs=10, seeds=range(4), baseline="one"
    )
    found = {verdict.policy: verdict.kind for verdict in compare(task, config).verdicts}
    assert found["two"] is Kind.SAME


def test_federated_settings_reach_the_training(task):
    from wellorder.federated import fedavg

    config = Config(policies={"FL-GraB": wo.PairGraB()}, epochs=3, seeds=(2,), cohort=7, local_steps=3)
    table = compare(task, config).table
    run = fedavg(quadratics(60), wo.PairGraB(), step_size=2e-3, epochs=3, seed=2, cohort=7, local_steps=3)
    np.testing.assert_array_equal(table.column("distance").to_numpy()[:3], run.distance)
    np.testing.assert_array_equal(table.column("order_error").to_numpy()[:3], run.order_error)
    assert table.column("gradients").to_pylist() == [0, 180, 360, 540]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policies": ()}, "at least one policy"),
        ({"policies": ("PairGrap",)}, "did you mean PairGraB"),
        ({"policies": ("AP([[0, 1, 2]])",)}, "not a permutation"),
        ({"policies": ("Greedy(max_units=10)",)}, "policy Greedy"),
        ({"policies": "RR"}, "policies='RR': pass a list of names"),
        ({"policies": (3,)}, "pass a list of names"),
        ({"policies": {"RR": 3}}, "'RR' is 3, not a policy"),
        ({"policies": {"RR": wo.GraB}}, "not a policy"),
        ({"seeds": 5}, "seeds=5: pass a list"),
        ({"seeds": ()}, "seeds="),
        ({"seeds": (1, 1)}, "different"),
        ({"seeds": (-1,)}, "seeds="),
        ({"epochs": 0}, "epochs=0"),
        ({"step_size": -1.0}, "step_size=-1.0"),
        ({"tune": "all"}, "tune='all'"),
        ({"tune": "each", "step_size": 0.1}, "not both"),
        ({"baseline": "GraB"}, "not among the policies"),
        ({"cohort": 61}, "1 to 60"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"server_step": 0.0}, "server_step"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(task, tmp_path, wrong, message):
    options = {"policies": ("RR",), "epochs": 2, "seeds": (0,), **wrong}
    with pytest.raises(ValueError, match=message):
        compare(task, Config(**options), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unwritable_folder_is_refused(task, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        compare(task, SMALL, out=tmp_path / "file" / "run")


def test_published_files_tell_the_same_story(task, tmp_path):
    done = compare(task, SMALL, out=tmp_path)
    report = publish(done)
    assert {"summary.json", "overview.png", "costs.png", "report.html"} <= {
        p.name for p in tmp_path.iterdir()
    }
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["verdicts"][0]["text"] == done.verdicts[0].text
    assert told["final"]["PairGraB"]["loss"]["min"] <= told["final"]["PairGraB"]["loss"]["median"]
    text = report.read_text(encoding="utf-8")
    assert done.verdicts[0].policy in text
    with pytest.raises(ValueError, match="out="):
        publish(compare(task, SMALL))


def test_the_report_names_a_command_that_makes_the_same_plan():
    config = Config(
        policies=("RR", "GraB(reorders=2)", "mine=PairGraB"), seeds=(1, 4), cohort=3, baseline="mine"
    )
    plan = resolve("quadratics", config)
    command = command_of(plan)
    assert "--policy RR" in command
    assert "'mine=PairGraB(rule=Deterministic(), reorders=1)'" in command
    assert "--seed 1 --seed 4" in command
    assert "--cohort 3" in command
    assert "--baseline mine" in command


def test_the_command_of_a_report_can_be_typed_or_is_none():
    import shlex
    from itertools import pairwise

    from wellorder.experiments._names import named_policies

    typed = {"FL/x": wo.RandomReshuffling(), "my_run": wo.GraB()}
    words = shlex.split(command_of(resolve("quadratics", Config(policies=typed))))
    texts = [text for option, text in pairwise(words) if option == "--policy"]
    assert named_policies(texts) == typed
    for untold in ({"OP (SO)": wo.ShuffleOnce()}, {"AP": wo.Arbitrary(lambda epoch: np.arange(1000))}):
        assert command_of(resolve("quadratics", Config(policies=untold))).startswith("wellorder.experiments")


def test_runs_that_start_at_once_get_a_folder_each(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    from wellorder.experiments._folder import fresh_path

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: fresh_path(tmp_path / "runs", "digits"), range(24)))
    assert sorted(path.name for path in found) == sorted(f"digits-{k}" for k in range(1, 25))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="choose a folder with --out"):
        fresh_path(tmp_path / "file" / "runs", "digits")


@pytest.mark.slow
def test_more_processes_give_the_same_table(tmp_path):
    config = Config(policies=("RR", "GraB", "PairGraB"), epochs=4, seeds=(0, 1))
    compare("digits", config, out=tmp_path / "one", jobs=1)
    compare("digits", config, out=tmp_path / "two", jobs=2)
    assert tables(tmp_path / "one") == tables(tmp_path / "two")


@pytest.mark.slow
def test_a_worker_that_fails_is_reported_with_its_reason(task):
    from wellorder.experiments._pool import JobError

    config = Config(policies={"AP": wo.Arbitrary([range(60)])}, epochs=2, seeds=(0, 1))
    for jobs in (1, 2):
        with pytest.raises(JobError, match="orders: 1 given, but epoch 1 was opened"):
            compare(task, config, jobs=jobs)
    with pytest.raises(ValueError, match="cannot travel to a worker process"):
        compare(
            task,
            Config(policies={"AP": wo.Arbitrary(lambda epoch: np.arange(60))}, epochs=2, seeds=(0, 1)),
            jobs=2,
        )
