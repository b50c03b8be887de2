"""How ranks begin and end in tests: their workers are forked, as by default, where Python can do that.

Python before 3.11.10 (gh-112275): a lock of the interpreter that another thread holds at a fork, here one of
gloo's that asks for the GIL, is waited for in the child, for ever. docs/devices.md has the cures, and this
is one of them.
"""

import gc
import multiprocessing
import os
import sys
from typing import Any, NoReturn

import torch

MAY_HANG = sys.version_info < (3, 11, 10)
# What a fork server's workers import, they import anew: once is enough.
NOT_FORKED: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True}


def workers(count: int) -> dict[str, Any]:
    """Options of a DataLoader with so many workers."""
    return {"num_workers": count, **(NOT_FORKED if count and MAY_HANG else {})}


def leave() -> NoReturn:
    """End this rank's process, all of whose work is done, before Python takes itself apart.

    A reducer of DistributedDataParallel that is still referred to keeps gloo's threads alive. One that lets a
    barrier's tensor go while Python ends is ended by Python inside of a destructor, and the process aborts:
    seen in 2 of 36 runs, in PyTorch's frames alone.
    """
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    gc.collect()  # loaders end their workers; those that are still referred to do not, and theirs would stay
    for child in multiprocessing.active_children():
        child.terminate()
        child.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
