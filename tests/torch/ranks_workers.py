"""How loaders of ranks start their workers in tests: forked, as by default, where Python can do that.

Python before 3.11.10 (gh-112275): a lock of the interpreter that another thread holds at a fork, here one of
gloo's that asks for the GIL, is waited for in the child, for ever. docs/devices.md has the cures, and this
is one of them.
"""

import sys
from typing import Any

MAY_HANG = sys.version_info < (3, 11, 10)
# What a fork server's workers import, they import anew: once is enough.
NOT_FORKED: dict[str, Any] = {"multiprocessing_context": "forkserver", "persistent_workers": True}


def workers(count: int) -> dict[str, Any]:
    """Options of a DataLoader with so many workers."""
    return {"num_workers": count, **(NOT_FORKED if count and MAY_HANG else {})}
