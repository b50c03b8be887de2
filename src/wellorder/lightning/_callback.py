"""A callback for Lightning: the order survives checkpoints and reloaded loaders; metrics are logged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback

from wellorder.torch import OrderedLoader


class OrderCallback(Callback):  # type: ignore[misc]
    """Keeps the order of ordered training loaders, and logs their ``metrics()`` at each epoch's end.

    Lightning puts the state of loaders into its checkpoints, but reads it only where it goes on in mid-epoch;
    this reads it also after an epoch's end. With several ranks, what each saw goes into the checkpoint. Where
    loaders are made anew (``reload_dataloaders_every_n_epochs``), a new one goes on with the old one's order.

    Parameters
    ----------
    log
        Whether to log.

    >>> from lightning.pytorch import Trainer
    >>> from wellorder.lightning import OrderCallback
    >>> trainer = Trainer(callbacks=[OrderCallback()], logger=False, accelerator="cpu")
    """

    def __init__(self, *, log: bool = True) -> None:
        self.log = log
        self._loaders: list[OrderedLoader] = []
        self._states: list[Mapping[str, Any]] = []

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        found = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
        self._states = [state for state in found.get("combined_loader", []) if _is_ours(state)]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._loaders = list(_ordered_in(trainer.train_dataloader))
        if not self._loaders and not trainer.overfit_batches:
            warnings.warn(
                "OrderCallback: no training loader is an ordered one; pass ordered(loader, module) to "
                "trainer.fit, or return it from train_dataloader()",
                stacklevel=2,
            )
        for loader in self._loaders:
            loader._saved_once = True
        if len(self._states) == len(self._loaders):
            for loader, state in zip(self._loaders, self._states, strict=True):
                loader.load_state_dict(state)
        elif self._states:
            raise ValueError(
                f"the checkpoint has the orders of {len(self._states)} loaders, and there are "
                f"{len(self._loaders)} now; give trainer.fit the loaders that it was saved with"
            )
        self._states = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        before, self._loaders = self._loaders, list(_ordered_in(trainer.train_dataloader))
        for old, new in zip(before, self._loaders, strict=False):
            if old is not new:
                new._saved_once = True
                _hand_over(old, new)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if self.log:
            for number, loader in enumerate(self._loaders):
                end = f"/{number}" if len(self._loaders) > 1 else ""
                pl_module.log_dict({name + end: value for name, value in loader.metrics().items()})

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        self._loaders = []


def _hand_over(old: OrderedLoader, new: OrderedLoader) -> None:
    """Let a loader that was made anew go on with the order of the one before."""
    state = old.state_dict()
    old.remove()
    try:
        new.load_state_dict(state)
    except ValueError as error:
        warnings.warn(f"a new training loader begins a new order: {error}", stacklevel=2)


def _is_ours(state: Any) -> bool:
    return isinstance(state, Mapping) and "policy" in state and "loader" in state


def _ordered_in(loaders: Any) -> Iterator[OrderedLoader]:
    """The ordered loaders among those of a trainer, which may be a loader, or lists and dicts of them."""
    if isinstance(loaders, OrderedLoader):
        yield loaders
    elif isinstance(loaders, Mapping):
        for each in loaders.values():
            yield from _ordered_in(each)
    elif isinstance(loaders, list | tuple):
        for each in loaders:
            yield from _ordered_in(each)
    elif hasattr(loaders, "iterables"):  # a CombinedLoader
        yield from _ordered_in(loaders.iterables)
