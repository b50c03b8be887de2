"""Rows of examples by a model as it is now: sketches of their gradients, for a survey of shards."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from wellorder._arguments import seed_of, shown
from wellorder.torch._sketch import Sketch, SketchSource


class probe:  # noqa: N801 (a function with a method, as a partial is)
    """From an example to a sketch of its gradient at the model's present weights: rows for `survey`.

    The model is copied: it is not touched, and rows stay those of these weights while it trains on. The copy
    runs in evaluation mode. A row costs a forward and a backward pass, so probe a few examples of each shard
    (``survey(..., row=probe(model, loss), sample=16, sizes=…)``); for a window, rows by features are cheaper.

    Parameters
    ----------
    model
        With layers that can be sketched: `nn.Linear`, convolutions, embeddings.
    loss
        From the model and a batch to the mean loss over the batch.
    collate
        From a list of examples to a batch.
    spec
        How gradients are sketched.
    seed
        Decides the projections.

    >>> model = nn.Linear(3, 2)
    >>> rows = probe(model, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
    >>> rows.many([(torch.ones(3), 0), (torch.zeros(3), 1)]).shape, rows((torch.ones(3), 0)).ndim
    (torch.Size([2, 8]), 1)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Tensor],
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        spec: Sketch | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model={type(model).__name__}: pass an nn.Module")
        if not callable(loss):
            raise ValueError(f"loss={shown(loss)}: pass a function from a model and a batch to the mean loss")
        if not callable(collate):
            raise ValueError(f"collate={shown(collate)}: pass a function from a list of examples to a batch")
        if spec is not None and not isinstance(spec, Sketch):
            raise ValueError(f"spec={shown(spec)}: pass a wellorder.torch.Sketch, or leave it out")
        self._model = copy.deepcopy(model).eval()
        self._model.training = True  # its layers stay in evaluation mode; hooks listen to a model that trains
        for parameter in self._model.parameters():
            parameter.grad = None
        self._loss, self._collate = loss, collate
        self._source = SketchSource(Sketch() if spec is None else spec, self._model, seed_of(seed))
        self._one_at_a_time = threading.Lock()

    def __call__(self, example: Any) -> Tensor:
        return self.many([example])[0]

    def many(self, examples: Sequence[Any]) -> Tensor:
        """The rows of some examples, (b, k), on the CPU."""
        if not isinstance(examples, Sequence) or not len(examples):
            raise ValueError(f"examples={shown(examples)}: pass a list of one example or more")
        device = next(self._model.parameters()).device
        batch = _moved(self._collate(list(examples)), device)
        with self._one_at_a_time, torch.enable_grad():
            self._source.records.open(len(examples))
            loss = self._loss(self._model, batch)
            if not isinstance(loss, Tensor) or loss.ndim:
                raise ValueError(
                    f"loss(model, batch)={loss!r}: return the mean loss, a tensor of no dimension"
                )
            loss.backward()
            record = self._source.records.close()
            rows = None if record is None else self._source.signals(record)
            self._model.zero_grad(set_to_none=True)
        if rows is None:
            raise ValueError("no gradient reached a layer: loss(model, batch) must use the model it is given")
        return rows.detach().float().cpu()


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(part, device) for part in batch)
    return batch
