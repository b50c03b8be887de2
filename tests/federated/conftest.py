"""Where real data is, if it is anywhere: $WELLORDER_TEST_DATA, or shared/data beside the repository."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"


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
