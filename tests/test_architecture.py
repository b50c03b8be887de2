"""The drawing of the house shows the real imports, its rows are the contract, and the contract holds."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("grimp", reason="import-linter brings it: pip install 'wellorder[dev]'")

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "figures" / "architecture.py"


@pytest.fixture(scope="module")
def architecture():
    spec = importlib.util.spec_from_file_location("architecture", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def imports(architecture):
    return architecture.imports()


@pytest.fixture(scope="module")
def drawn(architecture):
    return ElementTree.parse(architecture.OUT).getroot()


def arrows_of(drawn):
    return {(path.get("data-from"), path.get("data-to")) for path in drawn.iter() if path.get("data-from")}


def test_the_drawing_is_the_one_that_the_sources_make(architecture):
    cure = f"python {SCRIPT.relative_to(ROOT)}"
    assert architecture.OUT.read_text() == architecture.drawing(), f"the house has changed: {cure}"


def test_every_arrow_is_an_import_and_every_import_is_shown_or_follows(architecture, imports, drawn):
    arrows, tools = arrows_of(drawn), architecture.layers()[-1]
    assert arrows <= imports
    reached = set(arrows)
    while more := {(a, d) for a, b in reached for c, d in reached if b == c} - reached:
        reached |= more
    assert {(a, b) for a, b in imports if b not in tools} <= reached


def test_every_import_points_down(architecture, imports):
    level = {part: at for at, row in enumerate(architecture.layers()) for part in row}
    assert [(a, b) for a, b in sorted(imports) if level[a] >= level[b]] == []


def test_every_part_is_drawn_once_and_told_of_on_the_page(architecture, drawn):
    package = ROOT / "src" / "wellorder"
    parts = {
        path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    boxes = [box.get("data-part") for box in drawn.iter() if box.get("data-part")]
    assert sorted(boxes) == sorted(parts - {"__init__"})
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [box for box in boxes if not re.search(rf"`{box}(?:/|\.py)`", page)] == []


def test_what_follows_from_other_arrows_is_left_out(architecture):
    arrows = {("a", "b"), ("b", "c"), ("a", "c"), ("c", "tool"), ("a", "tool")}
    assert architecture.shown(arrows, ["tool"]) == {("a", "b"), ("b", "c")}


def test_the_contract_holds():
    command = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
