"""`ordered`: a DataLoader in, the same loader with a better order out."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from wellorder._arguments import seed_of, shown
from wellorder._order import Policy
from wellorder.torch._frameworks import opened_up, unwrapped
from wellorder.torch._hooks import Scaler
from wellorder.torch._loader import OrderedLoader
from wellorder.torch._schedule import Observe
from wellorder.torch._signal_sources import Spec, default_policy
from wellorder.torch._validation import check_knowledge, check_loader, check_policy_fits, checked_model


def ordered(
    loader: DataLoader[Any],
    model: nn.Module | None = None,
    policy: Policy[Any] | None = None,
    *,
    rows: Any = None,
    observe: Observe = "auto",
    signals: str | Spec = "auto",
    seed: int = 0,
    scaler: Scaler | None = None,
) -> OrderedLoader:
    """Give a loader a better order than ``shuffle=True``: by a model's gradients, or by rows known before.

    Everything else about the loader stays as it is: batch size, workers, pinning, collate. The loop stays
    too. Gradients are looked at in a few epochs only; in all others nothing of ours touches the step.

    Parameters
    ----------
    loader
        A `torch.utils.data.DataLoader` over a map-style data set, shuffled or not. With several ranks (see
        torch.distributed) each takes its part of every global batch, with a `DistributedSampler` or without.
    model
        The module whose gradients order the examples; the batch must be its layers' first dimension. Not
        needed where ``rows`` say enough.
    policy
        The rule that makes the orders; `Steering()` unless given, or `PairGraB()` for exact signals.
    rows
        What is known of each example before training, (n, k): `wellorder.features(x, y)`, or embeddings. They
        shape the orders from the first epoch on, alone at first, and beside gradients once these were seen.
    observe
        Which epochs to take signals in: ``"auto"`` (0, 1, 2, 4, 8, 16, …), ``"always"``, an int (every
        so-manyth), or a function from the epoch to True or False. `GraB` and `PairGraB` need all.
    signals
        ``"sketch"``, ``"exact"``, ``"batch"``, a spec such as ``Sketch(size=256)``, or ``"auto"``, which
        chooses and says why in ``report()``.
    seed
        Decides the first order and every random choice; same seed, same orders.
    scaler
        The ``torch.amp.GradScaler`` in use, if any, so that its changing scale can be undone.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from wellorder.torch import ordered
    >>> data = TensorDataset(torch.randn(10, 3), torch.randn(10, 1))
    >>> model = torch.nn.Linear(3, 1)
    >>> loader = ordered(DataLoader(data, batch_size=4, shuffle=True), model)
    >>> for x, y in loader:
    ...     torch.nn.functional.mse_loss(model(x), y).backward()
    >>> len(loader), loader.epoch, sorted(loader.order.tolist()) == list(range(10))
    (3, 1, True)
    """
    if isinstance(loader, OrderedLoader):  # a cell of a notebook that was run again
        raise ValueError("loader is ordered already; pass the DataLoader that it was made of")
    loader, delivery = opened_up(loader)
    check_loader(loader)
    if model is not None:
        model = checked_model(unwrapped(model))
    rule = default_policy(signals) if policy is None else policy
    check_policy_fits(rule)
    check_knowledge(rule, model, rows, observe)
    seed_of(seed)
    if scaler is not None and not callable(getattr(scaler, "scale", None)):
        raise ValueError(f"scaler={shown(scaler)}: pass the torch.amp.GradScaler in use, or None")
    made: OrderedLoader = OrderedLoader._made(
        loader, model, rule, rows=rows, observe=observe, signals=signals, seed=seed, scaler=scaler
    )
    made._delivery = delivery
    return made
