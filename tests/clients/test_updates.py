"""Signals of updates: exact rows are differences, sketches keep inner products, and bad updates are told."""

import math

import numpy as np
import pytest

from wellorder._clients.federation import COORDINATES, RunningError
from wellorder._clients.updates import Signal, UnfitError, directions, odd_ones, shape_of
from wellorder._kernels.sketch import FlatSketch


def model(seed, dtype=np.float32):
    draw = np.random.default_rng(seed)
    return {
        "w": draw.standard_normal((40, 25)).astype(dtype),
        "count": np.array(seed),
        "b": draw.standard_normal(7).astype(dtype),
    }


def flat(arrays):
    return np.concatenate([arrays["w"].ravel(), arrays["b"]]).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_exact_row_is_global_minus_local_of_the_floats(dtype):
    before, after = model(0, dtype), model(1, dtype)
    row = Signal.relative_to(before).row(after)
    assert row.dtype == (
        np.float64 if dtype == np.float64 else np.float32 if dtype == np.float32 else row.dtype
    )
    np.testing.assert_allclose(row, flat(before) - flat(after), rtol=1e-6, atol=1e-6)


def test_memory_layout_does_not_matter():
    before, after = model(0), model(1)
    turned = {name: array.copy("F") for name, array in after.items()}
    np.testing.assert_array_equal(
        Signal.relative_to(before).row(turned), Signal.relative_to(before).row(after)
    )


def test_sketched_and_exact_rows_tell_the_same_norm():
    before, after = model(0), model(1)
    sketch = FlatSketch.draw(1007, 512, seed=0)
    exact, sketched = (Signal.relative_to(before, sketch=s).row(after) for s in (None, sketch))
    assert np.linalg.norm(sketched) == pytest.approx(np.linalg.norm(exact), rel=0.15)


@pytest.mark.parametrize("sketch", [None, FlatSketch.draw(1007, 128, 0)], ids=["exact", "sketch"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a["w"].__setitem__((3, 3), np.nan), "NaN or infinite"),
        (lambda a: a["b"].__setitem__(0, np.inf), "NaN or infinite"),
        (lambda a: a.update(b=a["b"].astype(complex)), "dtype complex"),
        (lambda a: [a.pop(name) for name in list(a)], "its arrays are none"),
        (lambda a: a.update(w=a["w"].T), "its arrays are"),
        (lambda a: a.update(w=a["w"] * 1e6), "above norm_cap"),
    ],
)
def test_an_unfit_update_says_why(sketch, change, words):
    after = model(1)
    change(after)
    with pytest.raises(UnfitError, match=words):
        Signal.relative_to(model(0), sketch=sketch, cap=1e4).row(after)


def test_an_array_that_is_left_out_has_not_moved_and_a_foreign_one_does_not_count():
    before, after = model(0), model(1)
    part = {"w": after["w"], "extra": np.ones(2)}
    row = Signal.relative_to(before).row(part)
    np.testing.assert_array_equal(row, Signal.relative_to(before).row({**before, "w": after["w"]}))


def test_a_counter_that_was_averaged_into_floats_is_still_no_signal():
    first = {"w": np.ones(3, np.float32), "tracked": np.array(7)}
    names = directions(first)
    averaged = {"w": np.ones(3, np.float32), "tracked": np.array(7.5)}
    assert (
        Signal.relative_to(averaged, names).row({"w": np.zeros(3), "tracked": np.array(9)}).tolist()
        == [1] * 3
    )


def test_the_running_error_is_the_order_error_at_round_boundaries():
    from wellorder import order_error

    rows = np.random.default_rng(0).standard_normal((12, 5))
    error = RunningError(0)
    for at in range(0, 12, 3):
        error = error.add([error.probe(row) for row in rows[at : at + 3]])
    assert error.value() == pytest.approx(order_error(rows, np.arange(12), every=3))
    assert RunningError(0).value() == 0.0


def test_the_running_error_estimates_long_vectors_from_few_coordinates():
    from wellorder import order_error

    rows = np.random.default_rng(0).standard_normal((20, 40 * COORDINATES))
    error = RunningError(3)
    for row in rows:
        error = error.add([error.probe(row)])
    assert error.value() == pytest.approx(order_error(rows, np.arange(20)), rel=0.2)
    assert error.sums.shape == (20, COORDINATES)


GOOD = ({"arrays": ["w"]}, {"metrics": {"n": 3, "loss": 0.5}})


@pytest.mark.parametrize("w", [0, -1, math.nan, math.inf, [1.0], "3"])
def test_a_weight_that_is_no_positive_number_is_odd(w):
    odd = odd_ones({0: GOOD, 1: ({"arrays": ["w"]}, {"metrics": {"n": w, "loss": 0.5}})}, "n")
    assert list(odd) == [1]
    assert repr(w) in odd[1]


@pytest.mark.parametrize(
    "report",
    [
        ({}, GOOD[1]),
        ({"a": ["w"], "b": ["w"]}, GOOD[1]),
        ({"arrays": ["w"]}, {}),
        ({"arrays": ["w"]}, {"metrics": {"loss": 1.0}}),
    ],
)
def test_missing_and_surplus_records_are_odd(report):
    assert list(odd_ones({0: report, 1: GOOD}, "n")) == [0]


def test_the_majority_decides_and_earlier_rounds_count():
    other = ({"arrays": ["w"]}, {"metrics": {"n": 3}})
    assert list(odd_ones({0: other, 1: GOOD, 2: GOOD}, "n")) == [0]
    assert list(odd_ones({0: other, 1: GOOD}, "n", [shape_of(GOOD)] * 2)) == [0]
    assert list(odd_ones({0: other, 1: GOOD}, "n", [shape_of(other)] * 2)) == [1]
    assert odd_ones({}, "n") == {}
