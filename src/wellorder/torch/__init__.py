"""wellorder.torch: one line instead of ``shuffle=True``."""

from wellorder.torch.exact import Exact
from wellorder.torch.loader import OrderedLoader, ordered
from wellorder.torch.microbatch import MicroBatch
from wellorder.torch.report import Report
from wellorder.torch.sketching import Sketch

__all__ = ["Exact", "MicroBatch", "OrderedLoader", "Report", "Sketch", "ordered"]
