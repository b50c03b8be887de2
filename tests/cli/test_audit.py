"""``wellorder audit``: the sentence, the JSON, the picture, and errors with their cure."""

import json
import sys

import pytest
from typer.testing import CliRunner

from wellorder._cli import app

run = CliRunner().invoke
SCRIPT = """
import numpy as np

Y = np.repeat(np.arange(4), 100)
X = np.random.default_rng(0).normal(size=(400, 3)) + Y[:, None]


class Loader:
    def __init__(self, shuffle):
        self.draw, self.shuffle, self.epoch_set = np.random.default_rng(0), shuffle, []

    def __iter__(self):
        order = self.draw.permutation(400) if self.shuffle else np.arange(400)
        for units in np.split(order, 20):
            yield X[units], Y[units]


class Told(Loader):
    def __iter__(self):
        self.draw = np.random.default_rng(self.epoch_set[-1] if self.epoch_set else 0)
        return super().__iter__()

    def set_epoch(self, epoch):
        self.epoch_set.append(epoch)


loader, stored, told = Loader(True), Loader(False), Told(True)
unlabelled = [X[:50], X[50:100]]


def make():
    return Loader(True)


def stream():
    yield from loader


def broken():
    raise RuntimeError("no disk")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    name = f"script_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


@pytest.mark.parametrize("place", ["{}.py:loader", "{}:loader", "{}.py:make", "{}.py:stream"])
def test_a_loader_is_found_by_file_and_by_module(script, place):
    result = run(app, ["audit", place.format(script), "--epochs", "4"])
    assert result.exit_code == 0, result.output
    assert "as good as a full shuffle (4 epochs of 400 examples, batches of 20)" in result.output


def test_a_poor_order_is_told_with_what_was_found(script):
    result = run(app, ["audit", f"{script}.py:stored"])
    assert result.exit_code == 0
    assert "a poor order" in result.output
    assert "• Every epoch has the same order" in result.output
    assert "• Labels drift" in result.output


def test_json_is_all_that_is_printed(script):
    result = run(app, ["audit", f"{script}.py:stored", "--json", "--epochs", "1", "--every", "40"])
    told = json.loads(result.output)
    assert told["ratio"] > 3
    assert told["batch"] == 40
    assert told["examples"] == [400]


def test_the_picture_is_drawn(script, tmp_path):
    result = run(app, ["audit", f"{script}.py:loader", "--plot", "a.png", "--most", "100"])
    assert result.exit_code == 0, result.output
    assert "Picture: a.png" in result.output
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "only the first 100 examples" in result.output


def test_set_epoch_is_called_if_asked(script):
    assert "same order" in run(app, ["audit", f"{script}.py:told"]).output
    assert "same order" not in run(app, ["audit", f"{script}.py:told", "--set-epoch"]).output


def test_missing_labels_are_told(script):
    result = run(app, ["audit", f"{script}.py:unlabelled"])
    assert "Beware: no labels were found" in result.output


BAD = [
    (["{}"], "write FILE.py:NAME or MODULE:NAME"),
    (["nothing.py:loader"], "there is no such file"),
    (["no_such_module:loader"], "there is no such module"),
    (["{}.py:loadr"], "did you mean loader?"),
    (["{}.py:broken"], "no disk"),
    (["{}.py:X.shape"], "Pass xy=|order without rows"),
    (["{}.py:loader", "--epochs", "0"], "epochs=0"),
    (["{}.py:loader", "--set-epoch"], "--set-epoch"),
    (["{}.py:loader", "--plot", "a.gif"], "pass a .png"),
    (["{}.py:loader", "--plot", "no/a.svg"], "a folder that exists"),
]


@pytest.mark.parametrize(("words", "cure"), BAD)
def test_bad_input_exits_with_2_and_the_cure(script, words, cure):
    result = run(app, ["audit", *(word.format(script) for word in words)])
    assert result.exit_code == 2, result.output
    assert any(part in result.output for part in cure.split("|")), result.output


def test_a_script_that_fails_is_named(script, tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_package_at_all")
    result = run(app, ["audit", "bad.py:loader"])
    assert result.exit_code == 2
    assert "bad.py failed with ModuleNotFoundError" in result.output
