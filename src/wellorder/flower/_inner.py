"""The strategy inside: which ones can be wrapped, and by whose rules they judge replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flwr.serverapp.strategy import Strategy

from wellorder._arguments import shown


def layers(inner: Any) -> Iterator[Any]:
    """The inner strategy, and those that it wraps."""
    while isinstance(inner, Strategy):
        yield inner
        inner = getattr(inner, "strategy", None)


def wanted(inner: Strategy, name: str) -> int:
    """Fewest nodes that the inner strategy goes on with, as far as it tells."""
    return max(getattr(layer, key, 0) for layer in layers(inner) for key in (name, "min_available_nodes"))


def accounts(inner: Strategy) -> bool:
    """Whether a wrapper counts the privacy spent; it then takes whole cohorts only."""
    return any(getattr(layer, "accountant", None) is not None for layer in layers(inner))


def told(inner: Strategy, name: str, otherwise: str) -> str:
    """A setting of the innermost strategy that has it."""
    values = [str(value) for layer in layers(inner) if (value := getattr(layer, name, ""))]
    return values[-1] if values else otherwise


def averages(inner: Strategy) -> bool:
    """Whether replies are averaged by Flower's own code, and so must be alike: one record of each kind.

    A class that aggregates by itself may want other records, and is left to judge them.
    """
    for layer in layers(inner):
        for method in ("aggregate_train", "_check_and_log_replies"):
            makers = [kind for kind in type(layer).__mro__ if method in vars(kind)]
            if makers and not makers[0].__module__.startswith("flwr."):
                return False
    return bool(told(inner, "weighted_by_key", ""))


def check_kind(inner: Any) -> None:
    """Refuse what is no strategy of ``flwr.serverapp``, or one whose own loop would never run."""
    if isinstance(inner, type):
        raise ValueError(f"inner={inner.__name__}: this is a class; pass an instance, {inner.__name__}()")
    name = type(inner).__name__
    if hasattr(inner, "configure_fit"):
        raise ValueError(
            f"inner: {name} is a strategy of flwr.server, of another interface; "
            f"use one of flwr.serverapp.strategy, e.g. {name if name.startswith('Fed') else 'FedAvg'}"
        )
    if "SecAgg" in name or "Workflow" in name:
        raise ValueError(
            f"inner: {name} lets the server see sums of updates only, and an order needs each client's; use "
            "a strategy of flwr.serverapp.strategy without secure aggregation"
        )
    if not isinstance(inner, Strategy):
        raise ValueError(f"inner={shown(inner)}: pass a strategy of flwr.serverapp.strategy, e.g. FedAvg()")
    for layer in layers(inner):
        kind = type(layer).__name__
        if getattr(layer, "orders_clients", False):
            raise ValueError("inner: it orders clients itself; wrap the strategy that is inside, once")
        if hasattr(layer, "_make_sampling"):  # FedXgbCyclic
            raise ValueError(
                f"inner: {kind} takes one client after the other by itself; use it alone, or FedXgbBagging()"
            )
        if getattr(layer.start, "__func__", None) is not Strategy.start:  # a subclass's, or put on it
            raise ValueError(
                f"inner: {kind} has a start() of its own, which would never be called; move what it does to "
                "aggregate_train, configure_train or evaluate_fn, or into start() of a subclass of "
                "OrderedStrategy"
            )


def check_inner(layer: Any, cohort: int, clients: int | None) -> None:
    """Refuse settings under which the inner strategy would sample by itself, or wait for ever."""
    name, fraction = type(layer).__name__, getattr(layer, "fraction_train", 1.0)
    if fraction != 1.0:
        raise ValueError(
            f"inner: {name}(fraction_train={fraction}) would draw from the cohort at random; pass "
            f"fraction_train=1.0 (cohort={cohort} says how many clients train)"
        )
    for setting in ("min_train_nodes", "min_available_nodes"):
        least = getattr(layer, setting, 0)
        if least > cohort and not (cohort == 1 and least == 2):
            raise ValueError(
                f"inner: {name}({setting}={least}) would wait for ever in rounds of cohort={cohort}; pass "
                f"{setting}={cohort} (OrderedStrategy(clients={least}) waits for so many before it begins)"
            )
    sampled = getattr(layer, "num_sampled_clients", cohort)
    if sampled != cohort:
        raise ValueError(
            f"inner: {name}(num_sampled_clients={sampled}) in rounds of cohort={cohort}; pass {cohort}"
        )
    if clients is not None and getattr(layer, "accountant", None) is not None:
        check_whole(clients, cohort)


def check_whole(clients: int, cohort: int) -> None:
    """Refuse a federation whose last round would be short where a privacy accountant counts."""
    if clients % cohort:
        fitting = [size for size in range(1, clients + 1) if clients % size == 0]
        near = min(fitting, key=lambda size: abs(size - cohort))
        raise ValueError(
            f"cohort={cohort}, {clients} clients: the last round of an epoch would have {clients % cohort}, "
            f"and the privacy accountant takes whole cohorts only; pass cohort={near} and "
            f"num_sampled_clients={near}, or leave out the accountant"
        )
