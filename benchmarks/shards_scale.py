"""A hundred thousand shards: seconds and memory to order them, and what a billion examples cost.

Run as ``python -m benchmarks shards_scale``; each size is measured in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.timing import cpu_seconds, peak_mebibytes

EXAMPLES = 10_000
"""In each shard, on average."""


def measure(shards: int, numbers: int, streams: int) -> dict[str, float]:
    """Order a made-up survey of ten labels a shard's kind; the memory is that of its rows and of ordering."""
    from wellorder import order_error
    from wellorder.shards import Survey, ordered_shards
    from wellorder.shards._order import dealt
    from wellorder.shards._reading import marks_of

    small = Survey(np.eye(4, dtype="f4"), np.ones(4, "i8"), np.full(4, 0.25), marks_of(range(4)))
    dealt(small, 2, seed=0, epoch=0)  # compile
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
    peak = rows.nbytes / 2**20 + peak_mebibytes(lambda: ordered_shards(made, seed=0, epoch=2))
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "survey.npz")
        saved = (Path(folder) / "survey.npz").stat().st_size
    sums = (rows - mean) * sizes[:, None]
    ratio = order_error(sums, order) / order_error(sums, draw.permutation(shards))
    return {
        "shards": shards, "numbers": numbers, "examples": int(sizes.sum()),
        "seconds": round(seconds, 2), f"seconds_for_{streams}_streams": round(dealing, 2),
        "MiB": round(peak), "saved_MiB": round(saved / 2**20, 1),
        "order_error_by_a_shuffle's": round(float(ratio), 4),
    }  # fmt: skip


class Given:
    """Rows that are there already, so that steering alone is measured."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __call__(self, number: int) -> np.ndarray:
        return self.rows[number]

    def many(self, numbers: list[int]) -> np.ndarray:
        return self.rows[numbers[0] : numbers[-1] + 1]


class GivenBlocks(Given):
    """The same of rows that are one block of ``self.rows``, at the place of one label of ten."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self.block_width, self.dim = rows.shape[1], 10 * rows.shape[1]
        self.places = np.random.default_rng(0).integers(10, size=len(rows))

    def blocks(self, numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
        some = slice(numbers[0], numbers[-1] + 1)
        return self.rows[some], self.places[some]


def steering() -> None:
    """Microseconds of the processor an example: steering beyond the row, and a feature row."""
    from wellorder import balanced_stream
    from wellorder.shards import survey

    draw = np.random.default_rng(0)
    rows = draw.standard_normal((20_000, 512), np.float32)
    pictures = [(draw.integers(0, 256, (28, 28), np.uint8), i % 10) for i in range(5000)]
    maker = survey(range(5), lambda shard: pictures[shard::5], threads=1).row

    blocks = GivenBlocks(np.ascontiguousarray(rows[:, :51]))

    def steer(given: Given, dim: int) -> None:
        for _ in balanced_stream(range(len(rows)), given, window=1000, mean=np.zeros(dim)):
            pass

    def make() -> None:
        for at in range(0, len(pictures), 250):
            maker.blocks(pictures[at : at + 250])  # type: ignore[union-attr]

    ways = {"rows": partial(steer, Given(rows), 512), "blocks": partial(steer, blocks, 510), "make": make}
    spent = cpu_seconds(ways, repeats=5)
    print(f"steering, window 1,000, 512 numbers: {1e6 * spent['rows'] / len(rows):.1f} us an example")
    print(f"steering, 510 numbers in 10 blocks: {1e6 * spent['blocks'] / len(rows):.1f} us an example")
    print(f"a feature row of a 28x28 picture: {1e6 * spent['make'] / len(pictures):.1f} us", flush=True)


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--measure":
        print(json.dumps(measure(*map(int, sys.argv[2:5]))))
        return
    steering()
    for shards, numbers, streams in ((1_000, 512, 8), (20_000, 512, 8), (100_000, 128, 64)):
        words = [sys.executable, "-m", "benchmarks.shards_scale", "--measure"]
        done = subprocess.run(
            [*words, str(shards), str(numbers), str(streams)], capture_output=True, text=True
        )
        print(done.stdout.strip() or done.stderr, flush=True)


if __name__ == "__main__":
    main()
