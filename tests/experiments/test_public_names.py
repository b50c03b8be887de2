"""The namespaces are whole: every name exists, is documented, stands on a page, and names a missing extra."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wellorder

API = Path(__file__).resolve().parents[2] / "docs" / "api"
PARTS = ("experiments", "report", "problems")
NAMES = [(part, name) for part in PARTS for name in getattr(wellorder, part).__all__]


@pytest.mark.parametrize(("part", "name"), NAMES)
def test_every_name_is_documented_and_on_a_page(part, name):
    if name in ("NetworkTask", "table_task"):
        pytest.importorskip("torch")
    thing = getattr(getattr(wellorder, part), name)
    told = inspect.getdoc(thing) or ""
    assert told, name
    assert not told.startswith(f"{name}("), "that is the dataclass's own signature"
    pages = "\n".join(page.read_text() for page in API.glob("*.md"))
    assert re.search(rf"^::: wellorder\.{part}\.{name}$", pages, re.MULTILINE), "no page shows it"


def test_the_pages_show_no_private_file():
    for page in ("experiments.md", "problems.md"):
        assert not re.findall(r"^::: .*\._.*$", (API / page).read_text(), re.MULTILINE)


def test_functions_are_not_shadowed_by_modules():
    assert inspect.isfunction(wellorder.experiments.compare)
    assert inspect.isfunction(wellorder.problems.quadratics)
    assert inspect.isfunction(wellorder.problems.logistic)


def without(package, code):
    """Run code in a process in which a package cannot be imported."""
    block = f"import sys; sys.modules[{package!r}] = None\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("package", "code", "part", "extras"),
    [
        ("pyarrow", "import wellorder.experiments", "wellorder.experiments", "experiments"),
        ("matplotlib", "from wellorder.report import picture", "wellorder.report.picture", "experiments"),
        ("matplotlib", "from wellorder.experiments import publish", ".publish", "experiments"),
        ("torch", "from wellorder.experiments import NetworkTask", ".NetworkTask", "torch,experiments"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package, code, part, extras):
    done = without(package, code)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(f"{part} needs {package}: pip install 'wellorder[{extras}]'")


def test_a_task_that_needs_torch_says_so_and_ends_with_2(tmp_path):
    words = ["compare", "--task", "cifar10", "--out", str(tmp_path / "run")]
    done = without("torch", f"from wellorder._cli import app; app({words})")
    assert done.returncode == 2
    cure = "task 'cifar10' needs torch: pip install 'wellorder[torch,experiments]'"
    assert cure in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_version_is_told():
    from typer.testing import CliRunner

    from wellorder._cli import app

    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.stdout == f"wellorder {wellorder.__version__}\n"
