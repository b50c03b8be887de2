"""Whether the training loop lets an ordered loader learn: if not, a warning names the cause and the cure."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import Any

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook

from wellorder.torch._batch_record import BatchRecords

_NOTHING_OBSERVED = "an epoch was trained and no example of it was observed: {}. The order learns nothing; {}"
_SCALED = (
    "a GradScaler is in use that was not passed: its scale changes, and gradients of different scales make "
    "worse orders; call ordered(..., scaler=scaler)"
)
LOOKS = 64
"""Steps of an observed epoch in which a `GradScaler` is looked for."""
_LEFT_AT_ONCE = (
    "next(iter(loader)) opens a new epoch each time, and leaves it before its batch is used: most examples "
    "are never visited and nothing is observed. Iterate with `for`, or keep the iterator: batches = "
    "iter(loader), then next(batches) in each step"
)


class LoopWatch:
    """Watches what is done with the batches of ``model``'s observed epochs; no model, nothing to watch."""

    def __init__(self, records: BatchRecords, model: nn.Module | None, *, look_for_scaler: bool) -> None:
        self.records, self._model, self._look_for_scaler = records, model, look_for_scaler
        self._steps: OptimizerSteps | None = None
        self._heard, self._left_at_once, self._told = 0, 0, False

    def start(self) -> None:
        """An observed epoch comes: count the optimizers' steps."""
        if self._steps is None and self._model is not None:
            self._steps = OptimizerSteps(self._model, look_for_scaler=self._look_for_scaler)

    def stop(self) -> None:
        """The next epoch is not observed: no optimizer calls us."""
        if self._steps is not None:
            self._steps.remove()
        self._steps = None

    def count_from(self, heard: int) -> None:
        """Forget what was counted; ``heard`` gradients had come by now."""
        self._heard = heard
        self.records.passes = self.records.transformed_passes = 0
        if self._steps is not None:
            self._steps.count = 0
            self._look_for_scaler = self._steps.look_for_scaler

    def observed_epoch_ended(self, heard: int) -> bool:
        """Whether anything was trained; says so once if nothing of it was seen. ``heard`` gradients came."""
        count = 0 if self._steps is None else self._steps.count
        words = why_nothing_was_observed(self.records, count) if heard == self._heard else None
        trained = heard != self._heard or words is not None
        if self._left_at_once or self.records.warned:  # what comes of it was said, or will be
            words = None
        self.count_from(heard)
        if words is not None and not self._told:
            self._told = True
            warnings.warn(words, UserWarning, stacklevel=6)
        return trained

    def epoch_was_left(self, *, in_first_step: bool) -> None:
        """Say so if one epoch after the other is left at its first batch, before it is used."""
        latest = self.records.open_records[-1:]
        unused = bool(latest) and not (latest[0].used or latest[0].passes or latest[0].ignored)
        self._left_at_once = self._left_at_once + 1 if unused and in_first_step else 0
        if self._left_at_once == 2:
            warnings.warn(_LEFT_AT_ONCE, UserWarning, stacklevel=4)

    def all_drawn(self) -> None:
        """An observed epoch was visited to its end."""
        self._left_at_once = 0


def why_nothing_was_observed(records: BatchRecords, steps: int) -> str | None:
    """The cause of an epoch without signals, and the cure; None if nothing was trained either."""
    if records.transformed_passes:
        return _NOTHING_OBSERVED.format(
            "its gradients were taken by torch.func, whose transforms pass by the hooks",
            "use loss.backward(), or order by what is known before training (rows=)",
        )
    if records.passes:
        return _NOTHING_OBSERVED.format(
            f"the model was run {records.passes} times in training mode, and no gradient came back while its "
            "batch was the present one",
            "run loss.backward() before the next batch is drawn; if the model's layers were replaced since, "
            "call ordered(...) again; if these passes are for evaluation, use torch.no_grad()",
        )
    if steps:
        return _NOTHING_OBSERVED.format(
            "another copy of the model is trained than the one given to ordered(...), or its layers were "
            "replaced since, or a graph that was compiled before runs without the hooks",
            "call ordered(...) on the model that is trained",
        )
    return None


class OptimizerSteps:
    """Counts the steps of all optimizers: signs that training goes on, whether or not it is observed.

    With ``look_for_scaler``, warns once of a ``GradScaler`` that makes the steps of the ``model``.
    """

    def __init__(self, model: nn.Module, *, look_for_scaler: bool = False) -> None:
        self.count = 0
        self.look_for_scaler = look_for_scaler
        own, ours = weakref.ref(self), {id(p) for p in model.parameters()}

        def stepped(optimizer: Any, *_: Any) -> None:
            steps = own()
            if steps is not None:
                steps.count += 1
                look = steps.look_for_scaler and steps.count <= LOOKS
                if look and _called_by_a_scaler() and _holds_any(optimizer, ours):
                    steps.look_for_scaler = False
                    warnings.warn(_SCALED, UserWarning, stacklevel=2)

        handle = register_optimizer_step_post_hook(stepped)
        self.remove = weakref.finalize(self, handle.remove)


def _holds_any(optimizer: Any, ours: set[int]) -> bool:
    return any(id(p) in ours for group in optimizer.param_groups for p in group["params"])


def _called_by_a_scaler() -> bool:
    """Whether a ``GradScaler`` is among the callers: nothing else tells that a step is made by one."""
    frame = sys._getframe(1)
    for _ in range(24):
        if frame.f_code is GradScaler.step.__code__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
