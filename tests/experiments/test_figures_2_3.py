"""Figures 2 and 3: the whole way from data to report, small; and a run that is broken off goes on."""

import gzip
import json
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from wellorder.experiments import _figures_2_3 as figures
from wellorder.report._table import curves, read_table

TINY = ["--quick", "--rounds", "4", "--clients", "10", "--seeds", "2", "--json"]


@pytest.fixture(autouse=True)
def one_thread():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def command(*words):
    from wellorder._cli import app

    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_the_papers_settings_are_the_defaults():
    paper, other = figures.figure("fig2"), figures.figure("fig3")
    assert (paper.clients, paper.cohort, paper.local_steps, paper.batch) == (1000, 10, 5, 16)
    assert (paper.epochs, paper.seeds, paper.gamma) == (200, 5, 0.1)
    assert other.gamma == pytest.approx(0.316, abs=1e-3)


def test_a_small_figure_2_goes_from_data_to_report(tmp_path):
    out = tmp_path / "run"
    done = command("fig2", *TINY, "--out", out)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["final"]) == {"FL-RR", "FL-OP", "FL-GraB"}
    names = {file.name for file in out.iterdir()}
    assert {"fig2.png", "fig2.pdf", "partition.npz", "partition.png", "report.html", "table.csv"} <= names
    table = read_table(out / "table.parquet")
    assert curves(table, "FL-GraB", "test_accuracy").shape == (2, 3)
    assert curves(table, "FL-RR", "round")[0].tolist() == [0, 2, 4]
    assert 0 <= found["final"]["FL-RR"]["test_accuracy"] <= 1
    again = command("fig2", *TINY, "--out", out)
    assert again.exit_code == 2
    assert "--resume" in again.output
    resumed = command("fig2", *TINY, "--out", out, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["final"] == found["final"]
    other = command("fig2", *TINY, "--out", out, "--resume", "--lr", 0.5)
    assert other.exit_code == 2
    assert "step_size=0.5" in " ".join(other.output.split())


def test_a_broken_run_goes_on_to_the_same_table(tmp_path):
    config = figures.figure(
        "fig2", quick=True, rounds=6, clients=10, seeds=1, train_sample=50, policies=("PairGraB",)
    )
    digits = figures.dataset_of(config)
    whole = figures.run(config, digits, tmp_path / "whole")

    def stop(epochs, rows):
        if epochs == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        figures.run(config, digits, tmp_path / "broken", progress=stop)
    again = figures.run(config, digits, tmp_path / "broken", resume=True)
    assert again.table.drop_columns(["seconds"]).equals(whole.table.drop_columns(["seconds"]))


@pytest.mark.slow
def test_figure_3_runs_resnet10(tmp_path):
    done = command(
        "fig3", "--quick", "--rounds", 2, "--clients", 10, "--seeds", 1, "--policy", "FL-GraB=PairGraB",
        "--json", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "fig3.png").exists()


def test_the_step_size_is_searched_in_two_stages(tmp_path):
    config = figures.figure(
        "fig2", quick=True, rounds=2, clients=10, seeds=1, tune=True, policies=("FL-RR=RR",)
    )
    done = figures.run(config, figures.dataset_of(config), tmp_path)
    assert len(done.search.tried) == 5
    assert done.step_size == done.search.best
    assert (tmp_path / "tuning.json").exists()


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize("name", ["cifar100", "cinic10"])
def test_cifar100_and_cinic10_run_end_to_end_on_made_up_files(tmp_path, name):
    from wellorder._datasets import files as data

    draw = np.random.default_rng(0)
    if name == "cifar100":
        for split, count in (("train", 60), ("test", 20)):
            table = draw.integers(0, 256, (count, 3074), dtype=np.uint8)
            table[:, :2] %= 20
            (tmp_path / f"{split}.bin").write_bytes(table.tobytes())
        found = data.cifar100(tmp_path, verify=False)
    else:
        image = pytest.importorskip("PIL.Image")
        for split in ("train", "test"):
            for label in data.CINIC_CLASSES:
                (tmp_path / split / label).mkdir(parents=True)
                for i in range(6 if split == "train" else 1):
                    pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                    image.fromarray(pixels).save(tmp_path / split / label / f"{i}.png")
        found = data.cinic10(tmp_path)
    config = figures.figure("fig2", quick=True, dataset=name, rounds=4, clients=10, seeds=1, augment=True)
    done = figures.run(config, found, tmp_path / "run")
    assert np.isfinite(curves(done.table, "FL-GraB", "train_loss")).all()


def test_bad_options_are_refused_with_the_cure(tmp_path):
    for words, message in (
        (("--dataset", "svhn"), "pass one of digits"),
        (("--dataset", "cifar10", "--data", tmp_path), "no test_batch.bin"),
        (("--policy", "Sorted"), "unknown"),
        (("--device", "cuda:7"), "no CUDA device"),
        (("--clients", "9999"), "pass fewer"),
        (("--clients", "0"), "clients=0: pass an int from 1"),
        (("--clients", "3"), "clients=3: a round takes 5; pass 5 clients or more"),
        (("--rounds", "0"), "rounds=0: pass an int from 1"),
        (("--seeds", "0"), "seeds=0: pass an int from 1"),
        (("--device", "nope"), "device='nope': pass cpu, cuda or cuda:NUMBER"),
        (("--precision", "half"), "precision='half'"),
        (("--lr", "0"), "step_size=0.0: pass a positive number"),
        (("--lr", "0.1", "--tune"), "not both"),
        (("--policy", "Greedy(max_units=None)"), "policy Greedy(max_units=None)"),
    ):
        done = command("fig2", "--quick", *words, "--out", tmp_path / "x")
        assert done.exit_code == 2, done.output
        assert message in " ".join(done.output.split())
        assert not (tmp_path / "x").exists()


def test_the_moving_average_is_of_what_there_is():
    values = np.arange(10.0)
    assert figures.smoothed(values)[:3].tolist() == [0.0, 0.5, 1.0]
    assert figures.smoothed(values)[-1] == values[-6:].mean()


@pytest.mark.parametrize(
    "words",
    [
        ["fig2"],
        ["fig3", "--quick", "--seeds", "3", "--precision", "float64"],
        ["fig2", "--quick", "--rounds", "12", "--clients", "20", "--lr", "0.25"],
        ["fig2", "--dataset", "mnist", "--tune", "--policy", "FL-RR=RR", "--policy", "mine=GraB(reorders=2)"],
        ["fig3", "--device", "cuda"],
        ["fig2", "--device", "cuda", "--precision", "float32"],
    ],
)
def test_the_command_of_the_report_names_this_run_and_no_other(words, monkeypatch):
    seen = []

    def note(config, *_, **__):
        seen.append(config)
        raise ValueError("enough was seen")

    monkeypatch.setattr(figures, "dataset_of", note)
    command(*words)
    told = shlex.split(figures.command_of(seen[0]))
    assert told[:3] == ["wellorder", "reproduce", words[0]]
    command(*told[2:])
    assert seen[1] == seen[0]
    for option in (word for word in words if word.startswith("--")):
        assert option in told


def test_settings_without_an_option_are_not_told_as_a_command():
    assert not figures.command_of(figures.figure("fig2", cohort=7)).startswith("wellorder")
