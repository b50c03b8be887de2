"""wellorder.torch: one line instead of ``shuffle=True``."""

from wellorder.torch._exact import Exact
from wellorder.torch._loader import OrderedLoader, ordered
from wellorder.torch._microbatch import MicroBatch
from wellorder.torch._report import Report
from wellorder.torch._sketching import Sketch

__all__ = ["Exact", "MicroBatch", "OrderedLoader", "Report", "Sketch", "ordered"]
