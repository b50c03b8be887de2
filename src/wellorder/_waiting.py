"""Whoever waits long for an order is told that it is under way: nothing that takes minutes is silent."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

PATIENCE = 10.0
"""Seconds after which whoever waits for an order is told how far it is."""


def say_progress(epoch: int, made: int = 0, count: int = 0, *, seconds: float = 0.0) -> None:
    """Tell on the terminal, or in the log, how far the order is that somebody waits for."""
    so_far = f"{made:,} of {count:,} units" if made and count else "under way"
    if seconds:
        so_far += f" for {seconds:.0f} s"
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be nobody to tell
        sys.stderr.write(f"wellorder: waiting for the order of epoch {epoch}: {so_far}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def waiting_for(epoch: int) -> Iterator[None]:
    """Whoever waits in here for an epoch's order, made in one piece, is told so every now and then.

    By a thread, since the kernels say nothing until they are done; they work without the interpreter's lock.
    """
    over, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(PATIENCE):
            say_progress(epoch, seconds=time.monotonic() - began)

    teller = threading.Thread(target=tell, name="wellorder-teller", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()  # a fork that follows must not find it at work
