"""Settings shared by all tests, and where real data is, if it is anywhere."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# The first example of a test may compile a kernel, so no example has a deadline.
settings.register_profile("wellorder", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("wellorder")

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with mnist/, fashion_mnist/ and packed CIFAR sets."""
    folder = Path(os.environ.get("WELLORDER_TEST_DATA", BESIDE))
    if not (folder / "fashion_mnist").is_dir():
        pytest.skip("no real data: set WELLORDER_TEST_DATA to a folder with mnist/ and fashion_mnist/")
    return folder


@pytest.fixture(scope="session")
def real_cifar10(real_data) -> Path:
    """A folder with cifar-10-batches-bin/, unpacked once into a cache outside the repository."""
    if (real_data / "cifar-10-batches-bin").is_dir():
        return real_data
    cache = Path(tempfile.gettempdir()) / "wellorder-data"
    if not (cache / "cifar-10-batches-bin" / "test_batch.bin").exists():
        if not (real_data / "unpack.py").exists():
            pytest.skip(f"no CIFAR-10: put cifar-10-batches-bin into {real_data}")
        subprocess.run([sys.executable, real_data / "unpack.py", cache, "cifar10"], check=True)
    return cache
