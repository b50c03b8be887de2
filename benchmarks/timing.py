"""How we measure: interleaved repeats, process CPU time, medians."""

import time
from collections.abc import Callable

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
