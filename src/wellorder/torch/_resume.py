"""A loader's state as tensors, numbers and strings: safe to load with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellorder._order import Policy, load_state_dict, state_dict
from wellorder.torch._gauge import Gauge
from wellorder.torch._journal import Journal

COUNTS = ("observed", "unobserved", "not_finite", "steps")


def packed(journal: Journal) -> dict[str, Any]:
    """The contents, copied, of a journal in which no rows wait."""
    gauge = journal.gauge
    held = {f.name: getattr(journal.state, f.name) for f in fields(journal.state)}
    state = replace(journal.state, **{name: v.double() for name, v in held.items() if isinstance(v, Tensor)})
    sums = np.stack(gauge.sums) if gauge.sums else np.zeros((0, 0), np.float32)
    return {
        "policy": {name: _tensor(value) for name, value in state_dict(journal.policy, state).items()},
        "counts": {name: getattr(journal, name) for name in COUNTS},
        "errors": torch.tensor(journal.errors, dtype=torch.float64),
        "gauge": {"sums": torch.from_numpy(sums), "counts": torch.tensor(gauge.counts, dtype=torch.int64)},
    }


def unpacked(policy: Policy[Any], mapping: Mapping[str, Any], like: Tensor | None) -> Journal:
    """The journal that `packed` saved; exact signals' accumulators go back to where the model lives."""
    try:
        plain = {name: _array(value) for name, value in mapping["policy"].items()}
        counts, errors = mapping["counts"], mapping["errors"]
        sums, sizes = mapping["gauge"]["sums"], mapping["gauge"]["counts"]
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(
            f"damaged state: {error} is missing; load a whole state_dict of an OrderedLoader"
        ) from error
    state = load_state_dict(policy, plain)
    if like is not None:
        vectors = {f.name: getattr(state, f.name) for f in fields(state)}
        homes = {name: torch.from_numpy(v).to(like) for name, v in vectors.items() if _is_vector(v)}
        state = replace(state, **homes)
    journal = Journal(policy, state)
    for name in COUNTS:
        setattr(journal, name, int(counts[name]))
    journal.errors = [float(value) for value in errors]
    journal.gauge = Gauge()
    journal.gauge.sums = [row.numpy().copy() for row in sums.cpu()]
    journal.gauge.counts = [int(count) for count in sizes]
    return journal


def check_same(mapping: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse the state of a loader that would give out other batches."""
    theirs = mapping.get("loader") if isinstance(mapping, Mapping) else None
    if not isinstance(theirs, Mapping) or "step" not in mapping:
        raise ValueError("this is no OrderedLoader's state_dict; load what loader.state_dict() gave")
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise ValueError(
                f"this state was saved with {name}={theirs.get(name)!r}, and this loader has "
                f"{name}={value!r}; make the loader as it was when the state was saved"
            )


def _is_vector(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float64 and value.size > 0


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
