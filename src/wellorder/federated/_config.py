"""The settings of a simulation, checked before anything is computed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from wellorder._arguments import flag, one_of, path_of, real_number, shown, whole_number
from wellorder._clients.availability import Always, Availability, availability_of
from wellorder._order import Policy, describe, policy_of


@dataclass(frozen=True)
class Config:
    """How a federated run goes.

    Parameters
    ----------
    step_size, epochs, seed
        γ, Q, and the seed of all randomness.
    cohort, local_steps, server_step
        S clients a round, K local steps each, and the amplification η at the epoch's end.
    batch
        Examples of a local mini-batch; None takes all of a client's data at each step.
    clip
        Longest gradient of a local step; 0 does not clip.
    augment
        Random crop (4 pixels of margin) and horizontal flip.
    weighting
        A round's mean is weighted by the clients' "size", or "equal".
    availability
        Who can be reached when: `Always`, `Diurnal`, `DropOut` or `Trace`.
    local
        A policy for the order of each client's own mini-batches; None reshuffles them at every pass.
    sketch
        Balance sketches of so many numbers (a power of two) instead of whole pseudo-gradients; 0: whole.
    evaluate, looks, train_sample
        Evaluate after every so many epochs (0: never), or ``looks`` times in each, evenly, the last time at
        its end; on so many training examples (0: all).
    device, precision
        "cpu" or "cuda"; "float64", "float32", "tf32" or "bf16".
    mode, graph
        "auto", or how clients are trained: "loop", "stacked", "vmap"; whether CUDA replays a captured round.
    checkpoint, checkpoint_every, checkpoint_seconds
        A file written after every so many epochs, and inside an epoch when so many seconds have passed since;
        a run with the same settings goes on from it.
    """

    step_size: float
    epochs: int
    seed: int = 0
    cohort: int = 10
    local_steps: int = 5
    server_step: float = 1.0
    batch: int | None = 16
    clip: float = 0.0
    augment: bool = False
    weighting: Literal["size", "equal"] = "size"
    availability: Availability = field(default_factory=Always)
    local: Policy[Any] | None = None
    sketch: int = 0
    evaluate: int = 1
    looks: int = 1
    train_sample: int = 0
    device: str = "cpu"
    precision: Literal["float64", "float32", "tf32", "bf16"] = "float32"
    mode: Literal["auto", "loop", "stacked", "vmap"] = "auto"
    graph: bool = True
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 1
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("step_size", "server_step"):
            real_number(name, getattr(self, name), above=0)
        for name in ("epochs", "cohort", "local_steps", "looks", "checkpoint_every"):
            whole_number(name, getattr(self, name), least=1)
        for name in ("seed", "evaluate", "train_sample", "sketch"):
            whole_number(name, getattr(self, name), least=0)
        if self.batch is not None:
            whole_number("batch", self.batch, least=1)
        for name in ("clip", "checkpoint_seconds"):
            real_number(name, getattr(self, name), least=0)
        one_of("weighting", self.weighting, ("size", "equal"))
        one_of("precision", self.precision, ("float64", "float32", "tf32", "bf16"))
        one_of("mode", self.mode, ("auto", "loop", "stacked", "vmap"))
        for name in ("augment", "graph"):
            flag(name, getattr(self, name))
        availability_of(self.availability)
        if self.local is not None:
            policy_of(self.local, "local")
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device={shown(self.device)}: pass 'cpu', 'cuda' or such as 'cuda:1'")
        if self.checkpoint is not None:
            path_of("checkpoint", self.checkpoint)
        if self.looks > 1 and self.evaluate != 1:
            raise ValueError(
                f"looks={self.looks}, evaluate={self.evaluate}: pass evaluate=1 to look inside epochs"
            )
        if self.sketch & (self.sketch - 1) or self.sketch > 2048:
            raise ValueError(f"sketch={self.sketch}: pass a power of two up to 2048, or 0 for whole signals")

    def shared(self) -> Config:
        """The part that runs must have in common to be computed together."""
        return replace(self, seed=0, step_size=1.0, sketch=0)

    def text(self) -> str:
        """All that decides a run's numbers, in one line; where it computes is left out."""
        skipped = {"checkpoint", "checkpoint_every", "checkpoint_seconds", "graph", "device", "availability"}
        told = [f"{f.name}={describe(getattr(self, f.name))}" for f in fields(self) if f.name not in skipped]
        # A trace decides by what is in its file, not by where that lies.
        rule: Any = self.availability
        return ", ".join(
            [*told, f"availability={rule.content() if hasattr(rule, 'content') else describe(rule)}"]
        )


def paper_config(step_size: float, rounds: int = 20_000, *, clients: int = 1000, **changes: Any) -> Config:
    """The settings of the paper's CIFAR experiments: S=10, K=5, batch 16, η=1.

    Clipping at 10, crop and flip come from its published code (github.com/liyipeng00/ordering).

    >>> from wellorder.federated import paper_config
    >>> paper_config(0.1).epochs
    200
    """
    cohort = whole_number("cohort", changes.pop("cohort", 10), least=1)
    whole_number("rounds", rounds, least=1)
    whole_number("clients", clients, least=1)
    each = -(-clients // cohort)
    return Config(
        step_size, max(1, rounds // each), cohort=cohort, **{"clip": 10.0, "augment": True, **changes}
    )
