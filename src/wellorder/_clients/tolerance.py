"""What a federation may do to us, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from wellorder._arguments import is_real, one_of, real_number, shown, whole_number


@dataclass(frozen=True)
class Tolerance:
    """How to treat clients that are away, fail, or send nonsense.

    Parameters
    ----------
    patience
        Seconds to wait for clients that are away, once those who are left in the epoch fill no round (and,
        before the first epoch, for enough clients to begin). Then the epoch is closed; whoever is left comes
        first in the next. Nobody waits again for a client that was missing in the epoch before.
    attempts
        How often an epoch may ask a client that fails or does not answer in time. It is asked again only
        where it does not train almost alone; at an epoch's end it is put off to the next.
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
        if self.patience is not math.inf:
            real_number("patience", self.patience, least=0)
        real_number("poll", self.poll, least=0.01)
        for name in ("attempts", "fruitless"):
            whole_number(name, getattr(self, name), least=1)
        if not (is_real(self.norm_cap) and self.norm_cap > 0) and self.norm_cap is not math.inf:
            raise ValueError(
                f"norm_cap={shown(self.norm_cap)}: pass a positive number, or math.inf for no cap"
            )
        one_of("bad_updates", self.bad_updates, ("drop", "keep"))
