"""Data to train a network on: tensors, a data set or a loader, and what of them is known before training."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from wellorder._arguments import shown
from wellorder.torch._validation import check_loader

LOOK = 256
"""So many examples of a data set go into a fingerprint, and of tensors so many at a time."""
AT_ONCE = 1024
"""Examples that are measured together, at least."""
CURE = "pass (x, y), a map-style Dataset, a DataLoader, or a function of no arguments that gives one of them"
KEPT = ("num_workers", "pin_memory", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
        "persistent_workers", "timeout")  # fmt: skip
"""Settings of a loader that every loader made from it has, too."""


@dataclass(frozen=True, eq=False)
class Examples:
    """A map-style data set, the loader that makes its batches, and what is known of all examples at once."""

    loader: DataLoader[Any]
    inputs: Any = None
    labels: Any = None

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]

    @property
    def batch_size(self) -> int:
        return int(self.loader.batch_size or 1)

    @property
    def knows(self) -> tuple[str, ...]:
        """What is known before training: "labels", "inputs"."""
        known = {"labels": self.labels, "inputs": self.inputs}
        return tuple(name for name, values in known.items() if values is not None)

    def to(self, device: str) -> Examples:
        """The same, where tensors that are held whole lie on a device."""
        gather = self.loader.collate_fn
        if not isinstance(gather, Gather):
            return self
        moved = Gather(gather.x.to(device), gather.y.to(device))
        return replace(self, loader=_loader(self.loader.dataset, self.batch_size, collate_fn=moved))

    def part(self, places: Any) -> Examples:
        """Some of the examples."""
        chosen = torch.as_tensor(places)
        inputs, labels = (None if v is None else v[chosen] for v in (self.inputs, self.labels))
        gather: Any = self.loader.collate_fn
        if isinstance(gather, Gather):
            gather = Gather(gather.x[chosen], gather.y[chosen])
            return Examples(_loader(Places(len(chosen)), self.batch_size, collate_fn=gather), inputs, labels)
        some: Any = Subset(self.loader.dataset, chosen.tolist())
        return Examples(rebuilt(self.loader, dataset=some, shuffle=True), inputs, labels)

    def batches(self) -> Iterator[tuple[Any, int]]:
        """All examples as they are stored, in large batches, each with the number of its examples."""
        size, left = max(self.batch_size, AT_ONCE), len(self)
        generator = torch.Generator()  # the seeds of workers come from there, and from nowhere else
        for batch in rebuilt(
            self.loader, batch_size=size, shuffle=False, drop_last=False, generator=generator
        ):
            count = min(size, left)
            left -= count
            yield batch, count

    def first_batch(self) -> Any:
        """The first examples, as a batch."""
        places = range(min(len(self), self.batch_size))
        dataset: Any = self.loader.dataset
        return self.loader.collate_fn([dataset[place] for place in places])

    def checksum(self) -> str:
        """A checksum of the inputs and labels that are known; else of a look at some examples."""
        dataset: Any = self.loader.dataset
        n = len(self)
        found = zlib.crc32(str(n).encode())
        if self.inputs is not None:
            for at in range(0, n, LOOK):
                found = _checksum(self.inputs[at : at + LOOK], found)
        else:
            for place in range(0, n, max(1, n // LOOK)):
                found = _checksum(dataset[place], found)
        return f"{_checksum(self.labels, found):08x}"


def examples_of(name: str, data: Any, batch_size: int, *, workers: int = 0, collate: Any = None) -> Examples:
    """Take what users call data; refuses, by argument, what cannot be visited in another order."""
    if callable(data) and not hasattr(data, "__getitem__") and not isinstance(data, DataLoader):
        data = data()
    if isinstance(data, DataLoader):
        try:
            check_loader(data)  # random orders, too: its own sampler would give way to theirs in silence
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return Examples(data, *_known(data.dataset))
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(p, "__len__") for p in data):
        x, y = _tensor(f"{name}[0]", data[0]), _tensor(f"{name}[1]", data[1])
        if len(x) != len(y):
            raise ValueError(f"{name}: {len(x)} inputs and {len(y)} labels; pass one label for each input")
        if not len(x):
            raise ValueError(f"{name} is empty; pass at least one example")
        return Examples(_loader(Places(len(x)), batch_size, collate_fn=Gather(x, y)), x, y)
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ValueError(f"{name}={shown(data)}: {CURE}")
    if isinstance(data, str | bytes | Mapping | Tensor | np.ndarray | tuple | list | range):
        raise ValueError(f"{name}={shown(data)}: {CURE}")
    if not len(data):
        raise ValueError(f"{name} is empty; pass at least one example")
    made = DataLoader(data, batch_size, shuffle=True, num_workers=workers, collate_fn=collate)
    return Examples(made, *_known(data))


def rebuilt(loader: DataLoader[Any], **other: Any) -> DataLoader[Any]:
    """A loader like another, with some settings changed."""
    settings = {name: getattr(loader, name) for name in KEPT}
    settings |= {"dataset": loader.dataset, "batch_size": loader.batch_size, "drop_last": loader.drop_last,
                 "collate_fn": loader.collate_fn, "persistent_workers": False}  # fmt: skip
    return DataLoader(**(settings | other))


def on_device(batch: Any, device: str) -> Any:
    """A batch whose tensors are on a device, whatever holds them."""
    if isinstance(batch, Tensor) or (hasattr(batch, "to") and not isinstance(batch, type)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: on_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(part, device) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(on_device(part, device) for part in batch)
    return batch


@contextmanager
def aside(device: str, seed: int = 0) -> Iterator[None]:
    """Random numbers drawn inside are the seed's, and none of the training's, of torch, NumPy and Python."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng([torch.device(device)] if device.startswith("cuda") else []):
        seed_everything(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002  (what augmentations may draw from)
            random.setstate(python_state)


def seed_everything(seed: int) -> None:
    """Seed torch, NumPy and Python, from all of which models and augmentations may draw."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


class Places(Dataset[int]):
    """Examples as their own numbers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        """A whole batch of numbers, as it is."""
        return indices


class Gather:
    """Turn the numbers of a batch into its inputs and labels, in one go where these lie."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __call__(self, places: list[int]) -> tuple[Tensor, Tensor]:
        where = torch.tensor(places).to(self.x.device, non_blocking=True)
        return self.x[where], self.y[where]


def _loader(dataset: Any, batch_size: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size, shuffle=True, **more)


def _tensor(name: str, values: Any) -> Tensor:
    """A tensor as networks take it: NumPy's and Python's floats in torch's default precision."""
    if isinstance(values, Tensor):
        if not values.ndim or values.layout is not torch.strided or values.device.type == "meta":
            raise ValueError(f"{name}={shown(values)}: pass a dense tensor, one example after the other")
        return values.detach()
    try:
        found = torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name}={shown(values)}: pass a tensor or an array of numbers ({error})") from error
    if not found.ndim:
        raise ValueError(f"{name}={shown(values)}: pass one row for each example")
    if found.is_floating_point():
        return found.to(torch.get_default_dtype())
    return found if found.dtype in (torch.bool, torch.uint8) else found.long()


def _known(dataset: Any) -> tuple[Any, Any]:
    """Inputs and labels of all examples, as far as a data set has them at hand."""
    if isinstance(dataset, Subset):
        chosen = torch.as_tensor(list(dataset.indices))
        inputs, labels = _known(dataset.dataset)
        return None if inputs is None else inputs[chosen], None if labels is None else labels[chosen]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors if len(dataset.tensors) == 2 else (None, None)
    for name in ("targets", "labels"):  # as torchvision's data sets have them
        held = getattr(dataset, name, None)
        if held is not None and hasattr(held, "__len__") and len(held) == len(dataset):
            try:
                labels = torch.as_tensor(held)
            except (TypeError, ValueError, RuntimeError):
                continue
            if labels.ndim == 1:
                return None, labels
    return None, None


def _checksum(value: Any, before: int) -> int:
    """Of anything that holds numbers; floats are rounded, for last bits may differ elsewhere."""
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            before = _checksum(value[name], zlib.crc32(str(name).encode(), before))
        return before
    if isinstance(value, tuple | list) and not all(isinstance(part, int | float) for part in value):
        for part in value:
            before = _checksum(part, before)
        return before
    if isinstance(value, str | bytes) or value is None:
        return zlib.crc32(repr(value).encode(), before)
    try:
        array = np.asarray(value.detach().cpu().float() if _is_float(value) else value)
    except (TypeError, ValueError, RuntimeError):
        return zlib.crc32(type(value).__name__.encode(), before)
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            scale = float(np.abs(array).max(initial=0)) or 1.0
            array = np.nan_to_num(array / scale * 1e4).round().astype(np.int64)
    if array.dtype.kind not in "biu":
        return zlib.crc32(type(value).__name__.encode(), before)
    return zlib.crc32(np.ascontiguousarray(array.astype(np.int64)).tobytes(), before)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
