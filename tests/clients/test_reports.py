"""One reply that differs is told apart from the others, so that it cannot spoil their round."""

import math

import pytest

from wellorder._clients.reports import odd_ones, shape_of

GOOD = (["arrays"], {"metrics": {"n": 3, "loss": 0.5}})


@pytest.mark.parametrize("w", [0, -1, math.nan, math.inf, [1.0], "3"])
def test_a_weight_that_is_no_positive_number_is_odd(w):
    odd = odd_ones({0: GOOD, 1: (["arrays"], {"metrics": {"n": w, "loss": 0.5}})}, "n")
    assert list(odd) == [1]
    assert repr(w) in odd[1]


@pytest.mark.parametrize(
    "report",
    [([], GOOD[1]), (["a", "b"], GOOD[1]), (["arrays"], {}), (["arrays"], {"metrics": {"loss": 1.0}})],
)
def test_missing_and_surplus_records_are_odd(report):
    assert list(odd_ones({0: report, 1: GOOD}, "n")) == [0]


def test_the_majority_decides_and_earlier_rounds_count():
    other = (["arrays"], {"metrics": {"n": 3}})
    assert list(odd_ones({0: other, 1: GOOD, 2: GOOD}, "n")) == [0]
    assert list(odd_ones({0: other, 1: GOOD}, "n", [shape_of(GOOD)] * 2)) == [0]
    assert list(odd_ones({0: other, 1: GOOD}, "n", [shape_of(other)] * 2)) == [1]
    assert odd_ones({}, "n") == {}
