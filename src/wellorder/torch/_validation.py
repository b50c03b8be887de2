"""What may come in: checks of the loader, the model and the policy, each refusal with its cure."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from wellorder._arguments import shown
from wellorder._order import Needs, Policy, policy_of, remembers
from wellorder._waiting import waiting_for
from wellorder.torch._batching import Batching


def check_loader(loader: Any) -> DataLoader[Any]:
    """Take a map-style loader, shuffled or not; refuse those that choose their examples otherwise."""
    if not isinstance(loader, DataLoader):
        raise ValueError(f"loader={type(loader).__name__}: pass a torch.utils.data.DataLoader")
    kind = type(loader.dataset).__name__
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"loader.dataset={kind} is iterable: its examples cannot be visited in another order; "
            "use a map-style data set with __getitem__ and __len__"
        )
    if not isinstance(loader.dataset, Sized):
        raise ValueError(f"loader.dataset={kind} has no length; give it __len__, the number of its examples")
    if not len(loader.dataset):
        raise ValueError(f"loader.dataset={kind} is empty; pass a data set with at least one example")
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        name = type(loader.batch_sampler).__name__ if loader.batch_sampler is not None else "None"
        raise ValueError(
            f"loader.batch_sampler={name} cuts its own batches; "
            "pass batch_size to the DataLoader instead, and let wellorder fill the batches"
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ValueError(
            f"loader={type(loader).__name__} has its own __iter__, which would not be called; change batches "
            "in collate_fn, or in the training loop"
        )
    _check_sampler(loader.sampler, len(loader.dataset))
    return loader


def check_something_left(batching: Batching) -> None:
    """Refuse sizes of which nothing is left to visit."""
    if not len(batching):
        ranks = f" on each of {batching.share.of} ranks" if batching.share.of > 1 else ""
        raise ValueError(
            f"batch_size={batching.size} with drop_last leaves nothing of {batching.n} examples{ranks}; use "
            "a smaller batch_size, or drop_last=False"
        )


def _check_sampler(sampler: Any, n: int) -> None:
    plain = type(sampler) is SequentialSampler and len(sampler) == n
    if type(sampler) is RandomSampler:
        plain = not sampler.replacement and sampler.num_samples == len(sampler.data_source) == n
    if type(sampler) is DistributedSampler:  # it shards; its own shuffle and seed give way to the order
        shared: Any = sampler.dataset
        plain = len(shared) == n
    if not plain:
        raise ValueError(
            f"loader.sampler={type(sampler).__name__} chooses the examples itself; use shuffle=True, "
            "and torch.utils.data.Subset(dataset, indices) to train on a part of the data"
        )


def checked_model(model: Any) -> nn.Module:
    """Take a module with something to train, out of DDP's wrapper, which adds to its parameters' names."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={type(model).__name__}: pass the torch.nn.Module that is trained")
    for name, p in model.named_parameters():
        if isinstance(p, nn.UninitializedParameter):
            raise ValueError(
                f"model.{name} has no shape yet (a lazy module); run the model once on a batch, under "
                "torch.no_grad(), before ordered(...)"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            f"model={type(model).__name__} has no trainable parameters, so there is no gradient to order by; "
            "set requires_grad=True on some, or use the plain DataLoader"
        )
    return model.module if isinstance(model, DistributedDataParallel) else model


def check_policy_fits(policy: Policy[Any]) -> None:
    """Refuse policies that want every unit's gradient before the epoch: a loader cannot compute the loss."""
    needs: Needs = policy_of(policy).needs
    if needs.at_start(0) or needs.at_start(1):
        raise ValueError(
            f"policy={type(policy).__name__} needs {needs.value}, and a loader does not know your loss; "
            "use Herding, PairGraB or GraB, which learn from the training itself"
        )


def check_knowledge(policy: Policy[Any], model: nn.Module | None, rows: Any, observe: Any) -> None:
    """Refuse to order by nothing, to observe no model, and rows for a policy that takes none."""
    if model is None and not (isinstance(observe, str) and observe == "auto"):
        raise ValueError(
            f"observe={shown(observe)}, model=None: there are no gradients to observe; pass the model that "
            "is trained, or leave observe out"
        )
    if rows is not None and not remembers(policy):
        raise ValueError(
            f"rows=…: policy={type(policy).__name__} takes no rows; use Steering() or Herding(), or leave "
            "rows out"
        )
    if model is None and rows is None and policy.needs.at_visits():
        raise ValueError(
            "model=None, rows=None: there is nothing to order by; pass the model that is trained, or "
            "rows=wellorder.features(x, y)"
        )


def opened(policy: Policy[Any], units: int, seed: int, rows: Any) -> Any:
    """A policy's first state, with the rows that are known already."""
    if rows is None:
        return policy.init(units, seed=seed)
    rule: Any = policy  # that it takes rows was checked
    with waiting_for(0):
        return rule.init(units, seed=seed, rows=rows)


def is_scripted(model: nn.Module) -> bool:
    """Whether a part of the model is made by ``torch.jit``: such modules take no hooks."""
    return any(isinstance(inner, torch.jit.ScriptModule) for inner in model.modules())


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` already made this model: hooks set afterwards would never be called."""
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
