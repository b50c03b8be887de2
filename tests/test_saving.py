"""The state file is the old one or the new one, whatever happens, and nothing in it is executed."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from wellorder._saving import CHECKSUM, VALUES, _checksum, load_state, save_state

ENDLESS = """
import sys, numpy as np
from wellorder._saving import save_state
for at in range(10**9):
    save_state(sys.argv[1], {"x": np.full(200_000, at), "at": at})
    print(at, flush=True)
"""
TYPES = ["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"]


@pytest.mark.parametrize("code", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_every_kind_of_array_comes_back(tmp_path, code, shape):
    array = np.arange(np.prod(shape)).astype(code).reshape(shape)
    odd = {"odd": np.ones(3, np.int8), "a/b": array, "%values": array, "file": {"a": {"b": array}}}
    save_state(tmp_path / "s", {**odd, "names": ["é", "1"], "x": 0.1, "none": None, "é": np.float32(0.5)})
    state = load_state(tmp_path / "s")
    for found in (state["a/b"], state["%values"], state["file"]["a"]["b"]):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
    plain = {key: state[key] for key in ("names", "x", "none", "é")}
    assert plain == {"names": ["é", "1"], "x": 0.1, "none": None, "é": 0.5}
    assert list(state) == [*odd, "names", "x", "none", "é"]


def test_order_and_layout_do_not_matter(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    save_state(
        tmp_path / "s", {"f": np.asfortranarray(array), "big": array.astype(">f8"), "s": array[:, ::2]}
    )
    state = load_state(tmp_path / "s")
    np.testing.assert_array_equal(state["f"], array)
    np.testing.assert_array_equal(state["big"], array)
    np.testing.assert_array_equal(state["s"], array[:, ::2])


def test_a_state_is_a_file_of_plain_arrays(tmp_path):
    save_state(tmp_path / "s.npz", {"model": {"w": np.arange(3.0)}, "round": 7})
    with np.load(tmp_path / "s.npz", allow_pickle=False) as file:
        assert file["model/w"].tolist() == [0, 1, 2]
        assert all(file[name].dtype != object for name in file.files)


@pytest.mark.parametrize("cut", [0, 4, 20, 100, -1])
def test_a_damaged_file_is_refused_with_the_cure(tmp_path, cut):
    save_state(tmp_path / "s", {"x": np.arange(3.0)})
    (tmp_path / "s").write_bytes((tmp_path / "s").read_bytes()[:cut])
    with pytest.raises(ValueError, match="delete it to start anew"):
        load_state(tmp_path / "s")


def test_a_file_whose_parts_do_not_belong_together_is_refused(tmp_path):
    """Each part is sound; one was swapped for another file's, or left out."""
    save_state(tmp_path / "a", {"x": np.arange(3.0)})
    save_state(tmp_path / "b", {"x": np.arange(3.0) + 1})
    with zipfile.ZipFile(tmp_path / "a") as one, zipfile.ZipFile(tmp_path / "b") as other:
        for name, swap in (("swapped", True), ("left out", False)):
            with zipfile.ZipFile(tmp_path / name, "w") as mixed:
                for entry in one.namelist():
                    if entry == "x.npy" and not swap:
                        continue
                    mixed.writestr(entry, (other if entry == "x.npy" else one).read(entry))
            with pytest.raises(ValueError, match=r"checksum.*delete it to start anew"):
                load_state(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "none")


def test_objects_are_refused(tmp_path):
    for value in (np.array([{}]), np.array(["a"]), object(), [np.ones(2)]):
        with pytest.raises(ValueError, match=r"'x' .*cannot be saved"):
            save_state(tmp_path / "s", {"x": value})
    assert not (tmp_path / "s").exists()


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "state"
    save_state(path, {"x": np.zeros(3), "at": 1})

    def fail(self, target):
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no"):
        save_state(path, {"x": np.ones(3), "at": 2})
    assert [file.name for file in tmp_path.iterdir()] == ["state"]  # before a reader sweeps the folder
    assert load_state(path)["at"] == 1


def test_a_full_disk_names_the_cure_and_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "state"
    save_state(path, {"at": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refused:
        save_state(path, {"at": 2})
    assert refused.value.__notes__ == [
        "the disk is full: free some space and go on; state is as it was before"
    ]
    assert load_state(path) == {"at": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    path = tmp_path / "state"
    for delay in (0.0, 0.003, 0.01):
        with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as writer:
            for _ in range(3):
                writer.stdout.readline()
            time.sleep(delay)
            os.kill(writer.pid, signal.SIGKILL)
        state = load_state(path)
        assert (state["x"] == state["at"]).all()


def test_a_file_and_its_folder_are_flushed_before_anybody_relies_on_them(tmp_path, monkeypatch):
    """The file before its rename, the folder after it: a power cut may leave no name without content."""
    events, fsync, replace = [], os.fsync, os.replace

    def flushed(handle):
        events.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def renamed(*names):
        events.append("rename")
        replace(*names)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    save_state(tmp_path / "s.npz", {"x": 1})
    assert events[0].startswith(".unfinished-s.npz-")
    assert events[1:] == ["rename", tmp_path.name]


def test_what_a_killed_writer_left_is_swept_by_the_next_reader_and_nothing_else_is(tmp_path):
    save_state(tmp_path / "s.npz", {"x": 1})
    for name in (".unfinished-s.npz-abc.npz", ".unfinished-other.npz-abc.npz", "mine"):
        (tmp_path / name).write_text("half")
    load_state(tmp_path / "s.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".unfinished-other.npz-abc.npz",
        "mine",
        "s.npz",
    ]


def outcome(path):
    try:
        return load_state(path)
    except ValueError as error:
        return str(error)


def test_a_flipped_bit_anywhere_is_refused_in_words_or_does_not_matter(tmp_path):
    path, state = tmp_path / "s", {"x": np.arange(3.0), "at": 7, "deep": {"flag": np.array([True])}}
    save_state(path, state)
    good = path.read_bytes()
    index = good.find(
        b"PK\x01\x02"
    )  # from here on every bit, where one can ask for a password or a missing codec
    for place in [*range(0, 8 * index, 9), *range(8 * index, 8 * len(good))]:
        raw = bytearray(good)
        raw[place // 8] ^= 1 << place % 8
        path.write_bytes(raw)
        found = outcome(path)
        if isinstance(found, str):
            assert "cannot be read" in found
        else:
            np.testing.assert_array_equal(found["x"], state["x"])
            assert (found["at"], found["deep"]["flag"].tolist()) == (7, [True])


def test_a_flipped_bit_before_a_long_array_is_refused_in_words(tmp_path):
    """Of a short one the archive's own checksum is looked at first, of a long one what says its shape."""
    path = tmp_path / "state"
    save_state(path, {"x": np.zeros(5000)})
    whole = path.read_bytes()
    header = whole.index(b"NUMPY")
    for at in range(header - 1, header + 127):
        for bit in range(3):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
            with pytest.raises(ValueError, match="cannot be read"):
                load_state(path)


@pytest.mark.parametrize("outline", [{"branch": 3}, {"branch": {"a": {"branch": "abc"}}}, {"value": 3}])
def test_a_forged_outline_is_refused_in_words(tmp_path, outline):
    arrays = {VALUES: np.frombuffer(json.dumps(outline).encode(), np.uint8)}
    np.savez(tmp_path / "s.npz", **arrays, **{CHECKSUM: np.array(_checksum(arrays), np.uint32)})
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(tmp_path / "s.npz")


def test_a_file_that_would_grow_is_refused_before_it_does(tmp_path):
    np.savez_compressed(tmp_path / "s.npz", x=np.zeros(1000))
    with pytest.raises(ValueError, match=r"'x.npy' is compressed"):
        load_state(tmp_path / "s.npz")
