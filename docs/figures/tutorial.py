"""Run docs/tutorial.ipynb from its first cell to its last, and keep what it printed and drew.

Run it from anywhere, after a change of what the tutorial shows: ``python docs/figures/tutorial.py``.
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "tutorial.ipynb"


def executed(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """The notebook with fresh outputs; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata["language_info"] = {"name": "python"}  # without the version that happened to run it
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
    print(f"Executed: {NOTEBOOK}")
