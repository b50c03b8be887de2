"""Settings that cannot work are refused before a run begins, with the cure."""

from __future__ import annotations

from typing import Any

import numpy as np

from wellorder._order import Policy, units_of
from wellorder.policies import WithReplacement


def check_settings(
    policy: Policy[Any], cohort: int, seed: int, server_step: float, clients: int | None
) -> None:
    """Refuse a policy or numbers with which no federation can run."""
    units_of(1, seed)  # refuses a seed that is none
    for name, count in (("cohort", cohort), ("clients", 1 if clients is None else clients)):
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name}={count!r}: pass a number of clients, an int >= 1")
    if not (np.isfinite(server_step) and server_step > 0):
        raise ValueError(f"server_step={server_step!r}: pass a positive number; 1.0 does not amplify")
    if policy.needs.at_start(0):
        raise ValueError(
            f"policy={policy!r} needs every client's gradient before an epoch begins, which a federation has "
            "not; use PairGraB() or GraB()"
        )
    if isinstance(policy, WithReplacement):
        raise ValueError(f"policy={policy!r} visits clients twice in an epoch; use RandomReshuffling()")


def check_words(**settings: tuple[str, ...]) -> None:
    """Refuse a setting (the first of each tuple) that is not among the words it may be (the others)."""
    for name, (value, *words) in settings.items():
        if value not in words:
            raise ValueError(f"{name}={value!r}: pass {' or '.join(map(repr, words))}")


def check_inner(layer: Any, cohort: int) -> None:
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
