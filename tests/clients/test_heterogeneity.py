"""The measure of how much clients differ is the one that its docstring defines."""

import numpy as np
import pytest

from wellorder.federated import heterogeneity


@pytest.mark.parametrize("cohort", [2, 5, 10])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_it_is_the_covariance_over_a_rounds_movement(cohort, scale):
    draw = np.random.default_rng(0)
    mean, root = np.full(12, 0.5), scale * draw.standard_normal((12, 12))
    covariance = root @ root.T
    rows = mean + draw.standard_normal((4000, 12)) @ root.T
    moved = mean @ mean + np.trace(covariance) / cohort
    expected = np.linalg.norm(covariance) / cohort / moved
    assert heterogeneity(rows, cohort=cohort) == pytest.approx(expected, rel=0.1)


def test_drift_and_length_do_not_count():
    draw = np.random.default_rng(1)
    own = draw.standard_normal((400, 3)) @ draw.standard_normal((3, 40))
    still = heterogeneity(np.ones(40) + own)
    turned = np.repeat(draw.standard_normal((40, 40)), 10, axis=0)  # another direction in every round
    turned *= np.sqrt(40) / np.linalg.norm(turned, axis=1, keepdims=True)
    assert heterogeneity(turned + own) == pytest.approx(still, rel=0.25)
    assert heterogeneity(1e-6 * (np.ones(40) + own)) == pytest.approx(still)


def test_clients_that_are_all_alike_do_not_differ():
    assert heterogeneity(np.ones((40, 5))) == 0.0


@pytest.mark.parametrize(
    ("rows", "cohort", "words"),
    [
        (np.ones(9), 2, "2-D array"),
        (np.full((9, 2), np.nan), 2, "finite"),
        (np.ones((9, 2)), 1, "cohort=1"),
        (np.ones((9, 2)), 5, "two rounds or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(rows, cohort, words):
    with pytest.raises(ValueError, match=words):
        heterogeneity(rows, cohort=cohort)
