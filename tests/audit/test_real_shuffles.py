"""The shuffles that people have, of class-sorted data: DataLoader, WebDataset, Hugging Face datasets."""

import numpy as np
import pytest

from wellorder import audit, features, order_error

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset  # noqa: E402

EVERY = 20


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits, sorted by class."""
    found = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.argsort(found.target, kind="stable")
    return found.data[order].astype(np.float32), found.target[order].astype(np.int64)


def ratio_of(digits, orders):
    """The order error itself, relative to full shuffles: no line of the audit's."""
    rows, n = features(*digits), len(digits[0])
    drawn = [order_error(rows, np.random.default_rng(s).permutation(n), every=EVERY) for s in range(20)]
    return np.mean([order_error(rows, order, every=EVERY) for order in orders]) / np.mean(drawn)


class Recorded:
    """A loader of (number, x, y), which gives out (x, y) and remembers the numbers; one epoch a list."""

    def __init__(self, loader, taken):
        self.loader, self.taken, self.orders = loader, taken, []

    def __iter__(self):
        self.orders.append([])
        for example in self.loader:
            number, pair = self.taken(example)
            self.orders[-1].append(number)
            yield pair


def test_a_full_shuffle_is_a_full_shuffle(digits):
    torch.manual_seed(0)
    data = TensorDataset(*map(torch.tensor, digits))
    found = audit(DataLoader(data, EVERY, shuffle=True), epochs=4)
    assert found.ratio == pytest.approx(1, abs=0.15)
    assert "as good as a full shuffle" in found.sentence
    assert not found.same_order
    assert max(found.never) == 0


def test_the_loader_is_as_it_was(digits):
    data = TensorDataset(*map(torch.tensor, digits))

    def first_batch(watch, **options):
        torch.manual_seed(3)
        loader = DataLoader(data, EVERY, **options)
        if watch:
            audit(loader)
        return next(iter(loader))[0], torch.rand(3)

    for more in (dict, lambda: {"generator": torch.Generator().manual_seed(5)}):
        plain = first_batch(False, shuffle=True, **more())
        watched = first_batch(True, shuffle=True, **more())
        assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_a_sampler_that_nobody_tells_the_epoch_repeats_its_order(digits):
    data = TensorDataset(*map(torch.tensor, digits))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, EVERY, sampler=sampler)
    found = audit(loader)
    assert found.same_order
    assert any("set_epoch" in text for text in found.findings)
    assert not audit(loader, before_epoch=sampler.set_epoch).same_order
    assert sampler.epoch == 0


def test_loaders_that_drop_or_repeat_examples_are_found(digits):
    data = TensorDataset(*map(torch.tensor, digits), torch.arange(len(digits[0])))
    by = {"xy": lambda batch: batch[:2], "key": lambda batch: batch[2]}
    n = len(data)
    dropped = audit(DataLoader(data, 100, shuffle=True, drop_last=True), **by)
    assert dropped.never == (n % 100, n % 100)
    assert max(dropped.twice) == 0
    drawn = audit(DataLoader(data, 100, sampler=RandomSampler(data, replacement=True)), **by)
    assert drawn.twice == drawn.never
    assert min(drawn.twice) > n / 4  # about n/e
    cut = audit(DataLoader(data, 100, sampler=DistributedSampler(data, num_replicas=7, rank=0)), **by)
    assert max(cut.twice) == 0


def test_workers_of_a_loader_make_no_difference(digits):
    data = TensorDataset(*map(torch.tensor, digits))
    found = [audit(DataLoader(data, EVERY, num_workers=workers), epochs=1) for workers in (0, 1)]
    assert found[0].ratio == found[1].ratio


def test_our_own_loader_is_better_than_a_shuffle_and_keeps_its_epoch(digits):
    from wellorder.torch import ordered

    data = TensorDataset(*map(torch.tensor, digits))
    loader = ordered(DataLoader(data, EVERY, shuffle=True), rows=features(*digits))
    found = audit(loader, epochs=2)
    assert found.ratio < 0.5
    assert not found.same_order
    assert loader.epoch == 0


def test_our_own_shards_are_better_than_a_shuffle_and_keep_their_epoch(digits):
    from wellorder.shards import survey
    from wellorder.torch import ShardedDataset

    pieces = np.array_split(np.arange(len(digits[0])), 30)
    read = lambda shard: [(digits[0][u], int(digits[1][u])) for u in pieces[shard]]  # noqa: E731
    data = ShardedDataset(range(30), read, survey=survey(range(30), read), window=500)
    found = audit(DataLoader(data, EVERY), epochs=2)
    assert found.ratio < 0.6
    assert not found.same_order
    assert max(found.twice) == max(found.never) == 0
    assert data.epoch == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*\\.tar:pytest.PytestUnraisableExceptionWarning")  # it leaves files open
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("buffer", [60, 500])
def test_webdataset(digits, tmp_path, buffer):
    wds = pytest.importorskip("webdataset")
    x, y = digits
    for shard, units in enumerate(np.array_split(np.arange(len(x)), 30)):
        with wds.TarWriter(str(tmp_path / f"{shard:03}.tar")) as out:
            for unit in units.tolist():
                out.write({"__key__": f"{unit:06}", "x.npy": x[unit], "y.cls": int(y[unit])})
    urls = sorted(map(str, tmp_path.glob("*.tar")))
    stored = wds.WebDataset(urls, shardshuffle=30, seed=7).shuffle(buffer).decode()
    seen = Recorded(stored, lambda e: (int(e["__key__"]), e))
    found = audit(seen, every=EVERY, epochs=2)
    assert all(sorted(order) == list(range(len(x))) for order in seen.orders)
    assert found.ratio == pytest.approx(ratio_of(digits, seen.orders), rel=0.15)
    assert found.ratio > 1.5
    assert found.shard_order == pytest.approx(found.ratio, rel=0.3)  # whole classes come late or early
    assert found.inside_shards < 0.5 * found.shard_order
    assert max(found.twice) == max(found.never) == 0


@pytest.mark.slow
def test_hugging_face_streaming(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    x, y = digits
    for shard, units in enumerate(np.array_split(np.arange(len(x)), 30)):
        part = datasets.Dataset.from_dict({"n": units, "x": x[units], "label": y[units]})
        part.to_parquet(str(tmp_path / f"{shard:03}.parquet"))
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    stored = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path / "cache")
    ).shuffle(seed=0, buffer_size=100)
    seen = Recorded(stored, lambda e: (e["n"], (np.array(e["x"], np.float32), e["label"])))
    found = audit(seen, every=EVERY, before_epoch=stored.set_epoch)
    assert all(sorted(order) == list(range(len(x))) for order in seen.orders)
    assert found.ratio == pytest.approx(ratio_of(digits, seen.orders), rel=0.15)
    assert found.ratio > 1.5
    assert not found.same_order
    assert audit(stored).same_order  # nobody told it the epoch
