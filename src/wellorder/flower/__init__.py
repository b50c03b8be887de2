"""Client ordering in Flower: any strategy, with its clients in a policy's order.

The only package that imports flwr.
"""

import warnings
from importlib import metadata

SUPPORTED = "1.41"
_CURE = f"install a supported one with: pip install 'flwr[simulation]=={SUPPORTED}.*'"
try:
    _version = metadata.version("flwr")
except metadata.PackageNotFoundError as error:
    raise ImportError(f"wellorder.flower needs Flower (flwr {SUPPORTED}); {_CURE}") from error
_found, _known = ([int(part) for part in text.split(".")[:2]] for text in (_version, SUPPORTED))
if _found[0] != _known[0] or _found < _known:
    raise ImportError(f"wellorder.flower supports flwr {SUPPORTED}, but {_version} is installed; {_CURE}")
if _found > _known:  # most minor versions change nothing that we use; to refuse them all would be worse
    warnings.warn(
        f"wellorder.flower was tested with flwr {SUPPORTED}, and {_version} is installed; "
        f"if something fails, {_CURE}",
        stacklevel=2,
    )

from wellorder._clients.tolerance import Tolerance  # noqa: E402
from wellorder.flower._strategy import OrderedStrategy  # noqa: E402

__all__ = ["OrderedStrategy", "Tolerance"]
