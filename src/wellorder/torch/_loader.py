"""`ordered`: a DataLoader in, the same loader with a better order out."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from wellorder._order import Order, Policy, describe, rng, units_of
from wellorder.torch._batch_gradients import MicroBatch
from wellorder.torch._batch_record import BatchRecord, BatchRecords
from wellorder.torch._batching import Batching, NumberedCollate, NumberedDataset, RestOfEpoch
from wellorder.torch._hooks import NOTHING_OBSERVED, OptimizerSteps, Scaler
from wellorder.torch._observing import Observer
from wellorder.torch._saved_state import check_same, packed, unpacked
from wellorder.torch._signal_sources import Source, Spec, choose, default_policy, watch
from wellorder.torch._validation import check_loader, check_model, check_policy_fits


def ordered(
    loader: DataLoader[Any],
    model: nn.Module,
    policy: Policy[Any] | None = None,
    *,
    seed: int = 0,
    signals: str | Spec = "auto",
    scaler: Scaler | None = None,
) -> OrderedLoader:
    """Give a loader a better order than ``shuffle=True``, learned from the gradients of the training itself.

    Everything else about the loader stays as it is: batch size, workers, pinning, collate. The loop stays
    too. The first order is always a shuffle.

    Parameters
    ----------
    loader
        A `torch.utils.data.DataLoader` over a map-style data set, shuffled or not.
    model
        The module whose gradients order the examples; the batch must be its layers' first dimension.
    policy
        The rule that makes the orders; `Herding()` unless given, or `PairGraB()` for exact signals.
    seed
        Decides the first order and every random choice; same seed, same orders.
    signals
        ``"sketch"``, ``"exact"``, ``"batch"``, a spec such as ``Sketch(size=256)``, or ``"auto"``, which
        chooses and says why in ``report()``.
    scaler
        The ``torch.amp.GradScaler`` in use, if any, so that its changing scale can be undone.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from wellorder.torch import ordered
    >>> data = TensorDataset(torch.randn(10, 3), torch.randn(10, 1))
    >>> model = torch.nn.Linear(3, 1)
    >>> loader = ordered(DataLoader(data, batch_size=4, shuffle=True), model)
    >>> for x, y in loader:
    ...     torch.nn.functional.mse_loss(model(x), y).backward()
    >>> len(loader), loader.epoch, sorted(loader.order.tolist()) == list(range(10))
    (3, 1, True)
    """
    check_loader(loader)
    check_model(model)
    rule = default_policy(signals) if policy is None else policy
    check_policy_fits(rule)
    units_of(1, seed)
    return OrderedLoader(loader, model, rule, seed=seed, signals=signals, scaler=scaler)


class OrderedLoader:
    """A loader whose order a policy makes from what the training reveals; made by `ordered`.

    Iterate over it once at a time; after a ``break`` the next iteration opens a new epoch. What is not named
    here (``batch_size``, ``dataset``, …) is the given loader's.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        model: nn.Module,
        policy: Policy[Any],
        *,
        seed: int = 0,
        signals: str | Spec = "auto",
        scaler: Scaler | None = None,
    ) -> None:
        data: Any = loader.dataset
        n, size = len(data), int(loader.batch_size or 1)
        self.policy, self.seed = policy, seed
        self.spec, self._why = choose(signals, policy, model, n, size)
        self._batching = Batching(n, size, loader.drop_last, isinstance(self.spec, MicroBatch), seed)
        self._records = BatchRecords()
        self._source: Source | None = None
        if self.spec is not None:
            strict = signals != "auto"
            self._source = watch(self.spec, model, policy, seed, scaler, self._records, strict=strict)
        self._observer = Observer(policy, policy.init(self._batching.units, seed=seed))
        self._given = loader
        self._rest = RestOfEpoch()
        self._inner = self._rebuilt(loader)
        # Each iteration has a number, so that one that was left behind notices that another has begun.
        self._step, self._resumed, self._iteration = 0, False, 0
        self._optimizer_steps = None if self._source is None else OptimizerSteps()
        self._heard = 0
        # Hooks must go when the loader goes, and the source may not know the loader: it would keep it alive.
        self._off = None if self._source is None else weakref.finalize(self, self._source.remove)
        self._owners = self._batching.owners(0)

    def __len__(self) -> int:
        return len(self._batching)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._given, name)

    @property
    def order(self) -> Order:
        """The present epoch's order: the unit at each step."""
        order: Order = self._observer.state.order
        return order

    @property
    def epoch(self) -> int:
        """The epoch that is being visited, or comes next; the first is 0."""
        return int(self._observer.state.epoch)

    @property
    def units(self) -> Order | None:
        """Units of the batch that was given out last and has not been settled; None between epochs."""
        latest = self._records.open_records[-1:]
        return latest[0].units if latest else None

    def __iter__(self) -> Iterator[Any]:
        if self._step and not self._resumed:  # the last epoch was left early
            self._advance()
        self._resumed = False
        self._iteration += 1
        iteration = self._iteration
        given: Any = self._given.generator  # its seed counts; its state would not come back on resume
        name = "workers" if given is None else f"workers.{given.initial_seed()}"
        self._generator.manual_seed(int(rng(self.seed, self.epoch, name).integers(2**62)))
        self._rest.batches = self._batching.batches(self.order, self.epoch, self._step)
        grouped = self._batching.grouped
        # A parameter's gradient does not tell its batch: micro-batches are settled when the next is drawn.
        recognised = self._source is not None and not grouped
        for examples, batch in self._inner:
            if iteration != self._iteration:
                raise RuntimeError(
                    "this epoch was left for another: iterate over an OrderedLoader once at a time"
                )
            self._settle()
            self._step += 1
            units = self._owners[examples[:1] if grouped else examples]
            self._records.open(len(examples), batch if recognised else (), step=self._step, units=units)
            try:
                yield batch
            except GeneratorExit:  # the loop was left: what follows it is none of the batch's
                if iteration == self._iteration:
                    self._records.pause()
                raise
        if iteration == self._iteration:
            self._advance()

    def state_dict(self) -> dict[str, Any]:
        """All that continues this loader exactly, in mid-epoch too: tensors, numbers and strings, no pickles.

        Batches already given out count as visited, as with torchdata's ``StatefulDataLoader``.
        """
        latest = self._records.open_records[-1:]
        unheard = latest[0] if latest and not latest[0].heard else None
        self._settle(but=unheard)  # its gradient is still to come
        start = time.thread_time()
        self._observer.flush()
        self._observer.seconds += time.thread_time() - start
        return {
            "loader": self._identity(),
            "step": self._step,
            "seconds": self._seconds(),
            **packed(self._observer),
        }

    def load_state_dict(self, mapping: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; refuses the state of another loader, policy or signals."""
        check_same(mapping, self._identity())
        self._records.settle(everything=True)
        like = getattr(self._source, "like", None)
        self._observer = unpacked(self.policy, mapping, like)
        self._observer.seconds = float(mapping.get("seconds", 0.0)) - self._seconds()
        self._heard = self._observer.observed + self._observer.not_finite
        self._step, self._resumed = int(mapping["step"]), int(mapping["step"]) > 0
        self._iteration += 1
        self._owners = self._batching.owners(self.epoch)

    def report(self) -> Report:
        """What is collected and why, what it costs, what was observed, and the order error so far.

        Only asks: training goes on as if nobody had.
        """
        observer, source = self._observer, self._source
        return Report(
            signals="none" if self.spec is None else describe(self.spec),
            why=self._why,
            policy=describe(self.policy),
            units=self._batching.units,
            epoch=self.epoch,
            step=self._step,
            steps=len(self),
            **observer.counts(),
            seconds_per_step=self._seconds() / max(observer.steps, 1),
            memory=observer.memory(),
            order_error=tuple(observer.errors),
            coverage={} if source is None else source.coverage(),
        )

    @contextmanager
    def ignore(self) -> Iterator[None]:
        """Passes inside do not count as signals: other data, an attack, a penalty that is no example's."""
        with self._records.ignore():
            yield

    def remove(self) -> None:
        """Take all hooks off the model; the loader then keeps its order."""
        self._records.settle(everything=True)
        if self._source is not None:
            self._source.remove()
        self._source = self._optimizer_steps = None

    def _settle(self, *, everything: bool = False, but: BatchRecord | None = None) -> None:
        """Show the policy what the batches given out revealed; keep those whose gradient may still come."""
        start = time.thread_time()
        for record in self._records.settle(everything=everything, but=but):
            if self._source is not None:
                with torch.no_grad():
                    self._observer.take(record.step, record.units, self._source.signals(record))
        self._observer.seconds += time.thread_time() - start

    def _advance(self) -> None:
        self._settle(everything=True)
        start = time.thread_time()
        self._observer.advance()
        self._warn_if_nothing_observed()
        self._observer.seconds += time.thread_time() - start
        self._step = 0
        self._owners = self._batching.owners(self.epoch)

    def _warn_if_nothing_observed(self) -> None:
        """Say so once if an epoch was trained and nothing of it was seen."""
        before, self._heard = self._heard, self._observer.observed + self._observer.not_finite
        if self._optimizer_steps is not None and self._optimizer_steps.count:
            if self._heard == before:
                self._optimizer_steps.remove()
                self._optimizer_steps = None
                warnings.warn(NOTHING_OBSERVED, UserWarning, stacklevel=4)
            else:
                self._optimizer_steps.count = 0

    def _seconds(self) -> float:
        """Processor time spent on signals and the policy so far."""
        return self._observer.seconds + self._records.seconds

    def _identity(self) -> dict[str, Any]:
        return {
            "examples": self._batching.n,
            "batch_size": self._batching.size,
            "drop_last": self._batching.drop_last,
            "seed": self.seed,
            "signals": "none" if self.spec is None else describe(self.spec),
        }

    def _rebuilt(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Make the same loader, but with numbered examples and our batches."""
        self._generator = torch.Generator()  # worker seeds; the global generator is left to the training
        data: Any = NumberedDataset(loader.dataset)
        collate: Any = NumberedCollate(loader.collate_fn)
        with warnings.catch_warnings():  # whatever there is to say, the loader that was given said
            warnings.simplefilter("ignore")
            return DataLoader(
                data,
                batch_sampler=self._rest,
                num_workers=loader.num_workers,
                collate_fn=collate,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=self._generator,
                prefetch_factor=loader.prefetch_factor,
                persistent_workers=loader.persistent_workers,
                pin_memory_device=loader.pin_memory_device,
            )


@dataclass(frozen=True)
class Report:
    """What ordering does, costs, and brings: plain numbers, and a page when printed.

    Attributes
    ----------
    signals, why, policy, units
        What is collected, the reason, the rule that makes the orders, and how many units it orders.
    epoch, step, steps
        Where the loader is, and how many steps an epoch has.
    observed, unobserved, not_finite
        Visits that the policy learns from, those without a backward pass, and those with a NaN or infinity.
    seconds_per_step
        Processor time spent on signals and the policy; on an accelerator the host's part.
    memory
        Bytes that stay between steps.
    order_error
        One estimate per finished epoch.
    coverage
        How each trainable parameter's gradient is taken.
    """

    signals: str
    why: str
    policy: str
    units: int
    epoch: int
    step: int
    steps: int
    observed: int
    unobserved: int
    not_finite: int
    seconds_per_step: float
    memory: int
    order_error: tuple[float, ...]
    coverage: Mapping[str, str]

    def __str__(self) -> str:
        errors = ", ".join(f"{value:.4g}" for value in self.order_error[-5:]) or "none yet"
        lines = [
            f"signals      {self.signals}: {self.why}",
            f"policy       {self.policy}, {self.units} units",
            f"where        epoch {self.epoch}, step {self.step} of {self.steps}",
            f"visits       {self.observed} observed, {self.unobserved} without a gradient, "
            f"{self.not_finite} not finite",
            f"cost         {1e3 * self.seconds_per_step:.3f} ms a step, {self.memory / 2**20:.1f} MiB kept",
            f"order error  {errors}",
        ]
        if self.coverage:
            width = max(map(len, self.coverage))
            lines += ["parameters", *(f"  {name:<{width}}  {how}" for name, how in self.coverage.items())]
        return "\n".join(lines)
