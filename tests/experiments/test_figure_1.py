"""Figure 1 shows what the paper describes."""

import numpy as np
import pytest

from wellorder.experiments import _figure_1 as fig1
from wellorder.report._table import curves


@pytest.fixture(scope="module")
def table():
    return fig1.whole(list(fig1.run(fig1.QuadraticsFigure(seeds=6, epochs=40))))


def test_grabs_are_far_below_reshuffling_and_shuffle_once_in_sgd_and_in_fl(table):
    found = fig1.medians(table)
    for good, bad in [("GraB", "RR"), ("GraB", "SO"), ("PairGraB", "RR"), ("PairGraB", "SO")]:
        assert found[good]["distance"] < found[bad]["distance"] / 10
        assert found[good]["order_error"] < found[bad]["order_error"] / 5
    for bad in ("FL-RR", "FL-OP"):
        assert found["FL-GraB"]["distance"] < found[bad]["distance"] / 10
        assert found["FL-GraB"]["order_error"] < found[bad]["order_error"] / 5


def test_distance_and_order_error_have_the_same_trend(table):
    for policy in ("GraB", "PairGraB", "FL-GraB"):
        distance, error = (
            np.log(np.median(curves(table, policy, c), axis=0)[:10]) for c in ("distance", "order_error")
        )
        assert np.corrcoef(distance, error)[0, 1] > 0.8


def test_the_medians_are_those_that_a_correct_implementation_shows(table):
    found = fig1.medians(table)
    for policy, distance, error in [("RR", 5.6e-3, 25.6), ("GraB", 3.9e-5, 2.2), ("PairGraB", 3.4e-5, 2.7)]:
        assert distance / 4 < found[policy]["distance"] < distance * 4
        assert error / 1.5 < found[policy]["order_error"] < error * 1.5


@pytest.mark.slow
def test_more_processes_give_the_same_table(table):
    small = fig1.QuadraticsFigure(n=50, seeds=3, epochs=3)
    one, two = (fig1.whole(list(fig1.run(small, jobs=jobs))) for jobs in (1, 2))
    assert one.equals(two)


def test_all_means_every_policy():
    config = fig1.QuadraticsFigure(n=20, seeds=1, epochs=2, every_policy=True)
    table = fig1.whole(list(fig1.run(config)))
    names = set(table.column("policy").to_pylist())
    assert {
        "IG",
        "NP",
        "AP",
        "FL-AP",
        "with replacement",
        "GraB-proto",
        "FL-GraB-proto",
        "FL-OP (NP)",
    } <= names
    from wellorder.policies import REGISTRY

    assert {type(p).__name__ for p in fig1.policies(config)["SGD"].values()} == {
        entry.name for entry in REGISTRY
    }
    assert len(fig1.policies(config)["SGD"]) == len(REGISTRY)


def test_the_figure_has_four_log_panels_with_a_band_and_a_line_for_each_policy(table):
    panels = fig1.plot(table).axes
    assert len(panels) == 4
    assert all(axes.get_yscale() == "log" for axes in panels)
    assert [len(axes.lines) for axes in panels] == [4, 4, 3, 3]
    assert [len(axes.collections) for axes in panels] == [4, 4, 3, 3]


def test_no_seeds_are_refused():
    with pytest.raises(ValueError, match="seeds=0"):
        list(fig1.run(fig1.QuadraticsFigure(seeds=0)))
