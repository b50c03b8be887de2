"""The clients' data: who holds what, and its place on the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellorder._arguments import numbers, shown, whole_number
from wellorder._datasets.files import Dataset
from wellorder._datasets.natural import Text
from wellorder._datasets.partitions import Partition, by_client, partition_of_lists

MARGIN = 4
"""Pixels added on each side before a random crop."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """Inputs and labels of all clients, who holds what (a `Partition`, or a list each), a test set.

    Inputs are uint8 images (n, channels, height, width), normalised by ``mean`` and ``std``; or floats
    (n, …), which the model is given in the run's precision; or integers (n, …), such as tokens, which stay
    integers (int64).
    """

    inputs: npt.NDArray[Any] = field(repr=False)
    labels: npt.NDArray[Any] = field(repr=False)
    partition: Partition | Any = field(repr=False)
    test_inputs: npt.NDArray[Any] | None = field(default=None, repr=False)
    test_labels: npt.NDArray[Any] | None = field(default=None, repr=False)
    classes: int = 0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.partition, Partition):
            object.__setattr__(self, "partition", partition_of_lists("partition", self.partition))
        for name in ("inputs", "labels", "test_inputs", "test_labels"):
            self._check_array(name, getattr(self, name))
        whole_number("classes", self.classes, least=0)
        for name in ("mean", "std"):
            numbers(name, getattr(self, name), cure="pass one number for each channel")
        for name in ("inputs", "labels", "test_inputs", "test_labels"):
            values = getattr(self, name)
            if values is not None and np.asarray(values).dtype.kind == "f" and not np.isfinite(values).all():
                bad = int((~np.isfinite(np.asarray(values)).reshape(len(values), -1).all(axis=1)).argmax())
                raise ValueError(
                    f"{name}[{bad}] holds NaN or infinite numbers; fill them in, or leave such examples out"
                )
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"{len(self.inputs)} inputs but {len(self.labels)} labels; pass one label per input"
            )
        top = int(self.partition.examples.max())
        if top >= len(self.inputs):
            raise ValueError(
                f"partition names example {top}, but there are {len(self.inputs)}; partition these labels"
            )

    def _check_array(self, name: str, array: Any) -> None:
        if array is None and name.startswith("test_"):
            return
        rank = 2 if name.endswith("inputs") else 1
        good = isinstance(array, np.ndarray) and array.dtype.kind in "fiub" and array.ndim >= rank
        if not good or not array.size:
            raise ValueError(f"{name}={shown(array)}: pass a NumPy array of numbers, one entry an example")

    @property
    def images(self) -> bool:
        """Whether the inputs are images to be normalised (and perhaps cropped and flipped)."""
        return self.inputs.dtype == np.uint8 and self.inputs.ndim == 4


def federate(dataset: Dataset | Text, partition: Partition | None = None) -> ClientData:
    """Hand a data set's training examples to clients; its test set stays whole.

    A text may do without a partition: its owners are the clients.
    """
    if isinstance(dataset, Text):
        split = by_client(dataset.owners) if partition is None else partition
        return ClientData(
            dataset.train, dataset.train_labels, split, dataset.test, dataset.test_labels, dataset.classes
        )
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset={shown(dataset)}: pass a Dataset or a Text, such as mnist(folder)")
    if partition is None:
        raise ValueError(
            "partition=None: images do not say who holds them; pass one, e.g. label_shards(labels, 100)"
        )
    return ClientData(
        dataset.train_images, dataset.train_labels, partition, dataset.test_images, dataset.test_labels,
        dataset.classes, dataset.mean, dataset.std,
    )  # fmt: skip


def as_inputs(values: Tensor, dtype: torch.dtype) -> Tensor:
    """What a model takes that is no image: floats in the run's precision, integers (tokens) as int64."""
    return values.to(dtype if values.is_floating_point() else torch.int64)


class Store:
    """The data on a device: inputs are gathered, cropped, flipped and normalised there."""

    def __init__(self, data: ClientData, device: torch.device, dtype: torch.dtype, *, augment: bool) -> None:
        if augment and not data.images:
            raise ValueError("augment=True: only uint8 images can be cropped and flipped; pass augment=False")
        self.images, self.augment, self.dtype = data.images, augment, dtype
        inputs = torch.from_numpy(np.array(data.inputs))
        if self.images:
            inputs = inputs.permute(0, 2, 3, 1)
            self.side = tuple(inputs.shape[1:3])
            if augment:
                inputs = torch.nn.functional.pad(inputs, (0, 0, MARGIN, MARGIN, MARGIN, MARGIN))
            self.mean = torch.tensor(data.mean, dtype=dtype, device=device) * 255
            self.scale = 1 / (torch.tensor(data.std, dtype=dtype, device=device) * 255)
        else:
            inputs = as_inputs(inputs, dtype)
        self.inputs = inputs.contiguous().to(device)
        self.labels = torch.from_numpy(np.array(data.labels)).to(device)
        self.examples = torch.from_numpy(np.array(data.partition.examples)).to(device)
        self.starts = torch.from_numpy(np.array(data.partition.starts[:-1])).to(device)
        self.sizes = torch.from_numpy(np.array(data.partition.sizes)).to(device)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes as numbers of mean 0 and deviation 1, channel by channel (the last axis)."""
        return (pixels.to(self.dtype) - self.mean) * self.scale

    def plain(self, examples: Tensor) -> Tensor:
        """Training inputs as they are: neither cropped nor flipped; images channels last."""
        rows = self.inputs[examples]
        if not self.images:
            return rows
        if self.augment:
            rows = rows[..., MARGIN:-MARGIN, MARGIN:-MARGIN, :]
        return self.normalised(rows)

    def gather(self, examples: Tensor, codes: Tensor | None) -> Tensor:
        """Inputs of ``examples`` (…), images channels last; ``codes`` (…, 3) says how to crop and flip."""
        if codes is None:
            rows = self.inputs[examples]
            return self.normalised(rows) if self.images else rows
        high, wide = self.side
        full, across = self.inputs.shape[1:3]
        device = examples.device
        down = codes[..., 0, None] + torch.arange(high, device=device)
        right = torch.arange(wide, device=device)
        right = codes[..., 1, None] + torch.where(codes[..., 2, None] > 0, wide - 1 - right, right)
        pixel = (examples[..., None] * full + down)[..., None] * across + right[..., None, :]
        return self.normalised(self.inputs.view(-1, self.inputs.shape[3])[pixel])
