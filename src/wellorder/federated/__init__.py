"""Federated learning whose clients take turns in a good order (Algorithm 2).

Importing this package never imports torch: what needs it is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from wellorder.federated._algorithm import fedavg
from wellorder.federated._clients import Clients, clients
from wellorder.federated._config import Config, paper
from wellorder.federated._local import FullGradient, LocalSGD

if TYPE_CHECKING:
    from wellorder.federated._engine import Simulation, simulate, simulate_many
    from wellorder.federated._store import ClientData, federate

__all__ = [
    "ClientData",
    "Clients",
    "Config",
    "FullGradient",
    "LocalSGD",
    "Simulation",
    "clients",
    "fedavg",
    "federate",
    "paper",
    "simulate",
    "simulate_many",
]
_LAZY = {
    "ClientData": "store",
    "Simulation": "engine",
    "federate": "store",
    "simulate": "engine",
    "simulate_many": "engine",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"wellorder.federated._{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"{name} needs torch: pip install 'wellorder[torch]'", name="torch"
        ) from error
