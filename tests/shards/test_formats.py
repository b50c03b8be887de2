"""Doors: real files of WebDataset, parquet, Arrow and Hugging Face, read through the real packages."""

import io
import itertools
import tarfile

import numpy as np
import pytest

from wellorder import balanced_stream, order_error
from wellorder.shards import RowGroup, _stream, hugging_face, ordered_shards, row_groups, survey

# WebDataset leaves the files of its tars to the garbage collector.
LEFT_OPEN = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
KINDS, EACH, FILES = 4, 30, 12
PIXELS = np.random.default_rng(0).integers(0, 255, (FILES * EACH, 12)).astype(np.uint8)
LABELS = np.repeat(np.arange(FILES) % KINDS, EACH)  # a file holds one kind


def check_order(numbers):
    """Each example once, and kinds better mixed than a full shuffle does."""
    assert sorted(numbers) == list(range(FILES * EACH))
    rows = np.eye(KINDS)[LABELS]
    chance = [order_error(rows, np.random.default_rng(i).permutation(len(rows))) for i in range(9)]
    assert order_error(rows, np.array(numbers)) < np.mean(chance)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    for file in range(FILES):
        with tarfile.open(folder / f"{file:02}.tar", "w") as out:
            for i in range(file * EACH, (file + 1) * EACH):
                image = io.BytesIO()
                np.save(image, PIXELS[i])
                for name, data in ((f"{i:04}.npy", image.getvalue()), (f"{i:04}.cls", b"%d" % LABELS[i])):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    out.addfile(info, io.BytesIO(data))
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def table_of(start, stop):
    pa = pytest.importorskip("pyarrow")
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(PIXELS[start:stop].reshape(-1)), 12)
    named = [f"n{i}" for i in range(start, stop)]
    return pa.table({"i": np.arange(start, stop), "x": pixels, "y": LABELS[start:stop], "name": named})


def xy(example):
    return example["x"], example["y"]


def read_tar(url):
    import webdataset as wds

    data = wds.WebDataset(url, shardshuffle=False, nodesplitter=None, workersplitter=None, empty_check=False)
    return data.decode()


def tar_xy(sample):
    return sample["npy"], sample["cls"]


@LEFT_OPEN
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_webdatasets_tars(tars, workers):
    pytest.importorskip("webdataset")
    torch = pytest.importorskip("torch")
    from wellorder.torch import ShardedDataset

    found = survey(tars, read_tar, xy=tar_xy)
    assert found.sizes.tolist() == [EACH] * FILES
    data = ShardedDataset(tars, read_tar, survey=found, window=150, batch_size=6)
    loader = torch.utils.data.DataLoader(data, batch_size=6, num_workers=workers, collate_fn=list)
    check_order([int(sample["__key__"]) for batch in loader for sample in batch])


@LEFT_OPEN
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_webdataset_pipeline_with_our_shard_list_and_stage(tars, workers):
    wds = pytest.importorskip("webdataset")
    torch = pytest.importorskip("torch")
    from wellorder.torch import ShardedDataset

    data = ShardedDataset(tars, read_tar, survey=survey(tars, read_tar, xy=tar_xy), window=150)
    pipeline = wds.DataPipeline(data.urls, wds.tarfile_to_samples(), wds.decode(), data.steered)
    loader = torch.utils.data.DataLoader(pipeline, batch_size=None, num_workers=workers)
    epochs = [[int(sample["__key__"]) for sample in loader] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        check_order(epoch)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_parquet_and_arrow_files_by_row_group(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    for file in range(3):
        table, path = table_of(file * 4 * EACH, (file + 1) * 4 * EACH), tmp_path / f"{file}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path, row_group_size=EACH)
        else:
            with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
                writer.write_table(table, max_chunksize=EACH)
    shards, read = row_groups(sorted(tmp_path.iterdir()), columns=["i", "x", "y"])
    assert [group.size for group in shards] == [EACH] * FILES
    assert isinstance(shards[5], RowGroup)
    assert shards[5].group == 1
    first = next(iter(read(shards[5])))
    assert (first["i"], first["y"], first["x"].tolist()) == (150, LABELS[150], PIXELS[150].tolist())
    found = survey(shards, read, xy=xy, sample=10, sizes=lambda group: group.size)
    order = ordered_shards(found, seed=0, epoch=0)
    stream = itertools.chain.from_iterable(read(shards[at]) for at in order)
    out = balanced_stream(stream, found.row, window=150, mean=found.mean)
    check_order([int(example["i"]) for example in out])


@pytest.mark.parametrize("names", [("x", "y"), (None, "y"), ("z", "word")])
def test_rows_made_of_columns_are_those_made_of_examples(tmp_path, names, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    import pyarrow.parquet as pq

    from wellorder.torch import ShardedDataset

    for file in range(FILES):
        table = table_of(file * EACH, (file + 1) * EACH)
        part = slice(file * EACH, (file + 1) * EACH)
        table = table.append_column("z", pa.array(PIXELS[part, 0] / 7)).append_column(
            "word", pa.array([f"kind {label}" for label in LABELS[part]])
        )
        pq.write_table(table, tmp_path / f"{file:02}.parquet", row_group_size=EACH // 2 + 1)
    monkeypatch.setattr(_stream, "AT_ONCE", 7)  # several parts of a row group
    shards, read = row_groups(sorted(tmp_path.iterdir()))
    by_name = survey(shards, read, xy=names)
    by_function = survey(
        shards, read, xy=lambda e: (None if names[0] is None else e[names[0]], e[names[1]]), threads=1
    )
    np.testing.assert_array_equal(by_name.rows, by_function.rows)
    orders = [
        [int(e["i"]) for e in ShardedDataset(shards, read, survey=found, window=150)]
        for found in (by_name, by_function)
    ]
    assert orders[0] == orders[1]
    check_order(orders[0])


def test_an_example_that_waits_does_not_keep_its_whole_row_group(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    import pyarrow.parquet as pq

    from wellorder.torch import ShardedDataset

    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4000.0)), 4)
    pq.write_table(pa.table({"x": wide, "y": np.arange(1000) % 3}), tmp_path / "one.parquet")
    shards, read = row_groups([tmp_path / "one.parquet"])
    data = ShardedDataset(shards, read, survey=survey(shards, read, xy=("x", "y")), window=20)
    examples = list(data)
    assert sorted(example["x"][0] for example in examples) == np.arange(0, 4000.0, 4).tolist()
    assert all(example["x"].base.size <= 256 * 4 for example in examples)


def test_names_that_examples_lack_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"xy=\('x', 'label'\): an example of type dict has no such parts"):
        survey([0], lambda _: [{"x": 1.0, "y": 2}], xy=("x", "label"))
    for bad in (("x",), ("x", 3), "xy"):
        with pytest.raises(ValueError, match=r"xy=.*the two names"):
            survey([0], lambda _: [{"x": 1.0, "y": 2}], xy=bad)


def test_a_file_that_is_no_table_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ValueError, match=r"notes.txt'\): it is neither"):
        row_groups([tmp_path / "notes.txt"])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_hugging_faces_streams(tmp_path, workers):
    datasets = pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")
    import pyarrow.parquet as pq

    from wellorder.torch import ShardedDataset

    for file in range(FILES):
        pq.write_table(table_of(file * EACH, (file + 1) * EACH), tmp_path / f"{file:02}.parquet")
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    streamed = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path)
    )
    shards, read = hugging_face(streamed)
    assert len(shards) == FILES
    data = ShardedDataset(
        shards, read, survey=survey(shards, read, xy=xy, threads=1), window=150, batch_size=6
    )
    loader = torch.utils.data.DataLoader(data, batch_size=6, num_workers=workers, collate_fn=list)
    check_order([example["i"] for batch in loader for example in batch])


def test_what_is_no_stream_is_named():
    with pytest.raises(ValueError, match="dataset=list"):
        hugging_face([1, 2])


def test_plain_files_with_a_reader(tmp_path):
    for file in range(FILES):
        part = slice(file * EACH, (file + 1) * EACH)
        np.savez(tmp_path / f"{file:02}.npz", x=PIXELS[part], y=LABELS[part], i=np.arange(FILES * EACH)[part])

    def read(path):
        with np.load(path) as held:
            yield from zip(held["x"], held["y"], held["i"], strict=True)

    files = sorted(tmp_path.glob("*.npz"))
    found = survey(files, read, xy=lambda example: example[:2])
    stream = (example for at in ordered_shards(found, seed=1, epoch=2) for example in read(files[at]))
    check_order([int(e[2]) for e in balanced_stream(stream, found.row, window=150, mean=found.mean)])
