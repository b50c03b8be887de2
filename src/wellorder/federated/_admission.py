"""What may be simulated: everything that can be refused is refused before training starts, with the cure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from wellorder._order import Policy
from wellorder.federated._availability import Always
from wellorder.federated._config import Config
from wellorder.federated._models import build
from wellorder.federated._store import ClientData
from wellorder.policies import GraB, WithReplacement

MEMORY = 4 * 2**30
"""Bytes that a policy may keep on the host for all clients together."""


def check_jobs(jobs: Sequence[tuple[Policy[Any], Config]], data: ClientData) -> None:
    """Refuse runs that cannot share a device, and rounds larger than the federation."""
    if not jobs:
        raise ValueError("jobs=[]: pass at least one (policy, config)")
    first = jobs[0][1]
    for _, config in jobs[1:]:
        if config.shared() != first.shared():
            raise ValueError("jobs: runs that share a device may differ in policy, seed and step_size alone")
    n = data.partition.n
    if first.cohort > n:
        raise ValueError(
            f"cohort={first.cohort}: a round takes at most the {n} clients there are; pass 1 to {n}"
        )


def check_policy(policy: Policy[Any], config: Config, n: int, width: int) -> None:
    """Refuse what would not fit, or cannot work, before training starts."""
    length = config.sketch or width
    if config.sketch > width:
        raise ValueError(f"sketch={config.sketch}: longer than the model's {width} numbers; pass sketch=0")
    if hasattr(policy.init(n, seed=0), "rows") and n * length * 8 > MEMORY:
        raise ValueError(
            f"policy={policy!r} keeps every client's signal: {n} × {length} numbers are "
            f"{n * length * 8 / 2**30:.0f} GiB; use PairGraB, or pass sketch=512"
        )
    if isinstance(policy, WithReplacement) and not isinstance(config.availability, Always):
        raise ValueError("policy=WithReplacement() has no turns to miss; use it with availability=Always()")
    local = config.local
    if local is None:
        return
    if local.needs.at_start(0):
        raise ValueError(
            f"local={local!r} needs fresh gradients of every mini-batch; use PairGraB or RandomReshuffling"
        )
    if isinstance(local, GraB) and n * width * 8 > MEMORY:
        raise ValueError(
            f"local={local!r} keeps a mean for each of {n} clients; use PairGraB, which keeps none"
        )


def model_of(model: str | nn.Module, data: ClientData, seed: int) -> nn.Module:
    """The model itself, or the one that the name stands for, made for the data."""
    if isinstance(model, nn.Module):
        return model
    if not data.images:
        raise ValueError(
            f"model={model!r}: models by name take uint8 images; pass an nn.Module for other inputs"
        )
    return build(
        model, channels=data.inputs.shape[1], size=data.inputs.shape[2], classes=data.classes, seed=seed
    )


def device_of(name: str) -> torch.device:
    """The device, if it is there."""
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={name!r}: no CUDA device is visible here; pass device='cpu'")
    return torch.device(name)
