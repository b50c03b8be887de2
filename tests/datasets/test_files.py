"""Data sets are read from their official files, or refused with the cure."""

import gzip
import hashlib
import io
import tarfile

import numpy as np
import pytest

from wellorder._datasets import files as data


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def made_up_mnist(folder, labels=None, count=12):
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for stem, n in (("train", count), ("t10k", 4)):
        images = draw.integers(0, 256, (n, 28, 28))
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        own = np.arange(n) % 10 if labels is None else np.resize(labels, n)
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(own)))
    return folder


def made_up_cifar(folder, columns, names, count=6, top=10):
    draw = np.random.default_rng(1)
    folder.mkdir(parents=True)
    tables = {}
    for name in names:
        table = draw.integers(0, 256, (count, columns + 3072), dtype=np.uint8)
        table[:, :columns] = draw.integers(0, top, (count, columns))
        (folder / name).write_bytes(table.tobytes())
        tables[name] = table
    return tables


CIFAR10_FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def test_real_mnist_and_fashion_mnist_have_the_published_sizes_and_labels(real_data):
    for read in (data.mnist, data.fashion_mnist):
        found = read(real_data)
        assert found.train_images.shape == (60000, 1, 28, 28)
        assert found.test_images.shape == (10000, 1, 28, 28)
        assert np.bincount(found.test_labels).size == found.classes == 10


def test_real_cifar10_has_the_published_sizes_and_balanced_labels(real_cifar10):
    found = data.cifar10(real_cifar10)
    assert found.train_images.shape == (50000, 3, 32, 32)
    assert (np.bincount(found.train_labels) == 5000).all()
    assert (np.bincount(found.test_labels) == 1000).all()
    assert found.train_images.mean(axis=(0, 2, 3)) / 255 == pytest.approx(found.mean, abs=1e-4)


def test_cifar10_records_are_a_label_and_three_planes(tmp_path):
    tables = made_up_cifar(tmp_path / "cifar-10-batches-bin", 1, CIFAR10_FILES)
    found = data.cifar10(tmp_path, verify=False)
    assert found.train_images.shape == (30, 3, 32, 32)
    assert (found.test_labels == tables["test_batch.bin"][:, 0]).all()
    assert (found.test_images[2, 1].ravel() == tables["test_batch.bin"][2, 1 + 1024 : 1 + 2048]).all()


def test_cifar100_takes_the_fine_label(tmp_path):
    tables = made_up_cifar(tmp_path / "cifar-100-binary", 2, ["train.bin", "test.bin"], top=100)
    found = data.cifar100(tmp_path, verify=False)
    assert (found.train_labels == tables["train.bin"][:, 1]).all()
    assert (found.train_images.reshape(6, -1) == tables["train.bin"][:, 2:]).all()
    with pytest.raises(ValueError, match="does not hold the official images"):
        data.cifar100(tmp_path)


def test_cinic10_reads_its_folders_in_the_order_of_names(tmp_path):
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(2)
    kept = {}
    for split in ("train", "test"):
        for name in data.CINIC_CLASSES:
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(2):
                kept[split, name, i] = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                image.fromarray(kept[split, name, i]).save(tmp_path / split / name / f"cifar10-{i}.png")
    found = data.cinic10(tmp_path)
    assert found.train_labels.tolist() == sorted([*range(10)] * 2)
    assert (found.test_images[7] == kept["test", "cat", 1].transpose(2, 0, 1)).all()
    (tmp_path / "train" / "cat" / "cifar10-0.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"cifar10-0.png is damaged .*unpack CINIC-10 again"):
        data.cinic10(tmp_path)


def test_official_files_are_told_from_others_by_checksum(tmp_path):
    made_up_mnist(tmp_path)
    with pytest.raises(ValueError, match=r"not the official file .*verify=False"):
        data.mnist(tmp_path)
    assert data.mnist(tmp_path, verify=False).train_images.shape == (12, 1, 28, 28)


def test_the_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    made_up_mnist(tmp_path / "mnist")
    monkeypatch.setenv("WELLORDER_DATA", str(tmp_path))
    assert len(data.mnist(verify=False).train_images) == 12
    monkeypatch.delenv("WELLORDER_DATA")
    with pytest.raises(ValueError, match="WELLORDER_DATA"):
        data.mnist()


@pytest.mark.parametrize("cut", [5, 40, 200])
def test_truncated_idx_files_are_refused(tmp_path, cut):
    folder = made_up_mnist(tmp_path)
    for stem in ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"):
        file = folder / "train-images-idx3-ubyte.gz"
        raw = file.read_bytes() if stem.endswith("gz") else gzip.decompress(file.read_bytes())
        (tmp_path / "cut").write_bytes(raw[:cut] if cut < 100 else raw[:-cut])
        with pytest.raises(ValueError, match="download it again"):
            data.read_idx(tmp_path / "cut")


def test_truncated_cifar_files_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    made_up_cifar(folder, 1, CIFAR10_FILES)
    file = folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3.bin: \d+ bytes are not whole records"):
        data.cifar10(tmp_path, verify=False)
    file.unlink()
    with pytest.raises(ValueError, match=r"data_batch_3.bin is missing"):
        data.cifar10(tmp_path, verify=False)


def test_labels_outside_the_range_are_refused(tmp_path):
    made_up_mnist(tmp_path, labels=[3, 10])
    with pytest.raises(ValueError, match=r"labels run from 3 to 10, but must lie in 0..9"):
        data.mnist(tmp_path, verify=False)


def test_a_folder_without_the_files_names_what_it_looked_for(tmp_path):
    for name, read in data.DATASETS.items():
        with pytest.raises(ValueError, match="in it or in its subfolder"):
            read(tmp_path)
        assert name in data.DATASETS


def test_a_download_is_checked_before_a_file_gets_its_name(tmp_path, monkeypatch):
    packed = gzip.compress(idx(np.arange(5)))
    monkeypatch.setattr(data, "_get", lambda url: packed)
    with pytest.raises(ValueError, match="checksum differs"):
        data.fetch("mnist", tmp_path)
    assert not list(tmp_path.iterdir())
    sums = dict.fromkeys(data.CHECKSUMS["mnist"], hashlib.sha256(packed).hexdigest())
    monkeypatch.setitem(data.CHECKSUMS, "mnist", sums)
    data.fetch("mnist", tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(sums)


def test_an_archive_gives_only_the_files_that_belong_to_it(tmp_path, monkeypatch):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in ("../../evil.bin", "cifar-100-binary/train.bin", "../test.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    raw = stream.getvalue()
    monkeypatch.setattr(data, "_get", lambda url: raw)
    monkeypatch.setitem(data.ARCHIVES, "cifar100", ("https://example.org", hashlib.md5(raw).hexdigest()))
    home = tmp_path / "a" / "b"
    data.fetch("cifar100", home)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.bin")) == [
        "a/b/test.bin",
        "a/b/train.bin",
    ]


def test_reading_data_needs_no_torch(tmp_path):
    import subprocess
    import sys

    code = "import sys, wellorder.federated; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
