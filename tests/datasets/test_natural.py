"""Data by owner: MNIST's writers and Shakespeare's roles, from files as they are published."""

import gzip
import json
import lzma

import numpy as np
import pytest

from wellorder.federated import by_client, federate, mnist, mnist_writers, shakespeare


def packed_writers(folder, writers):
    rows = np.zeros((len(writers), 8), ">i4")
    rows[:, 2] = writers
    raw = b"\x00\x00\x0c\x02" + np.array(rows.shape, ">u4").tobytes() + rows.tobytes()
    (folder / "qmnist-train-labels-idx2-int.gz").write_bytes(gzip.compress(raw))
    return raw


def test_writers_are_the_third_column_of_qmnists_labels(tmp_path):
    raw = packed_writers(tmp_path, [7, 7, 300, 2])
    assert mnist_writers(tmp_path).tolist() == [7, 7, 300, 2]
    for spoilt in (raw[:-4], b"\x00\x00\x08\x02" + raw[4:], raw[:6]):
        (tmp_path / "qmnist-train-labels-idx2-int.gz").write_bytes(spoilt)
        with pytest.raises(ValueError, match="download it again"):
            mnist_writers(tmp_path)
    with pytest.raises(ValueError, match="no qmnist-train-labels"):
        mnist_writers(tmp_path / "elsewhere")


def test_a_role_is_a_client_and_the_next_character_its_label(tmp_path):
    said = {"A": "abcdefghij" * 5, "B": "jihgfedcba" * 4, "C": "short"}
    rows = [{"play": "p", "role": r, "speeches": [[1, t[:20], t[20:]]]} for r, t in said.items()]
    lines = "\n".join(map(json.dumps, rows)).encode()
    (tmp_path / "shakespeare_roles.jsonl.xz").write_bytes(lzma.compress(lines))
    text = shakespeare(tmp_path, width=3, stride=2, least=30)
    assert text.names == ("p: A", "p: B")
    assert text.alphabet == " abcdefghij"
    spoken = "".join(text.alphabet[i] for i in text.train[0]), text.alphabet[text.train_labels[0]]
    assert spoken == ("abc", "d")
    assert "".join(text.alphabet[i] for i in text.train[1]) == "cde"
    # 51 and 41 characters with the space between lines; four fifths, less the width, every second.
    assert np.bincount(text.owners).tolist() == [len(range(0, 40 - 3, 2)), len(range(0, 32 - 3, 2))]
    data = federate(text)
    assert data.partition.n == 2
    assert data.inputs.dtype.kind == "i"
    (tmp_path / "shakespeare_roles.jsonl.xz").write_bytes(lines[:-9])
    with pytest.raises(ValueError, match="damaged"):
        shakespeare(tmp_path)


@pytest.mark.slow
def test_the_published_files_have_539_writers_and_637_roles(real_data):
    if not (real_data / "clients").is_dir():
        pytest.skip("no files of natural clients beside the others")
    writers = mnist_writers(real_data)
    data = federate(mnist(real_data), by_client(writers))
    assert (data.partition.n, data.partition.sizes.min(), data.partition.sizes.max()) == (539, 19, 131)
    text = shakespeare(real_data, width=32, stride=16)
    assert len(text.names) == 637
    assert text.classes < 100
