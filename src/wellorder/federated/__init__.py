"""Federated learning whose clients take turns in a good order (Algorithm 2).

Importing this package never imports torch: what needs it is loaded on first use.
"""

from wellorder.federated.algorithm import fedavg
from wellorder.federated.clients import Clients, clients
from wellorder.federated.local import FullGradient, LocalSGD

__all__ = ["Clients", "FullGradient", "LocalSGD", "clients", "fedavg"]
