"""Loss and accuracy of a server's parameters."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from wellorder._arguments import instance_of
from wellorder.federated._batched_models import Loss, pools, stack
from wellorder.federated._client_data import ClientData, Store, as_inputs
from wellorder.federated._parameters import Layout, frozen_of

ONE_EACH = "return a tensor with one loss for each example"

BATCH = {"cpu": 1000, "cuda": 5000}
"""Examples measured at once, at most."""
NUMBERS = 2**24
"""Numbers in the inputs of those, at most."""


class Evaluator:
    """Measures on the training set (or the first so many of a fixed shuffle of it) and on the test set.

    ``batched`` says whether by batched layers, a single lane of them: None where they are faster, on CUDA in
    models that `pools`.
    """

    def __init__(
        self,
        data: ClientData,
        store: Store,
        model: nn.Module,
        layout: Layout,
        loss: Loss,
        sample: int,
        *,
        batched: bool | None = None,
    ) -> None:
        self.store, self.layout, self.loss = store, layout, loss
        self.model = copy.deepcopy(model).eval()
        device = store.labels.device
        if batched is None:
            batched = device.type == "cuda" and layout.channels_last and pools(self.model)
        self.forward = stack(self.model) if batched else None
        self.constants = {name: p[None] for name, p in frozen_of(self.model).items()}
        each = max(1, int(np.prod(data.inputs.shape[1:])))
        self.batch = max(1, min(BATCH.get(device.type, 1000), NUMBERS // each))
        count = min(sample or len(data.labels), len(data.labels))
        chosen = (
            np.random.default_rng(0).permutation(len(data.labels))[:count] if sample else np.arange(count)
        )
        self.train = torch.from_numpy(np.sort(chosen)).to(device)
        self.test: tuple[Tensor, Tensor] | None = None
        if data.test_inputs is not None and data.test_labels is not None:
            inputs = torch.from_numpy(np.array(data.test_inputs))
            inputs = (
                inputs.permute(0, 2, 3, 1).contiguous() if store.images else as_inputs(inputs, store.dtype)
            )
            self.test = inputs.to(device), torch.from_numpy(np.array(data.test_labels)).to(device)

    @torch.no_grad()
    def measure(self, server: Tensor) -> dict[str, float]:
        """Loss and accuracy on both sets; NaN where there is no test set, or no labels to be right about."""
        named = self.layout.views(server if self.forward is None else server[None])
        parts = [
            self._sums(named, self.store.plain(part), self.store.labels[part])
            for part in self.train.split(self.batch)
        ]
        train = torch.stack(parts).sum(dim=0) / len(self.train)
        test = torch.full((2,), float("nan"))
        if self.test is not None:
            inputs, labels = self.test
            pieces = []
            for part, marks in zip(inputs.split(self.batch), labels.split(self.batch), strict=True):
                own = self.store.normalised(part) if self.store.images else part
                pieces.append(self._sums(named, own, marks))
            test = torch.stack(pieces).sum(dim=0) / len(labels)
        (train_loss, train_accuracy), (test_loss, test_accuracy) = train.tolist(), test.tolist()
        return {
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
        }

    def _sums(self, named: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        if self.forward is not None:
            outputs = self.forward({**named, **self.constants}, inputs[None])[0]
        else:
            inputs = inputs.permute(0, 3, 1, 2) if self.store.images else inputs
            outputs = torch.func.functional_call(self.model, named, (inputs,))
        right = torch.full((), float("nan"), dtype=torch.float64, device=labels.device)
        if outputs.ndim == 2 and not labels.is_floating_point():
            right = (outputs.argmax(dim=1) == labels).double().sum()
        losses = instance_of("loss(outputs, labels)", self.loss(outputs, labels), Tensor, ONE_EACH)
        return torch.stack([losses.double().sum(), right])
