"""Examples a second from tar and parquet files, ours against a shuffle buffer of 1,000, and the memory.

Run as ``python -m benchmarks.shards_throughput [TENTHS]``. Speed: one process reads the files tenth by
tenth, each tenth in every way before the next, so that whatever else the machine does falls on all alike;
medians of processor time; and of ours, where that goes. Memory: a process for each way, which reads
everything. WebDataset reads no parquet: there the shuffle stage behind our reader is the rival, and, on a few
tenths, what else people iterate with.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import peak_mebibytes

EXAMPLES, SHARDS, WINDOW = 100_000, 100, 1000
PARTS, FEW, REPEATS = 10, 2, 6
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


def pair(example: tuple[object, object]) -> tuple[object, object]:
    return example


COLUMNS = ("x", "y")


WAYS = {
    "tar": ("shuffle", "shuffle after decoding", "ours"),
    "parquet": ("shuffle", "pyarrow's rows, shuffle", "Hugging Face's shuffle", "ours"),
}
"""The first is what the others are compared with."""
SLOW = WAYS["parquet"][1:3]
"""Ways that are several times slower, so that a few tenths tell enough."""
READ_ALONE = "read, and nothing else"


def stream_of(kind: str, way: str, folder: Path, part: int | None) -> Iterable[Any]:
    """One tenth of the files, or all, read in a way; every tenth holds all ten classes."""
    import webdataset as wds

    from wellorder.shards import Survey, row_groups
    from wellorder.torch import ShardedDataset

    chosen = np.arange(SHARDS) if part is None else np.arange(part, SHARDS, PARTS)
    files = [str(folder / f"{shard:03}.{kind}") for shard in chosen]
    if kind == "tar" and way != "ours":
        data = wds.WebDataset(files, shardshuffle=SHARDS, empty_check=False, seed=0)
        if way == "shuffle":
            return data.shuffle(WINDOW).decode().to_tuple("npy", "cls")
        return data.decode().to_tuple("npy", "cls").shuffle(WINDOW)
    shards, read = (files, read_tar) if kind == "tar" else row_groups(files)
    if way == READ_ALONE:
        return (example for shard in shards for example in read(shard))
    if way == "ours":
        found = Survey.load(folder / f"{kind}.npz", xy=pair if kind == "tar" else COLUMNS)
        mine = {name: getattr(found, name)[chosen] for name in ("rows", "sizes", "marks")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the window is small does not matter here
            return ShardedDataset(shards, read, survey=replace(found, **mine), window=WINDOW)
    mixed = np.random.default_rng(0).permutation(len(shards))
    if way == "shuffle":
        return wds.filters.shuffle(WINDOW)(example for at in mixed for example in read(shards[at]))
    if way == "pyarrow's rows, shuffle":
        return wds.filters.shuffle(WINDOW)(example for at in mixed for example in pylist(files[at]))
    import datasets

    datasets.disable_progress_bars()
    data = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=str(folder / "cache")
    )
    return data.with_format("numpy").shuffle(seed=0, buffer_size=WINDOW)


def pylist(file: str) -> Iterator[dict[str, Any]]:
    """Rows as pyarrow gives them."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches():
            yield from batch.to_pylist()


def speed(kind: str, folder: Path, parts: int) -> dict[str, list[float]]:
    """Microseconds of the processor an example: for every way, one number a tenth."""
    found: dict[str, list[float]] = {way: [] for way in WAYS[kind]}
    for way in WAYS[kind]:  # compile, import
        next(iter(stream_of(kind, way, folder, 0)))
    for at in range(parts if kind == "tar" else REPEATS * parts):
        part = at % parts
        for way in WAYS[kind]:
            if at >= FEW and way in SLOW:
                continue
            stream = stream_of(kind, way, folder, part)
            began = time.process_time()
            count = sum(1 for _ in stream)
            found[way].append(1e6 * (time.process_time() - began) / count)
            if count != EXAMPLES // PARTS:
                raise SystemExit(f"{kind}, {way}: {count} examples")
    return found


def steps(kind: str, folder: Path, parts: int) -> dict[str, float]:
    """Where ours spends its microseconds an example: medians over tenths."""
    from wellorder._kernels.steer import Window
    from wellorder.shards import _features, _formats, _stream

    spent: dict[str, float] = {}

    def watch(owner: Any, name: str, step: str) -> None:
        plain = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return plain(*given, **named)
            finally:
                spent[step] = spent.get(step, 0.0) + time.process_time() - began

        setattr(owner, name, watched)

    watch(_formats, "_values", "read the file")
    watch(_stream, "opened", "read the file")
    watch(_stream, "taken", "read the file" if kind == "tar" else "make examples")
    watch(_features.FeatureRows, "blocks", "make rows")
    watch(Window, "take_in", "steer")
    watch(Window, "drain", "steer")
    found: list[dict[str, float]] = []
    for part in range(parts):
        stream = stream_of(kind, "ours", folder, part)
        spent.clear()
        began = time.process_time()
        count = sum(1 for _ in stream)
        spent["hold and hand out"] = time.process_time() - began - sum(spent.values())
        found.append({step: 1e6 * seconds / count for step, seconds in spent.items()})
    return {step: float(np.median([each[step] for each in found])) for step in found[0]}


def memory(kind: str, way: str, folder: Path) -> float:
    """Peak memory in MiB while everything is read once, beyond what imports and compiled code take."""
    next(iter(stream_of(kind, way, folder, 0)))

    def read() -> None:
        for _ in stream_of(kind, way, folder, None):
            pass

    return peak_mebibytes(read)


def asked(words: list[str]) -> Any:
    """What another process of this file answers."""
    command = [sys.executable, "-m", "benchmarks.shards_throughput", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--speed":
        print(json.dumps(speed(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
        return
    if len(sys.argv) > 2 and sys.argv[1] == "--steps":
        print(json.dumps(steps(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
        return
    if len(sys.argv) > 2 and sys.argv[1] == "--memory":
        print(json.dumps(memory(*sys.argv[2:4], Path(sys.argv[4]))))
        return
    from wellorder.shards import row_groups, survey

    parts = int(sys.argv[-1]) if sys.argv[-1].isdigit() else PARTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        began = time.process_time()
        tars = sorted(map(str, folder.glob("*.tar")))
        survey(tars, read_tar, path=folder / "tar.npz", threads=1, progress=False)
        print(f"survey of the tars: {time.process_time() - began:.1f} s of the processor", flush=True)
        groups, read = row_groups(sorted(folder.glob("*.parquet")))
        survey(groups, read, xy=COLUMNS, path=folder / "parquet.npz", threads=1, progress=False)
        held = WINDOW * int(np.prod(SHAPE)) / 2**20
        for kind, ways in WAYS.items():
            found = asked(["--speed", kind, name, str(parts)])
            base = np.array(found[ways[0]])
            for way in ways:
                each = np.array(found[way])
                print(
                    f"{kind}, {way}: {np.median(each):.1f} us an example, "
                    f"{np.median(base[: len(each)] / each):.2f} of the speed of {ways[0]}({WINDOW})",
                    flush=True,
                )
            for step, spent in asked(["--steps", kind, name, str(parts)]).items():
                print(f"{kind}, ours: {spent:.2f} us to {step}", flush=True)
            for way in (READ_ALONE, ways[0], "ours"):
                extra = asked(["--memory", kind, way, name])
                print(f"{kind}, {way}: {extra:.0f} MiB (the window's pictures: {held:.1f})", flush=True)


if __name__ == "__main__":
    main()
