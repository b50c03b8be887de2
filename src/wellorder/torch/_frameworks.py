"""Loaders that other software made or takes over: Accelerate's, torchdata's, Lightning's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

KEPT = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
    "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip
"""What the given loader decides about how batches are fetched."""


class PlainWhenCalled:
    """A class that makes torch's own kind when it is called, and its own objects by `_made` alone.

    To train in another order than a loader's, trainers call the classes of what they have with the arguments
    of torch's: ``type(loader)(dataset, …)``, ``type(loader.batch_sampler)(sampler, batch_size, drop_last)``.
    (Lightning's ``overfit_batches`` does so, which takes the first batches as they are stored.) They ask for
    a loader of the usual kind then, and get one. Lightning reads from ``__init__`` which arguments there are,
    so that must stay torch's, and what other classes do there is done in `_begin`.
    """

    _plain: ClassVar[type]
    """Torch's own kind."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._plain(*args, **kwargs)

    @classmethod
    def _made(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = object.__new__(cls)
        made._begin(*args, **kwargs)
        return made


class Delivery:
    """What Accelerate does with batches: it places them, and notes when a loader is at its end."""

    def __init__(self, device: Any, *, non_blocking: bool = False, rng_types: Any = None) -> None:
        from accelerate.state import GradientState

        self.device, self.non_blocking = device, non_blocking
        self.rng_types = [kind for kind in rng_types or () if getattr(kind, "value", kind) != "generator"]
        self._gradients = GradientState()

    def placed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The numbered batches, on the device."""
        from accelerate.utils import send_to_device

        if self.device is None:
            return batches

        def place(drawn: Any) -> Any:
            return drawn[0], send_to_device(drawn[1], self.device, non_blocking=self.non_blocking)

        return map(place, batches)  # a generator would end at the data set's first error

    def begin(self, loader: Any) -> None:
        """An epoch begins: gradients are synchronised at this loader's end."""
        from accelerate.utils import synchronize_rng_states

        if self.rng_types:
            synchronize_rng_states(self.rng_types, None)
        self._gradients._add_dataloader(loader)

    def end(self, loader: Any) -> None:
        """The epoch is over, or was left."""
        self._gradients._remove_dataloader(loader)


class Prepared:
    """What an ordered loader shows to Accelerate, whose ``prepare`` then returns it as it is."""

    _delivery: Delivery | None = None
    _saved_once: bool = False
    """Whether one state is saved for all ranks, and all ask for it: then it holds what any of them saw."""

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether nothing is left to prepare. It is ``Accelerator.prepare`` who asks: that is when we do it.

        If a later version asks elsewhere, it makes a loader of its own from our batch sampler, and there is
        the warning that another DataLoader draws our batches.
        """
        asking = sys._getframe(1)
        accelerator = asking.f_locals.get("self")
        if asking.f_code.co_name == "prepare_data_loader" and hasattr(accelerator, "dataloader_config"):
            self._prepare(accelerator, asking.f_locals.get("device_placement"))
        return self._delivery is not None

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        """Accelerate marks what it prepared."""

    def _prepare(self, accelerator: Any, placement: bool | None) -> None:
        _check_settings(
            accelerator.num_processes,
            split_batches=accelerator.split_batches,
            dispatch_batches=accelerator.dispatch_batches,
            even_batches=accelerator.even_batches,
        )
        placed = accelerator.device_placement if placement is None else placement
        self._delivery = Delivery(
            accelerator.device if placed else None,
            non_blocking=accelerator.non_blocking,
            rng_types=accelerator.rng_types,
        )
        self._saved_once = True
        if not any(known is self for known in accelerator._custom_objects):
            accelerator.register_for_checkpointing(self)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that was given out last is the epoch's last; Accelerate steps there."""
        this: Any = self
        return bool(this._step >= len(this._batching))

    @property
    def remainder(self) -> int:
        """How many examples of the last global batch are not repeated ones; -1 if all are."""
        this: Any = self
        total = this._batching.size * getattr(getattr(this._batching, "share", None), "of", 1)
        return -1 if this.drop_last else int(this._batching.n % total)


def skipping_asks() -> bool:
    """Whether the caller is called by the batch sampler that ``accelerate.skip_first_batches`` makes."""
    frame = sys._getframe(2)
    sampler: Any = getattr(sys.modules.get("accelerate.data_loader"), "SkipBatchSampler", None)
    codes = [] if sampler is None else [sampler.__iter__.__code__, sampler.__len__.__code__]
    return any(frame.f_code is code for code in codes)


def _check_settings(
    processes: int, *, split_batches: bool, dispatch_batches: bool | None, even_batches: bool
) -> None:
    """Refuse ways to cut and send batches that an order would not survive."""
    if processes == 1:
        return
    if split_batches:
        raise ValueError(
            f"split_batches=True: an ordered loader gives each of {processes} processes whole batches; leave "
            f"it out, and divide the DataLoader's batch_size by {processes}"
        )
    if dispatch_batches:
        raise ValueError(
            "dispatch_batches=True sends all batches from one process; leave it out: each process reads its "
            "own part of the order"
        )
    if not even_batches:
        raise ValueError(
            "even_batches=False: an ordered loader gives all processes as many batches, as "
            "DistributedSampler does; leave it out, or use drop_last=True"
        )


def opened_up(loader: Any) -> tuple[Any, Delivery | None]:
    """The plain loader that another kind stands for, and what Accelerate would do with its batches."""
    kind, home = type(loader).__name__, type(loader).__module__
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return loader, None  # refused by that name, whatever Accelerate makes of it
    if home == "accelerate.data_loader":
        return _of_accelerate(loader, kind)
    if home.startswith("torchdata.") and kind == "StatefulDataLoader":
        if loader.next_iter_state is not None:
            raise ValueError(
                "loader=StatefulDataLoader has a state loaded, which says where its own order goes on; give "
                "a new one to ordered(...), and load the ordered loader's own state_dict()"
            )
        return _plain(loader, loader.batch_sampler), None
    if home.startswith("lightning.") and kind == "_FabricDataLoader":
        raise ValueError(
            "loader=_FabricDataLoader: order first, then set it up: "
            "fabric.setup_dataloaders(ordered(loader, model))"
        )
    return loader, None


def unwrapped(model: Any) -> Any:
    """The module in Fabric's wrapper, which adds to its parameters' names; others as they are."""
    kind = type(model)
    return model.module if kind.__name__ == "_FabricModule" and "fabric" in kind.__module__ else model


def _of_accelerate(loader: Any, kind: str) -> tuple[Any, Delivery]:
    sampler = loader.batch_sampler
    shards = getattr(sampler, "num_processes", 1)
    if kind == "DataLoaderDispatcher":
        _check_settings(2, split_batches=False, dispatch_batches=True, even_batches=True)
    if kind != "DataLoaderShard":
        raise ValueError(
            f"loader={kind}: order first, then let Accelerate prepare: prepare(ordered(loader, model))"
        )
    _check_settings(
        shards,
        split_batches=getattr(sampler, "split_batches", False),
        dispatch_batches=False,
        even_batches=getattr(sampler, "even_batches", True),
    )
    inner = sampler.batch_sampler if type(sampler).__name__ == "BatchSamplerShard" else sampler
    delivery = Delivery(loader.device, non_blocking=loader._non_blocking, rng_types=loader.rng_types)
    return _plain(loader, inner), delivery


def _plain(loader: Any, batches: Any) -> Any:
    """A plain loader with the settings of another; a sampler that only shuffles is torch's own there."""
    if not hasattr(batches, "sampler") or not isinstance(batches, BatchSampler):
        return DataLoader(loader.dataset, batch_sampler=batches)  # which is refused by its name
    sampler: Any = batches.sampler
    if type(sampler).__name__ in ("RandomSampler", "SeedableRandomSampler"):
        whole = not sampler.replacement and sampler.num_samples == len(loader.dataset)
        sampler = RandomSampler(loader.dataset) if whole else sampler
    elif type(sampler).__name__ == "SequentialSampler":
        sampler = SequentialSampler(loader.dataset)
    settings = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
    return DataLoader(
        loader.dataset,
        batch_size=batches.batch_size,
        sampler=sampler,
        drop_last=batches.drop_last,
        collate_fn=loader.collate_fn,
        generator=loader.generator,
        **settings,
    )
