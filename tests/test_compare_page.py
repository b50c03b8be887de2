"""What docs/compare.md tells people to type works as it stands there; made short where it trains long."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from wellorder._cli import app

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "compare.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("wellorder ")
]
SHORT = ["--epochs", "1", "--seeds", "1", "--jobs", "1", "--policy", "RR", "--policy", "Steering"]


def test_the_page_shows_a_file_of_fifteen_lines_a_table_and_a_cluster():
    assert list(FILES) == ["mytask.py", "cluster.py"]
    assert len(FILES["mytask.py"].splitlines()) == 15
    assert COMMANDS == ["wellorder compare mytask.py:task", "wellorder compare --data table.csv --label y"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_runs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("mytask.py").write_text(FILES["mytask.py"])
    Path("table.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 3}\n" for i in range(40)))
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], *SHORT])
    sys.modules.pop("mytask", None)
    assert done.exit_code == 0, done.output
    assert "Report: runs/" in done.stdout


@pytest.mark.slow
def test_the_cluster_of_the_page_runs(tmp_path):
    pytest.importorskip("distributed")
    (tmp_path / "cluster.py").write_text(FILES["cluster.py"])
    done = subprocess.run(
        [sys.executable, "cluster.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "24\n", done.stderr
