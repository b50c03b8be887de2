"""The figure of the docs page is made by the code, and the page's table says what the code prints."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
def test_the_page_shows_what_the_figures_script_prints(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "figure.svg"
    rounds = tmp_path / "rounds.svg"
    command = [
        sys.executable,
        str(DOCS / "figures" / "theory.py"),
        "--out",
        str(out),
        "--rounds",
        str(rounds),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.read_text().startswith("<?xml")
    assert rounds.read_text().startswith("<?xml")
    number = r"([\d.e+-]+)"
    measured = [
        [
            float(x)
            for x in re.search(
                rf"bound {number}, run {number}; assumption {number}, .* {number}", line
            ).groups()
        ]
        for line in printed.splitlines()
    ]
    rows = re.findall(
        rf"^\| .* \| {number} \| {number} \| {number} \| {number} \|$", (DOCS / "theory.md").read_text(), re.M
    )
    assert len(rows) == len(measured) == 4
    for row, found in zip(rows, measured, strict=True):
        for shown, value in zip(row, found, strict=True):
            assert abs(math.log10(float(shown) / value)) < (
                0.05 if value > 1e-10 else 2
            )  # rounding rules down there
        assert found[0] > found[1]
        assert found[2] > found[3]
