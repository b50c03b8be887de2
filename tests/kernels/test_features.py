"""Rows known before training: their shapes, labels of every kind, and what they are for."""

import tracemalloc

import numpy as np
import pytest
import torch

from wellorder import features, order_error
from wellorder._kernels.features import _projected
from wellorder._order import shuffled


def data(n=400, dim=(4, 4), classes=5, seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(n, *dim)).astype(np.float32), draw.integers(classes, size=n)


def test_a_row_is_the_one_hot_label_times_one_and_projected_inputs():
    x, y = data()
    rows = features(x, y, size=50).reshape(400, 5, 10)
    for example in range(400):
        own = rows[example, y[example]]
        assert own[0] == 1
        assert np.abs(own[1:]).max() > 0
        assert not np.delete(rows[example], y[example], axis=0).any()
    sides = rows[np.arange(400), y][:, 1:]
    np.testing.assert_allclose(sides.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(sides.std(axis=0), 1, atol=1e-4)


def test_inputs_that_are_short_enough_are_kept_as_they_are():
    x, y = data(dim=(3,))
    sides = features(x, y, size=100).reshape(400, 5, 4)[np.arange(400), y][:, 1:]
    np.testing.assert_allclose(sides, (x - x.mean(axis=0)) / x.std(axis=0), atol=1e-5)


def test_labels_alone_are_one_hot():
    np.testing.assert_array_equal(features(None, ["a", "c", "a"]), [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(features(None, [True, False]), [[0, 1], [1, 0]])


@pytest.mark.parametrize("size", [1, 7, 64, 512])
@pytest.mark.parametrize("classes", [1, 3, 100, 399])
def test_rows_are_never_longer_than_asked(size, classes):
    x, _ = data()
    assert features(x, np.arange(400) % classes, size=size).shape[1] <= size


def test_many_classes_share_numbers_and_still_spread_evenly():
    labels = np.repeat(np.arange(300), 10)
    rows = features(None, labels, size=64)
    assert len(np.unique(rows, axis=0)) == 300
    assert order_error(rows, np.arange(3000)) > 2 * order_error(rows, shuffled(3000, 0, 0))


def test_arrays_tensors_and_sparse_matrices_give_the_same_rows():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is no dependency")
    x, y = data(dim=(20,))
    x[x < 0.5] = 0
    plain = features(x, y)
    np.testing.assert_allclose(features(torch.from_numpy(x), torch.from_numpy(y)), plain, atol=1e-5)
    for kind in (sparse.csr_matrix, sparse.coo_matrix, sparse.bsr_matrix, sparse.csc_array):
        np.testing.assert_allclose(features(kind(x), y), plain, atol=1e-5)
    half = features(torch.from_numpy(x).bfloat16(), y)
    assert np.corrcoef(half.ravel(), plain.ravel())[0, 1] > 0.99


def test_several_labels_and_real_targets():
    x, _ = data(dim=(2,))
    several = np.random.default_rng(1).integers(2, size=(400, 3))
    rows = features(x, several, size=30).reshape(400, 3, 3)
    np.testing.assert_array_equal(rows[:, :, 0], several)
    target = np.random.default_rng(2).normal(size=400) * 7 + 3
    rows = features(x, target, size=30).reshape(400, 2, 3)
    np.testing.assert_allclose(rows[:, 1, 0], (target - target.mean()) / target.std(), atol=1e-4)


def test_the_result_does_not_depend_on_how_the_data_is_cut():
    x, _ = data()
    whole, cut = (_projected(x, 400, 9, 0, False, at_once) for at_once in (1 << 24, 16 * 37))
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_sparse_inputs_of_many_columns_need_no_large_matrix_and_no_progress(capsys):
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is no dependency")
    draw = np.random.default_rng(0)
    hashed = (np.ones(4000), (np.arange(4000) // 20, draw.integers(1 << 18, size=4000)))
    x, y = sparse.csr_matrix(hashed, shape=(200, 1 << 18)), np.arange(200) % 2
    tracemalloc.start()
    rows = features(x, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * (1 << 18) * 255
    assert not capsys.readouterr().err
    whole, cut = (_projected(x, 200, 9, 0, False, at_once) for at_once in (1 << 24, 1 << 14))
    np.testing.assert_allclose(whole, cut, atol=1e-5)
    np.testing.assert_allclose(whole, _projected(x.toarray(), 200, 9, 0, False), atol=1e-5)
    assert rows.shape == (200, 512)


def test_progress_is_shown_when_asked_for(capsys):
    x, y = data()
    features(x, y, progress=True)
    assert "400 of 400" in capsys.readouterr().err


def test_progress_that_nobody_can_read_stops_nothing(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)  # as in a program without a terminal
    assert len(features(*data(), progress=True)) == 400


def test_no_labels_where_labels_may_exist_is_told_once_with_the_reason():
    x, _ = data()
    with pytest.warns(UserWarning, match="can mislead"):
        features(x)
    assert features(x, False).shape == (400, 16)


BAD = [
    (lambda: features(None), "pass inputs, labels, or both"),
    (lambda: features(data()[0], np.zeros(3)), "y has 3 labels, x has 400"),
    (lambda: features(np.full((3, 2), np.nan), [0, 1, 0]), "x.0. holds NaN"),
    (lambda: features(np.ones((3, 2)), [0, np.nan, 1]), "y holds NaN"),
    (lambda: features(np.array([["a"], ["b"]]), [0, 1]), "texts as token counts"),
    (lambda: features(np.ones((3, 2)), [0, 1, 1], size=0), "size=0"),
    (lambda: features(np.ones((3, 2)), 4), "one label for each example"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_input_is_named_with_its_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_column_of_labels_is_one_label_for_each():
    x, y = np.random.default_rng(0).normal(size=(6, 4)), np.array([0, 1, 0, 2, 1, 0])
    np.testing.assert_array_equal(features(x, y[:, None]), features(x, y))
    np.testing.assert_array_equal(features(None, y[:, None].astype(str)), features(None, y.astype(str)))


def test_several_labels_may_be_sparse():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is no dependency")
    y = np.random.default_rng(0).integers(0, 2, (7, 9))
    for size in (512, 4):
        np.testing.assert_allclose(
            features(None, sparse.csr_matrix(y), size=size), features(None, y, size=size), atol=1e-6
        )


def test_an_offset_far_above_the_spread_hides_nothing():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(300, 6)), draw.normal(size=300)
    plain = features(x, y)
    for other in (features(x + 1e7, y), features(x, 1.7e9 + 5 * y), features(1e7 + x, np.c_[y * 1e200])):
        np.testing.assert_allclose(other, plain, atol=1e-4)
    whole = draw.integers(0, 10**6, (300, 2))
    np.testing.assert_allclose(features(None, whole), features(None, whole.astype(float)))
    assert np.abs(features(None, whole)).max() < 4


@pytest.mark.parametrize("dim", [4, 50, 784])
@pytest.mark.parametrize("value", [0.1, 1e-5, 1e37, "a row"])
def test_inputs_that_are_all_equal_say_nothing(dim, value):
    """Their projections differ by rounding, which must not be brought to variance 1."""
    row = np.random.default_rng(0).normal(size=dim) if value == "a row" else np.full(dim, value)
    x, y = np.tile(row, (1003, 1)), np.arange(1003) % 3
    assert len(np.unique(features(x, y, size=64), axis=0)) == 3


def test_half_precision_labels_and_numbers_beyond_float32_bring_no_warnings():
    x, y = np.random.default_rng(0).normal(size=(9, 4)), np.arange(9) % 3
    np.testing.assert_array_equal(features(x, y.astype(np.float16)), features(x, y))
    with pytest.raises(ValueError, match="beyond float32"):
        features(x * 1e300, y)


def test_a_column_that_decides_every_projection_is_warned_of():
    x, y = np.random.default_rng(0).normal(size=(50, 6)), np.arange(50) % 2
    x[:, 2] *= 1e5
    with pytest.warns(UserWarning, match=r"x: column 2 varies \d+ times as much.*StandardScaler"):
        features(x, y, size=6)


def test_labels_of_mixed_kinds_are_told_apart():
    mixed = np.array(["1", 1, "b", np.int64(2), 1, True], object)
    rows = features(None, mixed)
    same = (rows[:, None] == rows[None]).all(-1)
    assert same.sum() == len(mixed) + 6  # three of them are equal to 1


SPARSE = [
    (lambda s: features(None, s.csr_matrix(np.full((3, 9), np.nan)), size=4), "y holds NaN"),
    (lambda s: features(s.coo_array(np.arange(3.0)), [0, 1, 0]), r"x of shape \(3,\).*: pass a sparse"),
    (lambda s: features(s.csr_matrix(np.eye(3) * 1j), [0, 1, 0]), "dtype complex128: pass a sparse matrix"),
]


@pytest.mark.parametrize(("call", "words"), SPARSE)
def test_bad_sparse_input_is_named_with_its_cure(call, words):
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is no dependency")
    with pytest.raises(ValueError, match=words):
        call(sparse)


def test_a_sparse_column_of_labels_may_have_one_dimension():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is no dependency")
    y = np.array([0, 2, 1, 0])
    np.testing.assert_array_equal(features(None, sparse.coo_array(y)), features(None, y))
