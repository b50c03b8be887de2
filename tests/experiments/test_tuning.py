"""The two-stage grid search: the paper's grids, and a word when the best value is at the edge."""

import numpy as np
import pytest

from wellorder.experiments._tuning import Search, fine_grid, two_stage


def search(best, coarse=(1e-2, 1e-1, 1e0)):
    """Search a bowl whose bottom is at ``best``; also what was asked for, call by call."""
    asked = []

    def losses(grid):
        asked.append(list(grid))
        return [abs(np.log10(value / best)) for value in grid]

    return two_stage(losses, coarse), asked


def test_the_papers_example_of_grids():
    found, asked = search(0.1)
    assert found.best == 0.1
    assert found.coarse == (0.01, 0.1, 1.0)
    np.testing.assert_allclose(found.fine, [10**-1.5, 10**-1, 10**-0.5])
    np.testing.assert_allclose([round(value, 4) for value in found.fine], [0.0316, 0.1, 0.3162])
    assert len(asked) == 2
    assert 0.1 not in asked[1]
    assert found.edge == ""
    assert "edge" not in found.note


def test_the_second_stage_refines_the_first():
    assert search(0.3)[0].best == pytest.approx(10**-0.5)
    assert search(0.3)[0].edge == ""


@pytest.mark.parametrize(("best", "edge", "word"), [(100.0, "high", "larger"), (1e-6, "low", "smaller")])
def test_a_best_value_at_the_grids_edge_is_reported(best, edge, word):
    found, _ = search(best)
    assert found.edge == edge
    assert "at the grid's edge" in found.note
    assert word in found.note


def test_a_fine_value_between_tried_ones_is_no_edge():
    found, _ = search(10**0.5 / 1.2)
    assert found.best == pytest.approx(10**0.5)
    assert found.edge == "high"
    assert search(0.9)[0].edge == ""


def test_diverged_step_sizes_lose_and_all_diverged_is_an_error():
    found = two_stage(lambda grid: [np.nan if value > 0.05 else value for value in grid])
    assert found.best == pytest.approx(0.01 / 10**0.5)
    with pytest.raises(ValueError, match=r"every step size of 0\.01, 0\.1, 1 diverged"):
        two_stage(lambda grid: [np.inf] * len(grid))


def test_a_search_survives_json():
    import json

    found = two_stage(lambda grid: [np.inf if value == 1 else value for value in grid])
    assert Search.from_data(json.loads(json.dumps(found.as_data(), allow_nan=False))) == found


@pytest.mark.parametrize("coarse", [(), (0.0, 1.0), (1.0, np.inf)])
def test_impossible_grids_are_refused(coarse):
    with pytest.raises(ValueError, match="coarse="):
        two_stage(lambda grid: grid, coarse)


def test_neighbours_are_half_a_decade_away():
    np.testing.assert_allclose(np.diff(np.log10(fine_grid(0.037))), 0.5)
