"""Every script in examples/ runs, in a small form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

# One line per example: the arguments that make it small. "{out}" is a temporary folder, and every path given
# in it must exist afterwards and be named in the output; "needs:package" skips where that is not installed.
SMALL = {
    "audit_shuffle.py": ["--buffers", "100", "--out", "{out}/shuffle.png", "needs:sklearn"],
    "balanced_numpy.py": ["--epochs", "2", "--seeds", "2", "--examples", "200"],
    "ddp.py": ["--epochs", "2", "--examples", "200", "--out", "{out}/run", "needs:torch"],
    "features_sklearn.py": ["--epochs", "2", "--seeds", "2", "needs:sklearn"],
    "my_task.py": ["--epochs", "1", "--seeds", "1", "needs:torch", "needs:sklearn"],
    "ordered_loop.py": ["--epochs", "2", "--seeds", "1", "needs:torch", "needs:sklearn"],
    "quadratics.py": ["--epochs", "2", "--seeds", "2", "--out", "{out}/quadratics.png", "needs:matplotlib"],
    "shards.py": ["--files", "20", "--examples", "20", "--window", "80", "--seeds", "1"],
    "torch_cnn.py": ["--epochs", "1", "--examples", "96", "needs:torch"],
    "torch_lm.py": ["--epochs", "1", "--sequences", "64", "needs:torch"],
    "torch_mlp.py": ["--epochs", "2", "--examples", "200", "--out", "{out}/run.pt", "needs:torch"],
}


def test_every_example_is_in_the_table():
    assert sorted(SMALL) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def slow_if(slow, name):
    """A case that only the slow tests run, if it is ``slow``."""
    return pytest.param(name, marks=pytest.mark.slow if slow else ())


# Half a minute goes into importing torch again and again: here one of its examples is enough.
@pytest.mark.parametrize(
    "name", [slow_if("needs:torch" in SMALL[n] and n != "ordered_loop.py", n) for n in SMALL]
)
def test_example_runs_and_names_the_file_it_wrote(name, tmp_path):
    for package in (part.removeprefix("needs:") for part in SMALL[name] if part.startswith("needs:")):
        pytest.importorskip(package)
    arguments = [part.format(out=tmp_path) for part in SMALL[name] if not part.startswith("needs:")]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for written in (Path(part) for part in arguments if part.startswith(str(tmp_path))):
        assert written.stat().st_size > 0
        assert str(written) in done.stdout
