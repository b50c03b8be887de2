"""A mixin for the Hugging Face Trainer: it orders the training data, saves the state, logs the metrics."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from wellorder._saving import write_whole
from wellorder.torch import MicroBatch, OrderedLoader, ordered

STATE = "wellorder.pt"
"""The file in a checkpoint's folder."""
OPTIONS = ("policy", "rows", "observe", "signals", "seed", "scaler")


class Ordered:
    """Put before a ``Trainer`` class, it orders the training examples: ``class Mine(Ordered, SFTTrainer)``.

    All else stays the Trainer's: batch size, collator, workers, accumulation, precision. Its checkpoints hold
    the order's state, from which it goes on exactly; its logs hold ``metrics()``, new in each epoch.

    Parameters
    ----------
    ordering
        Options of `wellorder.torch.ordered`, as a dict: ``{"rows": rows, "observe": 2}``. The seed is the
        Trainer's ``data_seed``, or else its ``seed``, unless given. All other arguments are the Trainer's.

    >>> from wellorder.transformers import Ordered
    >>> from transformers import Trainer
    >>> class Mine(Ordered, Trainer):
    ...     pass
    """

    def __init__(self, *args: Any, ordering: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        unknown = [name for name in ordering or {} if name not in OPTIONS]
        if unknown:
            raise ValueError(f"ordering={{{unknown[0]!r}: …}}: pass any of {', '.join(OPTIONS)}")
        super().__init__(*args, **kwargs)
        self._ordering = dict(ordering or {})
        self._checkpoint: str | None = None
        self._shown: tuple[int, dict[str, float]] = (-1, {})
        this: Any = self
        _check_arguments(this.args)
        this.add_callback(_SaveOrder(this))

    @property
    def ordered_loader(self) -> OrderedLoader | None:
        """The loader of the present or last training, None before: ask for its ``report()``."""
        this: Any = self
        found = this.callback_handler.train_dataloader
        found = found.loader if isinstance(found, _SkippedTo) else found
        return found if isinstance(found, OrderedLoader) else None

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does; a checkpoint's order is gone on with."""
        this: Any = self
        found = resume_from_checkpoint
        self._checkpoint = get_last_checkpoint(this.args.output_dir) if found is True else found or None
        parent: Any = super()
        return parent.train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """The Trainer's loader, in a better order."""
        trainer: Any = self
        parent: Any = super()
        options = {"seed": _seed(trainer.args), **self._ordering}
        loader = ordered(parent.get_train_dataloader(), trainer.model, **options)
        loader._saved_once = True
        accumulation = trainer.args.gradient_accumulation_steps
        if isinstance(loader.spec, MicroBatch) and accumulation > 1:
            raise ValueError(
                f"gradient_accumulation_steps={accumulation} draws as many batches ahead, whose gradients "
                'signals="batch" cannot tell apart; use signals="sketch", or gradient_accumulation_steps=1'
            )
        if self._checkpoint is None:
            return loader
        _go_on(loader, Path(self._checkpoint), accumulation)
        if trainer.args.ignore_data_skip:
            loader._resumed = False  # the epoch begins anew
        return _SkippedTo(loader)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the Trainer does, with the order's metrics beside the training loss."""
        loader = self.ordered_loader
        if loader is not None and "loss" in logs:
            if self._shown[0] != loader.epoch:  # some of them take a while
                self._shown = (loader.epoch, loader.metrics())
            logs = {**logs, **self._shown[1]}
        parent: Any = super()
        parent.log(logs, *args, **kwargs)


class OrderedTrainer(Ordered, Trainer):  # type: ignore[misc]
    """The Hugging Face ``Trainer`` with ordered training examples; ``ordering=`` is the only new argument.

    >>> from wellorder.transformers import OrderedTrainer as Trainer
    """


class _SaveOrder(TrainerCallback):  # type: ignore[misc]
    """Puts the order's state into every checkpoint. Called on all ranks; one writes."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        loader = self._trainer.ordered_loader
        if loader is None:
            return
        found = loader.state_dict()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if not args.should_save:
            return
        if not folder.is_dir():
            warnings.warn(
                f"{folder} is not there (a hyperparameter search?): the order's state is not saved",
                stacklevel=2,
            )
            return
        write_whole(folder / STATE, lambda beside: torch.save(found, beside))


class _SkippedTo:
    """A loader whose state was loaded, for ``skip_first_batches``: what that leaves is the loader's own.

    That function makes a DataLoader of a loader's data set, batch sampler and collate. Here the data set has
    batches, by their step, and they are drawn through the ordered loader, which observes them.
    """

    sampler = worker_init_fn = multiprocessing_context = generator = prefetch_factor = None
    num_workers = timeout = 0
    pin_memory = persistent_workers = False
    pin_memory_device, in_order = "", True

    def __init__(self, loader: OrderedLoader) -> None:
        self.loader = loader
        self.dataset = _BatchByStep(loader)

    @property
    def batch_sampler(self) -> list[list[int]]:
        return [[step] for step in range(len(self.loader))]

    @staticmethod
    def collate_fn(batches: list[Any]) -> Any:
        return batches[0]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _BatchByStep:
    """The epoch's batches that are left, by their step; the length is the data set's, to be logged."""

    def __init__(self, loader: OrderedLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        data: Any = self._loader.dataset
        return len(data)

    def __getitem__(self, step: int) -> Any:
        if self._batches is None:
            self._batches = iter(self._loader)
        batch = next(self._batches)
        if self._loader._step != step + 1:
            raise ValueError(
                f"the checkpoint's order goes on at batch {self._loader._step - 1}, and the Trainer at batch "
                f"{step}; resume with the gradient_accumulation_steps that it was saved with"
            )
        return batch


def _go_on(loader: OrderedLoader, checkpoint: Path, accumulation: int) -> None:
    """Bring a new loader to where a checkpoint was saved."""
    if (checkpoint / STATE).exists():
        loader.load_state_dict(torch.load(checkpoint / STATE, map_location="cpu", weights_only=True))
        return
    done = json.loads((checkpoint / "trainer_state.json").read_text())["global_step"]
    epochs, updates = divmod(int(done), -(-len(loader) // accumulation))
    loader._go_to(epochs, updates * accumulation)
    warnings.warn(
        f"{checkpoint} has no {STATE}: it was saved without wellorder, and the order begins knowing nothing",
        stacklevel=4,
    )


def _seed(args: Any) -> int:
    return int(args.seed if args.data_seed is None else args.data_seed)


def _check_arguments(args: Any) -> None:
    """Refuse ways to choose examples that contradict an order."""
    strategy = getattr(args, "train_sampling_strategy", None)
    if getattr(args, "group_by_length", False):
        strategy = "group_by_length"
    if strategy in ("group_by_length", "batch_rebalance"):
        raise ValueError(
            f"{strategy} chooses each batch's examples by their lengths, and so does the order by their "
            'gradients; leave it out (train_sampling_strategy="random"), or use the plain Trainer'
        )
