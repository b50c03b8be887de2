"""Partitions deal every example once, in the promised way."""

import numpy as np
import pytest

from wellorder import federated as partition
from wellorder._kernels.random_bits import bits, key_of, uniforms_at

LABELS = np.random.default_rng(0).integers(0, 10, 1037)
MAKERS = {
    "one label": lambda seed: partition.label_shards(LABELS, 40, seed=seed),
    "two shards": lambda seed: partition.label_shards(LABELS, 40, each=2, seed=seed),
    "iid": lambda seed: partition.iid(LABELS, 40, seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 40, 0.1, seed=seed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_example_is_dealt_once_and_the_seed_decides(name, tmp_path):
    made, again, other = (MAKERS[name](seed) for seed in (0, 0, 1))
    assert sorted(made.examples) == list(range(1037))
    assert made.n == 40
    assert made.sizes.sum() == 1037
    assert (made.examples == again.examples).all()
    assert name == "one label" or not np.array_equal(made.examples, other.examples)
    table = made.table(LABELS, 10)
    assert table.sum() == 1037
    assert (table[7] == np.bincount(LABELS[made.of(7)], minlength=10)).all()
    made.save(tmp_path / "who.npz")
    loaded = partition.Partition.load(tmp_path / "who.npz")
    assert (loaded.examples == made.examples).all()
    assert (loaded.starts == made.starts).all()
    assert [file.name for file in tmp_path.iterdir()] == ["who.npz"]


def test_the_papers_partition_gives_each_client_about_one_label():
    labels = np.repeat(np.arange(10), 5000)
    made = partition.label_shards(np.random.default_rng(1).permutation(labels), 1000)
    assert (made.sizes == 50).all()
    table = partition.label_shards(labels, 1000).table(labels)
    assert ((table > 0).sum(axis=1) == 1).all()


def test_two_shards_give_at_most_three_labels_and_iid_gives_many():
    assert (MAKERS["two shards"](0).table(LABELS) > 0).sum(axis=1).max() <= 4
    assert (MAKERS["iid"](0).table(LABELS) > 0).sum(axis=1).min() >= 6


def test_small_alpha_concentrates_labels_and_leaves_nobody_empty():
    sharp, flat = (partition.dirichlet(LABELS, 40, a, seed=2) for a in (0.02, 100.0))
    assert sharp.sizes.min() >= 1
    assert (sharp.table(LABELS) > 0).sum(axis=1).mean() < (flat.table(LABELS) > 0).sum(axis=1).mean() / 2


def test_bad_partitions_are_refused():
    for call, message in (
        (lambda: partition.label_shards(LABELS, 0), "clients=0"),
        (lambda: partition.label_shards(LABELS, 2000), "pass fewer"),
        (lambda: partition.dirichlet(LABELS, 4, 0.0), "alpha=0.0"),
        (lambda: partition.iid(LABELS.astype(float), 4), "1-D array of ints"),
        (lambda: partition.Partition(np.arange(3), np.array([0, 3, 3])), "at least one$"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_draws_by_counter_look_uniform_and_independent():
    draws = uniforms_at(key_of(0, 0, "test"), np.arange(100_000))
    others = uniforms_at(key_of(0, 1, "test"), np.arange(100_000))
    assert abs(draws.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(draws, others)[0, 1]) < 0.015
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.015
    assert np.unique(bits(1, np.arange(100_000))).size == 100_000
