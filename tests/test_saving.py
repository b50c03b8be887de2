"""The state file is the old one or the new one, whatever happens, and nothing in it is executed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from wellorder._clients.journal import TYPES, read, write

ENDLESS = """
import sys, numpy as np
from pathlib import Path
from wellorder._clients.journal import write
for at in range(10**9):
    write(Path(sys.argv[1]), {"x": np.full(200_000, at)}, {"at": at})
    print(at, flush=True)
"""


@pytest.mark.parametrize("code", TYPES.values())
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_every_kind_of_array_comes_back(tmp_path, code, shape):
    array = np.arange(np.prod(shape)).astype(code).reshape(shape)
    write(tmp_path / "s", {"odd": np.ones(3, np.int8), "a/b": array}, {"names": ["é", "1"], "x": 0.1})
    arrays, facts = read(tmp_path / "s")
    np.testing.assert_array_equal(arrays["a/b"], array)
    assert arrays["a/b"].dtype == array.dtype
    assert facts == {"names": ["é", "1"], "x": 0.1}


def test_order_and_layout_do_not_matter(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    write(tmp_path / "s", {"f": np.asfortranarray(array), "big": array.astype(">f8"), "s": array[:, ::2]}, {})
    arrays, _ = read(tmp_path / "s")
    np.testing.assert_array_equal(arrays["f"], array)
    np.testing.assert_array_equal(arrays["big"], array)
    np.testing.assert_array_equal(arrays["s"], array[:, ::2])


@pytest.mark.parametrize("cut", [0, 4, 20, 100, -1])
def test_a_damaged_file_is_refused_with_the_cure(tmp_path, cut):
    write(tmp_path / "s", {"x": np.arange(3.0)}, {})
    (tmp_path / "s").write_bytes((tmp_path / "s").read_bytes()[:cut])
    with pytest.raises(ValueError, match="delete it to start anew"):
        read(tmp_path / "s")


def test_objects_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be saved"):
        write(tmp_path / "s", {"x": np.array([{}])}, {})
    assert not (tmp_path / "s").exists()


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "state"
    write(path, {"x": np.zeros(3)}, {"at": 1})

    def fail(self, target):
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write(path, {"x": np.ones(3)}, {"at": 2})
    assert read(path)[1] == {"at": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    path = tmp_path / "state"
    for delay in (0.0, 0.003, 0.01):
        with subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE) as writer:
            for _ in range(3):
                writer.stdout.readline()
            time.sleep(delay)
            os.kill(writer.pid, signal.SIGKILL)
        arrays, facts = read(path)
        assert (arrays["x"] == facts["at"]).all()
