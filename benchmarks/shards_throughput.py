"""Examples a second from tar and parquet files, ours against WebDataset's shuffle(1000), and the memory.

Run as ``python -m benchmarks shards_throughput``; each way is measured in processes of its own, in turns.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

EXAMPLES, SHARDS, WINDOW, REPEATS = 100_000, 100, 1000, 1
SHAPE = (28, 28)


def write(folder: Path) -> None:
    """Pictures of ten classes as raw bytes, stored class by class."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = np.random.default_rng(0)
    each = EXAMPLES // SHARDS
    for shard in range(SHARDS):
        images = draw.integers(0, 256, (each, *SHAPE), np.uint8)
        label = shard * 10 // SHARDS
        with tarfile.open(folder / f"{shard:03}.tar", "w") as out:
            for i in range(each):
                buffer = io.BytesIO()
                np.save(buffer, images[i])
                parts = ((f"{i:06}.npy", buffer.getvalue()), (f"{i:06}.cls", str(label).encode()))
                for name, data in parts:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    out.addfile(info, io.BytesIO(data))
        flat = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), images[0].size)
        pq.write_table(pa.table({"x": flat, "y": np.full(each, label)}), folder / f"{shard:03}.parquet")


def read_tar(url: str) -> object:
    import webdataset as wds

    data = wds.WebDataset(url, shardshuffle=False, nodesplitter=None, workersplitter=None, empty_check=False)
    return data.decode().to_tuple("npy", "cls")


def measure(way: str, folder: Path) -> dict[str, float]:
    """Read everything once; seconds of the wall and of the processor, and peak memory beyond the start."""
    import webdataset as wds

    from wellorder.shards import Survey, row_groups
    from wellorder.torch import ShardedDataset

    kind, name = way.split()
    if kind == "tar":
        shards = sorted(map(str, folder.glob("*.tar")))
        read = read_tar
        plain = wds.WebDataset(shards, shardshuffle=SHARDS, empty_check=False, seed=0)
        shuffled = plain.shuffle(WINDOW).decode().to_tuple("npy", "cls")
        late = wds.WebDataset(shards, shardshuffle=SHARDS, empty_check=False, seed=0).decode()
        shuffled_late = late.to_tuple("npy", "cls").shuffle(WINDOW)
        xy = pair
    else:
        shards, read = row_groups(sorted(folder.glob("*.parquet")))
        rows = (
            example
            for shard in np.random.default_rng(0).permutation(len(shards))
            for example in read(shards[shard])
        )
        shuffled = shuffled_late = wds.filters.shuffle(WINDOW)(rows)
        xy = columns
    stream = {"shuffle(1000)": shuffled, "shuffle(1000)_after_decoding": shuffled_late}.get(name)
    if stream is None:
        found = Survey.load(folder / f"{kind}.npz", xy=xy)
        warm = ShardedDataset(shards, read, survey=found, window=10)
        next(iter(warm))  # compile
        stream = ShardedDataset(shards, read, survey=found, window=WINDOW)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, spent, count = time.perf_counter(), time.process_time(), 0
    for _ in stream:
        count += 1
    done = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - spent, "examples": count}
    return done | {"MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def pair(example: tuple[object, object]) -> tuple[object, object]:
    return example


def columns(example: dict[str, object]) -> tuple[object, object]:
    return example["x"], example["y"]


WAYS = (
    "tar shuffle(1000)",
    "tar shuffle(1000)_after_decoding",
    "tar ours",
    "parquet shuffle(1000)",
    "parquet ours",
)


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
        return
    from wellorder.shards import row_groups, survey

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        tars = sorted(map(str, folder.glob("*.tar")))
        began = time.process_time()
        survey(tars, read_tar, path=folder / "tar.npz", threads=1)
        print(f"survey of the tars: {time.process_time() - began:.1f} s of the processor", flush=True)
        groups, read = row_groups(sorted(folder.glob("*.parquet")))
        survey(groups, read, xy=columns, path=folder / "parquet.npz", threads=1)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for _ in range(REPEATS):
            for way in WAYS:
                words = [sys.executable, "-m", "benchmarks.shards_throughput", "--measure", way, name]
                done = subprocess.run(words, capture_output=True, text=True, env=environment)
                if done.returncode:
                    sys.exit(done.stderr)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
    base = dict.fromkeys(("tar", "parquet"), 0.0)
    for way, runs in found.items():
        cpu, wall = (float(np.median([run[name] for run in runs])) for name in ("cpu", "seconds"))
        kind = way.split()[0]
        base[kind] = base[kind] or cpu
        print(
            f"{way:34} {runs[0]['examples']:,.0f} examples, {EXAMPLES / cpu:9,.0f} a second of the processor "
            f"({base[kind] / cpu:.2f} of shuffle's), {1e6 * cpu / EXAMPLES:5.1f} us each, {wall:5.1f} s wall, "
            f"{max(run['MiB'] for run in runs):4.0f} MiB more"
        )


if __name__ == "__main__":
    main()
