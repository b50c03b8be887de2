"""A hundred thousand shards: seconds and memory to order them, and what a billion examples cost.

Run as ``python -m benchmarks shards_scale``; each size is measured in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

EXAMPLES = 10_000
"""In each shard, on average."""


def measure(shards: int, numbers: int, streams: int) -> dict[str, float]:
    """Order a made-up survey of ten labels a shard's kind, twice; peak memory beyond the imports."""
    from wellorder import order_error
    from wellorder.shards import Survey, ordered_shards
    from wellorder.shards._order import dealt
    from wellorder.shards._reading import marks_of

    small = Survey(np.eye(4, dtype="f4"), np.ones(4, "i8"), np.full(4, 0.25), marks_of(range(4)))
    dealt(small, 2, seed=0, epoch=0)  # compile
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((shards, numbers), np.float32) * np.float32(0.1)
    rows[np.arange(shards), draw.integers(10, size=shards)] += 1
    sizes = draw.integers(EXAMPLES // 2, EXAMPLES * 3 // 2, shards)
    mean = sizes @ rows / sizes.sum()
    made = Survey(rows, sizes, mean.astype(np.float64), marks_of(range(shards)))
    began = time.perf_counter()
    order = ordered_shards(made, seed=0, epoch=0)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    dealt(made, streams, seed=0, epoch=1)
    dealing = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "survey.npz")
        saved = (Path(folder) / "survey.npz").stat().st_size
    sums = (rows - mean) * sizes[:, None]
    ratio = order_error(sums, order) / order_error(sums, draw.permutation(shards))
    return {
        "shards": shards, "numbers": numbers, "examples": int(sizes.sum()),
        "seconds": round(seconds, 2), f"seconds_for_{streams}_streams": round(dealing, 2),
        "added_MiB": round((peak - before) / 1024), "saved_MiB": round(saved / 2**20, 1),
        "order_error_by_a_shuffle's": round(float(ratio), 4),
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--measure":
        print(json.dumps(measure(*map(int, sys.argv[2:5]))))
        return
    for shards, numbers, streams in ((1_000, 512, 8), (20_000, 512, 8), (100_000, 128, 64)):
        words = [sys.executable, "-m", "benchmarks.shards_scale", "--measure"]
        done = subprocess.run(
            [*words, str(shards), str(numbers), str(streams)], capture_output=True, text=True
        )
        print(done.stdout.strip() or done.stderr, flush=True)


if __name__ == "__main__":
    main()
