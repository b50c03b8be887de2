"""Federated learning whose clients take turns in a good order (Algorithm 2).

Importing this package never imports torch: what needs it is loaded on first use.
"""

from typing import TYPE_CHECKING, Any

from wellorder._clients.availability import Always, Availability, Diurnal, DropOut, Trace
from wellorder._clients.heterogeneity import heterogeneity
from wellorder._datasets.files import DATASETS, Dataset, cifar10, cifar100, cinic10, fashion_mnist, mnist
from wellorder._datasets.natural import Text, mnist_writers, shakespeare
from wellorder._datasets.partitions import Partition, by_client, dirichlet, iid, label_shards
from wellorder.federated._config import Config, paper_config
from wellorder.federated._fedavg import fedavg
from wellorder.federated._local_steps import Clients, FullGradient, LocalSGD, clients

if TYPE_CHECKING:
    from wellorder._datasets.networks import NETWORKS, network
    from wellorder.federated._client_data import ClientData, federate
    from wellorder.federated._simulate import Simulation, simulate, simulate_many

__all__ = [
    "DATASETS",
    "NETWORKS",
    "Always",
    "Availability",
    "ClientData",
    "Clients",
    "Config",
    "Dataset",
    "Diurnal",
    "DropOut",
    "FullGradient",
    "LocalSGD",
    "Partition",
    "Simulation",
    "Text",
    "Trace",
    "by_client",
    "cifar10",
    "cifar100",
    "cinic10",
    "clients",
    "dirichlet",
    "fashion_mnist",
    "fedavg",
    "federate",
    "heterogeneity",
    "iid",
    "label_shards",
    "mnist",
    "mnist_writers",
    "network",
    "paper_config",
    "shakespeare",
    "simulate",
    "simulate_many",
]
_NEED_TORCH = {
    "ClientData": "wellorder.federated._client_data",
    "NETWORKS": "wellorder._datasets.networks",
    "Simulation": "wellorder.federated._simulate",
    "federate": "wellorder.federated._client_data",
    "network": "wellorder._datasets.networks",
    "simulate": "wellorder.federated._simulate",
    "simulate_many": "wellorder.federated._simulate",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_NEED_TORCH[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"{name} needs torch: pip install 'wellorder[torch]'", name="torch"
        ) from error
