"""wellorder.torch: one line instead of ``shuffle=True``."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "wellorder.torch needs PyTorch: pip install 'wellorder[torch]'", name="torch"
    ) from error

from wellorder.torch._batch_gradients import MicroBatch
from wellorder.torch._loader import OrderedLoader
from wellorder.torch._ordered import ordered
from wellorder.torch._per_example.exact import Exact
from wellorder.torch._probe import probe
from wellorder.torch._report import Report
from wellorder.torch._sharded import ShardedDataset
from wellorder.torch._sketch import Sketch

__all__ = ["Exact", "MicroBatch", "OrderedLoader", "Report", "ShardedDataset", "Sketch", "ordered", "probe"]
