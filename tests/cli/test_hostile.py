"""Every option of every command over a list of hostile values: an answer or exit code 2, and nothing left."""

import pytest
import typer
from click.testing import CliRunner

import wellorder.federated
from wellorder._cli import app

COMMAND = typer.main.get_command(app)
"""Made once: Typer reads every signature anew for each call."""
HOSTILE = [
    "", " ", "0", "-1", "1", "1.5", "nan", "inf", "-inf", "1e999", "1e11", "100000000000", str(2**63),
    str(2**70), "9" * 5000, "0x10", "x", "é", "\u2028", "\udcff", "\n", "[/]x", "$x$", "None", "../..",
    "a" * 300, "-" * 50, "(" * 500, "GraB(", "GraB(reorders=1,reorders=2)", "GraB(**{})",
    "Greedy(max_units=None)",
    "GraB(reorders=None)", "AP(None)", "AP([[0]])", "Walk", "GraB(rule=GraB)", "x=", "=RR", "{}",
    "/dev/null/x", "cuda:7", "meta",
]  # fmt: skip
SMALL = {
    "compare": ["compare", "--task", "quadratics", "--policy", "RR", "--epochs", "1", "--seed", "0",
                "--jobs", "1"],
    "fig1": ["reproduce", "fig1", "--n", "20", "--epochs", "1", "--seeds", "1", "--jobs", "1"],
    "fig2": ["reproduce", "fig2", "--quick", "--rounds", "2", "--clients", "10", "--seeds", "1"],
    "fig3": ["reproduce", "fig3", "--quick", "--rounds", "2", "--clients", "10", "--seeds", "1"],
    "cdgrab": ["reproduce", "cdgrab", "--n", "64", "--workers", "2", "--epochs", "1", "--seeds", "1"],
    "bounds": ["bounds", "--fl"],
    "audit": ["audit", "json:JSONDecoder"],  # something to import that is no loader
}  # fmt: skip


def options(command):
    """Every option of a command that takes a value."""
    found = COMMAND
    for word in SMALL[command]:
        if word not in getattr(found, "commands", {}):
            break
        found = found.commands[word]
    return [
        given.opts[0] for given in found.params if given.param_type_name == "option" and not given.is_flag
    ]


@pytest.fixture
def _no_training(monkeypatch):
    """Whatever passes the checks is interrupted where training would begin."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("wellorder.experiments._pool.train", stop)
    monkeypatch.setattr("wellorder.experiments._figure_1.run", stop)
    monkeypatch.setattr("wellorder.experiments._coordination.run", stop)
    monkeypatch.setattr(wellorder.federated, "simulate_many", stop, raising=False)


@pytest.mark.usefixtures("_no_training")
@pytest.mark.parametrize(("command", "option"), [(c, o) for c in SMALL for o in options(c)])
def test_hostile_values_are_refused_before_anything_is_written(command, option, tmp_path, monkeypatch):
    if command in ("fig2", "fig3"):
        pytest.importorskip("torch")
    for number, value in enumerate(HOSTILE):
        here = tmp_path / str(number)
        here.mkdir()
        monkeypatch.chdir(here)
        result = CliRunner().invoke(COMMAND, [*SMALL[command], option, value])
        said = f"{option} {value[:80]!r}: {result.output[:2000]}"
        assert result.exception is None or isinstance(result.exception, SystemExit), said
        assert result.exit_code in (0, 2, 130), said
        if result.exit_code == 2:
            assert result.stderr.strip(), said
            assert not list(here.iterdir()), f"{said} left {[str(p) for p in here.rglob('*')]}"


@pytest.mark.parametrize("value", HOSTILE)
def test_a_loader_that_is_none_is_refused(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(COMMAND, ["audit", "--", value])
    assert result.exit_code == 2, (value, result.output[:500])
    assert not list(tmp_path.iterdir())


def test_a_doubled_parameter_is_refused():
    result = CliRunner().invoke(COMMAND, [*SMALL["compare"], "--policy", "GraB(reorders=1,reorders=2)"])
    assert result.exit_code == 2
    assert "reorders was given twice" in result.stderr


@pytest.mark.parametrize("words", [["bounds"], ["bounds", "--help"], ["bounds", "--fl"], ["list"]])
def test_an_ascii_terminal_is_served(words):
    import os
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "wellorder", *words],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr.decode()
    done.stdout.decode("ascii")
