"""How we measure: interleaved repeats, process CPU time, medians; and the memory of one call."""

import ctypes
import gc
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def cpu_seconds(calls: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median process CPU seconds of each call; the calls take turns, after one warm-up of each."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            spent[name].append(time.process_time() - start)
    return {name: float(np.median(times)) for name, times in spent.items()}


def peak_mebibytes(call: Callable[[], object]) -> float:
    """The most memory that the process has during a call, beyond what it has before (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before the call would hide what it takes
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    call()
    return _resident("VmHWM") - before


def _resident(what: str) -> float:
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")
