"""Client ordering in Flower: any strategy, with its clients in a policy's order.

The only package that imports flwr.
"""

import warnings
from importlib import import_module, metadata

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

_USED = {
    "flwr.app": "Array ArrayRecord ConfigRecord Message MetricRecord RecordDict",
    "flwr.serverapp": "Grid",
    "flwr.serverapp.strategy": "FedAvg Result Strategy",
    "flwr.serverapp.exception": "AggregationError InconsistentMessageReplies",
}
"""Flower's names that are used, by module."""


def _missing() -> list[str]:
    """Those that the installed version has not."""
    absent = []
    for module, names in _USED.items():
        try:
            found = import_module(module)
        except ImportError:
            absent.append(module)
            continue
        absent += [f"{module}.{name}" for name in names.split() if not hasattr(found, name)]
    grid = None if absent else import_module("flwr.serverapp").Grid
    used = ("get_node_ids", "get_nodes", "push_messages", "pull_messages", "send_and_receive")
    return absent + [f"flwr.serverapp.Grid.{name}" for name in used if grid and not hasattr(grid, name)]


if _absent := _missing():
    raise ImportError(f"flwr {_version} has no {', '.join(_absent)}, which wellorder.flower needs; {_CURE}")

from wellorder._clients.tolerance import Tolerance  # noqa: E402
from wellorder.flower._strategy import OrderedStrategy  # noqa: E402

__all__ = ["OrderedStrategy", "Tolerance"]
