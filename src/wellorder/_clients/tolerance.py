"""What a federation may do to us, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tolerance:
    """How to treat clients that are away, fail, or send nonsense.

    Parameters
    ----------
    patience
        Seconds to wait for clients that are away, once nobody else is left in the epoch (and, before the
        first epoch, for enough clients to begin). Then the epoch is closed; the missing come first in the
        next. Nobody waits again for a client that was missing in the epoch before.
    attempts
        How often an epoch may ask a client that fails or does not answer in time.
    fruitless
        After so many rounds in a row in which the model did not move, the run stops with an error.
    norm_cap
        Updates longer than this are bad.
    bad_updates
        ``"drop"`` updates that are NaN, infinite, of a wrong shape or too long, or ``"keep"`` them for the
        inner strategy. Either way they are reported, and never enter the balancing sum.
    poll
        Seconds between two looks at who is connected, while waiting.
    """

    patience: float = 60.0
    attempts: int = 2
    fruitless: int = 10
    norm_cap: float = math.inf
    bad_updates: Literal["drop", "keep"] = "drop"
    poll: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("patience", 0.0), ("attempts", 1), ("fruitless", 1), ("poll", 0.01)):
            if not getattr(self, name) >= least:
                raise ValueError(f"{name}={getattr(self, name)!r}: pass {least} or more")
        if not self.norm_cap > 0:
            raise ValueError(f"norm_cap={self.norm_cap!r}: pass a positive number, or math.inf for no cap")
        if self.bad_updates not in ("drop", "keep"):
            raise ValueError(f"bad_updates={self.bad_updates!r}: pass 'drop' or 'keep'")
