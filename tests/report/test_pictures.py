"""Pictures: the same table gives the same file, and lost runs do not break it."""

import numpy as np
import pytest

from wellorder.policies import entry_named
from wellorder.report import Metric, picture, save_picture, table_of
from wellorder.report._pictures import costs
from wellorder.report._style import LOOKS, looks_of

METRICS = (
    Metric("loss", "loss"),
    Metric("accuracy", "accuracy", log=False, percent=True, lower_is_better=False),
)


def table(value=1.0):
    return table_of(
        {
            "policy": p,
            "seed": s,
            "epoch": e,
            "loss": value / (e + 1),
            "accuracy": 0.5,
            "gradients": e,
            "seconds": e,
        }
        for p in ("RR", "PairGraB")
        for s in (0, 1)
        for e in range(4)
    )


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_the_same_table_gives_the_same_picture(tmp_path, suffix):
    for name in ("a", "b"):
        save_picture(picture(table(), METRICS, "title"), tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_runs_that_diverged_are_drawn_without_complaint(tmp_path):
    save_picture(costs(table(np.inf), METRICS[0]), tmp_path / "lost.png")
    assert (tmp_path / "lost.png").stat().st_size > 1000


def test_policies_keep_their_looks_and_strangers_get_free_ones():
    chosen = looks_of(["mine", "PairGraB", "RandomReshuffling", "yours"])
    assert chosen["PairGraB"] == (entry_named("PairGraB").colour, "solid")
    assert len({look.colour for look in chosen.values()}) == 4
    assert len(set(looks_of([f"p{i}" for i in range(24)]).values())) == len(LOOKS) == 24
    assert len(looks_of([f"p{i}" for i in range(30)])) == 30


def test_labels_are_no_formulas_and_all_stand_in_the_legend():
    strange = [r"$\frac{", "$x$", "_hidden", "[/]x"]
    rows = [{"policy": p, "seed": 0, "epoch": e, "loss": 1.0 / (e + 1)} for p in strange for e in range(3)]
    figure = picture(table_of(rows), [Metric("loss", "$loss$")], "50 $ of $x")
    figure.draw_without_rendering()
    told = [text.get_text().replace("\\$", "$").lstrip("\u2060") for text in figure.legends[0].get_texts()]
    assert told == strange
