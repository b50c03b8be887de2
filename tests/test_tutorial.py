"""The tutorial runs from its first cell to its last, and the site shows what it prints."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parent.parent


def tutorial():
    path = ROOT / "docs" / "figures" / "tutorial.py"
    spec = importlib.util.spec_from_file_location("tutorial", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(output):
    """What a cell says, less its numbers: those of the clock differ from run to run."""
    data = output.get("data", {})
    text = output.get("text", "") + data.get("text/html", "") + data.get("text/plain", "")
    return re.sub(r"[\d.,]+(e-?\d+)?", "#", text)


def pictures(cell):
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


def test_the_kept_outputs_hold_no_error_and_every_picture():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(tutorial().NOTEBOOK, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs
    assert {output["output_type"] for output in outputs} == {"stream", "display_data", "execute_result"}
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert sum(map(pictures, notebook.cells)) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own event loop
def test_the_tutorial_runs_and_says_what_is_kept_in_it(monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    module = tutorial()
    kept, fresh = nbformat.read(module.NOTEBOOK, as_version=4), module.executed()
    cure = "run docs/figures/tutorial.py"
    for old, new in zip(kept.cells, fresh.cells, strict=True):
        assert pictures(old) == pictures(new), cure
        if "result" not in old.source:  # whose words depend on the clock
            assert [words(out) for out in old.get("outputs", [])] == [
                words(out) for out in new.get("outputs", [])
            ], cure
