"""A survey: what it says of shards is what a look at all examples says; killed, damaged and changed."""

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wellorder.shards._survey as inside
from wellorder import balanced_stream, features
from wellorder.shards import ShardError, Survey, survey

RNG = np.random.default_rng(0)


def make(n=8, each=20, kinds=4, dim=100):
    """Shards of unequal size, with most examples of one kind."""
    shards = []
    for shard in range(n):
        size = each + shard
        y = np.where(RNG.random(size) < 0.8, shard % kinds, RNG.integers(kinds, size=size))
        shards.append([(RNG.normal(size=dim) + label, int(label)) for label in y])
    return shards


DATA = make()


def read(shard):
    return iter(DATA[shard])


def test_shard_means_are_the_means_of_the_rows_that_the_survey_makes():
    found = survey(range(8), read)
    assert found.rows.shape == (8, 4 * 64)
    for shard in range(8):
        rows = found.row.many(DATA[shard])
        assert (rows == np.stack([found.row(example) for example in DATA[shard]])).all()
        np.testing.assert_allclose(found.rows[shard], rows.mean(axis=0), atol=2e-6)
    every = found.row.many([example for shard in DATA for example in shard])
    np.testing.assert_allclose(found.mean, every.mean(axis=0), atol=2e-6)
    sides = every.reshape(len(every), 4, 64).sum(axis=1)  # the label's block is the only one that is not zero
    np.testing.assert_allclose(sides[:, 0], 1)
    np.testing.assert_allclose(sides[:, 1:].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(sides[:, 1:].std(axis=0), 1, atol=1e-4)


def test_of_few_inputs_rows_are_those_of_features():
    data = [[(x[:5] * [1, 2, 30, 4, 5], y) for x, y in shard] for shard in DATA]
    found = survey(range(8), lambda shard: data[shard])
    every = [example for shard in data for example in shard]
    known = features(np.stack([x for x, _ in every]), [y for _, y in every])
    np.testing.assert_allclose(found.row.many(every), known, atol=1e-4)


def test_a_sketch_keeps_angles_between_inputs():
    found = survey(range(2), lambda shard: [(np.ones(5000) * i, 0) for i in (1, -1)])
    x = RNG.normal(size=(3, 5000))
    x[1] = x[0] + 0.1 * x[1]
    a, b, c = found.row.sketch.of(list(x)) + found.row.sketch.offset
    cosines = [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in ((a, b), (a, c))]
    assert cosines[0] > 0.95
    assert abs(cosines[1]) < 0.4


@pytest.mark.parametrize("labels", [["cat", "dog"], [True, False], [np.int64(3), np.int64(9)], [b"a", b"b"]])
def test_labels_may_be_of_any_plain_kind(labels):
    found = survey(range(4), lambda shard: [(None, labels[shard % 2])] * 3)
    assert found.rows.tolist() in ([[1, 0], [0, 1]] * 2, [[0, 1], [1, 0]] * 2)


def test_very_many_labels_share_numbers():
    found = survey(range(40), lambda shard: [(None, shard * 10 + i) for i in range(10)], size=64)
    assert found.rows.shape == (40, 64)
    rows = found.row.many([(None, i) for i in range(400)])
    np.testing.assert_allclose((rows**2).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found.rows[3], rows[30:40].mean(axis=0), atol=1e-6)
    assert not found.row((None, 5000)).any()


def test_without_labels_there_is_a_warning():
    with pytest.warns(UserWarning, match="no labels were given"):
        found = survey(range(3), lambda shard: [(np.full(3, shard + i), None) for i in range(3)])
    assert found.rows.shape == (3, 3)


@given(st.integers(1, 9), st.booleans())
def test_threads_do_not_matter(threads, own):
    row = (lambda example: example[0][:7]) if own else None
    one, many = (survey(range(8), read, row=row, threads=count) for count in (1, threads))
    assert (one.rows == many.rows).all()
    assert (one.mean == many.mean).all()


def test_a_sample_is_the_first_examples_and_sizes_are_told():
    found = survey(range(8), read, sample=22, sizes=[len(shard) for shard in DATA])
    assert found.sizes.tolist() == [len(shard) for shard in DATA]
    np.testing.assert_allclose(found.rows[7], found.row.many(DATA[7][:22]).mean(axis=0), atol=2e-6)
    found = survey(range(8), read, sample=22)
    assert found.sizes.tolist() == [20, 21, 22] + [-1] * 5
    assert found.weights.tolist() == [20, 21, 22] + [21] * 5


def test_empty_shards_count_for_nothing():
    found = survey(range(4), lambda shard: [(None, shard)] * (shard % 2))
    assert found.sizes.tolist() == [0, 1, 0, 1]
    assert not found.rows[[0, 2]].any()
    np.testing.assert_allclose(found.mean, 0.5)
    with pytest.raises(ValueError, match="every shard is empty"):
        survey(range(4), lambda shard: [])


@pytest.mark.parametrize("own", [False, True])
def test_a_survey_is_saved_and_loaded(tmp_path, own):
    row = (lambda example: example[0][:7]) if own else None
    found = survey(range(8), read, row=row, path=tmp_path / "survey.npz")
    again = survey(range(8), lambda shard: 1 / 0, row=row, path=tmp_path / "survey.npz")
    for loaded in (again, Survey.load(tmp_path / "survey.npz", row=row)):
        for name in ("rows", "sizes", "mean", "marks"):
            assert (getattr(loaded, name) == getattr(found, name)).all()
        assert (loaded.row.many(DATA[0]) == found.row.many(DATA[0])).all() if not own else True
    assert (Survey.load(tmp_path / "survey.npz").row is None) == own


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("at", [0, 1, 5, 7])
def test_an_interrupted_survey_goes_on_and_says_the_same(tmp_path, at, own, monkeypatch):
    row = (lambda example: example[0][:7]) if own else None
    whole, path, reads = survey(range(8), read, row=row), tmp_path / "survey.npz", []

    def interrupted(shard):
        if shard == at:
            raise KeyboardInterrupt
        reads.append(shard)
        return read(shard)

    monkeypatch.setattr(inside, "SAVE_EVERY", 0.0)  # as a SIGKILL would find it
    with pytest.raises(KeyboardInterrupt):
        survey(range(8), interrupted, row=row, path=path, threads=1)
    if path.exists():
        with pytest.raises(ValueError, match="interrupted: call survey"):
            Survey.load(path)
    reads.clear()
    found = survey(range(8), lambda shard: reads.append(shard) or read(shard), row=row, path=path, threads=1)
    assert len(set(reads)) <= 8 - max(at - 1, 0)
    assert (found.rows == whole.rows).all()
    assert (found.mean == whole.mean).all()


def test_other_shards_or_settings_than_those_of_the_file_are_named(tmp_path):
    path = tmp_path / "survey.npz"
    found = survey(range(8), read, path=path)
    with pytest.raises(ValueError, match=r"seed=0.*seed=1"):
        survey(range(8), read, path=path, seed=1)
    with pytest.raises(ValueError, match="1 shards of the survey are not among the 7 given"):
        found.check(range(7))
    with pytest.raises(ValueError, match="2 of the shards given are not in the survey: '8', '9'"):
        found.check(range(10))
    with pytest.raises(ValueError, match="another order"):
        found.check(range(7, -1, -1))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read"):
        survey(range(8), read, path=path)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_shard_that_fails_is_named_and_raised_or_skipped(threads):
    def broken(shard):
        yield DATA[shard][0]
        if shard == 5:
            raise OSError("disk on fire")
        yield from DATA[shard][1:]

    with pytest.raises(ShardError, match="shard '5': reading failed with OSError: disk on fire") as told:
        survey(range(8), broken, threads=threads)
    assert told.value.shard == "5"
    with pytest.warns(UserWarning, match="skipped shard '5'"):
        found = survey(range(8), broken, threads=threads, failed="skip")
    assert found.sizes[5] == 0
    assert len(found.failed) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rest = survey([0, 1, 2, 3, 4, 6, 7], read)
    np.testing.assert_allclose(np.delete(found.rows, 5, axis=0), rest.rows, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="no shard could be read"):
            survey(range(3), lambda shard: 1 / 0, failed="skip", row=len)


BAD = [
    (dict(shards=[]), r"shards=\[\]"),
    (dict(shards="data/*.tar"), "pass a list of shards"),
    (dict(shards=[1, 2, 1]), "'1' is there twice"),
    (dict(read=3), "read=3"),
    (dict(row=3), "row=3"),
    (dict(xy=3), "xy=3"),
    (dict(sample=0), "sample=0"),
    (dict(size=0), "size=0"),
    (dict(seed=-1), "seed=-1"),
    (dict(threads=0), "threads=0"),
    (dict(failed="no"), "failed='no'"),
    (dict(sizes=[1, 2]), "one number of examples"),
    (dict(read=lambda shard: [{"x": 1}]), "is no pair"),
    (dict(read=lambda shard: [(np.zeros(3 + shard), 0)]), "in shard '.*an input of .* numbers"),
    (dict(read=lambda shard: [(np.array([1.0, np.nan]), 0)]), "in shard '0'.*example 0 holds NaN"),
    (dict(read=lambda shard: [("text", 0)]), "inputs must be arrays of numbers"),
    (dict(read=lambda shard: [(None, 0.5)]), "label 0.5"),
    (dict(row=lambda example: [1.0, float("nan")]), "in shard '0': row.example..0. is NaN"),
    (dict(row=lambda example: np.zeros((2, 2))), "1-D arrays"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[f"{'+'.join(o)}: {w}"[:60] for o, w in BAD])
def test_bad_input_is_named_with_its_cure(options, words):
    with pytest.raises(ValueError, match=words):
        survey(**{"shards": range(8), "read": read, "threads": 1, **options})


def test_a_hundred_thousand_shards_stay_in_tens_of_megabytes():
    draws = itertools.cycle(RNG.normal(size=(50, 200)))
    read_one = lambda shard: [(next(draws), shard % 10)]  # noqa: E731
    survey(range(100), read_one, threads=1)
    tracemalloc.start()
    found = survey(range(2000), read_one, threads=1, size=128)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.rows.shape == (2000, 120)
    assert peak < 6 * found.rows.nbytes  # so 10⁵ shards: 48 MB, and under 300 MB while it is made


def test_a_label_that_the_survey_did_not_meet_has_a_row_of_zeros():
    draw = np.random.default_rng(0)
    shards = [[(draw.normal(size=3), label) for _ in range(20)] for label in range(3)]
    found = survey(range(3), shards.__getitem__)
    known, unknown = (draw.normal(size=3), 2), (draw.normal(size=3), "new")
    rows = found.row.many([known, unknown])
    assert rows[0].any()
    assert not rows[1].any()
    stream = [*shards[0], unknown, *shards[1], unknown]
    out = list(balanced_stream(stream, found.row, window=8, mean=found.mean))
    assert sorted(map(id, out)) == sorted(map(id, stream))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_not_finite_is_named_by_its_place_in_the_stream(bad):
    examples = [(np.full(3, float(i)), i % 2) for i in range(20)]
    found = survey([0], lambda _: examples)
    inputs = [x.copy() for x, _ in examples]
    inputs[7][1] = inputs[11][0] = bad
    stream = list(zip(inputs, [y for _, y in examples], strict=True))
    with pytest.raises(ValueError, match=r"row\(example\)\[7\] is NaN or infinite"):
        list(balanced_stream(stream, found.row, window=8, mean=found.mean))
