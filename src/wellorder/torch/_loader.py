"""The door: a DataLoader in, the same loader with a better order out."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from wellorder._order import Order, Policy, describe, rng, units_of
from wellorder.policies import Herding
from wellorder.torch._cut import Cut
from wellorder.torch._door import check_loader, check_model, check_policy_fits
from wellorder.torch._journal import Journal
from wellorder.torch._microbatch import MicroBatch
from wellorder.torch._presence import NEVER, Steps
from wellorder.torch._record import Record
from wellorder.torch._report import Report
from wellorder.torch._resume import check_same, packed, unpacked
from wellorder.torch._sources import Source, Spec, choose, watch
from wellorder.torch._tagged import Tagged, TaggedCollate
from wellorder.torch._tape import Scaler


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
        The rule that makes the orders; `Herding()` unless given.
    seed
        Decides the first order and every random choice; same seed, same orders.
    signals
        ``"sketch"``, ``"exact"``, ``"batch"``, a spec such as ``Sketch(size=256)``, or ``"auto"``, which
        chooses and says why in ``report()``.
    scaler
        The ``torch.amp.GradScaler`` in use, if any, so that its changing scale can be undone.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
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
    rule: Policy[Any] = Herding() if policy is None else policy
    check_policy_fits(rule)
    units_of(1, seed)
    return OrderedLoader(loader, model, rule, seed=seed, signals=signals, scaler=scaler)


class OrderedLoader:
    """A loader whose order a policy makes from what the training reveals; made by `ordered`."""

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
        self._cut = Cut(n, size, loader.drop_last, isinstance(self.spec, MicroBatch), seed)
        self._source: Source | None = (
            None
            if self.spec is None
            else watch(self.spec, model, policy, seed, scaler, strict=signals != "auto")
        )
        self._journal = Journal(policy, policy.init(self._cut.units, seed=seed))
        self._given = loader
        self._plan = Plan()
        self._inner = self._rebuilt(loader)
        self._step, self._resumed, self._turn = 0, False, 0
        self._steps = None if self._source is None else Steps()
        self._heard = 0
        self._pending: list[tuple[int, Order, Record | None]] = []
        self._off = None if self._source is None else weakref.finalize(self, self._source.remove)
        self._owners = self._cut.owners(0)

    def __len__(self) -> int:
        return len(self._cut)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._given, name)

    @property
    def order(self) -> Order:
        """The present epoch's order: the unit at each step."""
        order: Order = self._journal.state.order
        return order

    @property
    def epoch(self) -> int:
        """The epoch that is being visited, or comes next; the first is 0."""
        return int(self._journal.state.epoch)

    @property
    def units(self) -> Order | None:
        """Units of the batch that was given out last and has not been settled; None between epochs."""
        return self._pending[-1][1] if self._pending else None

    def __iter__(self) -> Iterator[Any]:
        if self._step and not self._resumed:  # the last epoch was left early
            self._advance()
        self._resumed = False
        self._turn += 1
        turn = self._turn
        given: Any = self._given.generator  # its seed counts; its state would not come back on resume
        name = "workers" if given is None else f"workers.{given.initial_seed()}"
        self._generator.manual_seed(int(rng(self.seed, self.epoch, name).integers(2**62)))
        self._plan.batches = self._cut.batches(self.order, self.epoch, self._step)
        for examples, batch in self._inner:
            if turn != self._turn:
                raise RuntimeError(
                    "this epoch was left for another: iterate over an OrderedLoader once at a time"
                )
            self._settle()
            self._step += 1
            units = self._owners[examples] if not self._cut.grouped else self._owners[examples[:1]]
            record = None if self._source is None else self._source.open(len(examples), batch)
            self._pending.append((self._step, units, record))
            try:
                yield batch
            except GeneratorExit:  # the loop was left: what follows it is none of the batch's
                if turn == self._turn and self._source is not None:
                    self._source.pause()
                raise
        if turn == self._turn:
            self._advance()

    def state_dict(self) -> dict[str, Any]:
        """All that continues this loader exactly, in mid-epoch too: tensors, numbers and strings, no pickles.

        Batches already given out count as visited, as with torchdata's ``StatefulDataLoader``.
        """
        latest = self._pending[-1:]
        if latest and latest[0][2] is not None and not latest[0][2].heard:
            self._pending.pop()  # its gradient is still to come
            self._settle()
            self._pending += latest
        else:
            self._settle()
        self._flush()
        return {
            "loader": self._identity(),
            "step": self._step,
            "seconds": self._seconds(),
            **packed(self._journal),
        }

    def load_state_dict(self, mapping: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; refuses the state of another loader, policy or signals."""
        check_same(mapping, self._identity())
        self._close_source()
        like = getattr(self._source, "like", None)
        self._journal = unpacked(self.policy, mapping, like)
        self._journal.seconds = float(mapping.get("seconds", 0.0)) - self._seconds()
        self._heard = self._journal.observed + self._journal.not_finite
        self._step, self._resumed = int(mapping["step"]), int(mapping["step"]) > 0
        self._turn += 1
        self._owners = self._cut.owners(self.epoch)

    def report(self) -> Report:
        """What is collected and why, what it costs, what was observed, and the order error so far."""
        journal, source = self._journal, self._source
        memory = journal.memory()
        self._flush()
        steps = max(journal.steps, 1)
        return Report(
            signals="none" if self.spec is None else describe(self.spec),
            why=self._why,
            policy=describe(self.policy),
            units=self._cut.units,
            epoch=self.epoch,
            step=self._step,
            steps=len(self),
            observed=journal.observed,
            unobserved=journal.unobserved,
            not_finite=journal.not_finite,
            seconds_per_step=self._seconds() / steps,
            memory=memory,
            order_error=tuple(journal.errors),
            coverage={} if source is None else source.coverage(),
        )

    @contextmanager
    def ignore(self) -> Iterator[None]:
        """Passes inside do not count as signals: other data, an attack, a penalty that is no example's."""
        if self._source is None:
            yield
            return
        with self._source.silent():
            yield

    def remove(self) -> None:
        """Take all hooks off the model; the loader then keeps its order."""
        self._close_source()
        if self._source is not None:
            self._source.remove()
        self._source = self._steps = None

    def _settle(self, *, everything: bool = False) -> None:
        """Show the policy what the batches given out revealed; keep those whose gradient may still come."""
        start = time.thread_time()
        kept: list[tuple[int, Order, Record | None]] = []
        for step, units, record in self._pending:
            if record is None or self._source is None:
                continue
            if record.awaited() and not everything:
                kept.append((step, units, record))
                continue
            with torch.no_grad():
                signals = self._source.close(record)
                self._journal.take(step, units, signals, getattr(self._source, "glimpsed", None))
        self._pending = kept
        self._journal.seconds += time.thread_time() - start

    def _flush(self) -> None:
        """Show the policy the rows that wait."""
        start = time.thread_time()
        self._journal.flush()
        self._journal.seconds += time.thread_time() - start

    def _advance(self) -> None:
        self._settle(everything=True)
        start = time.thread_time()
        self._journal.advance()
        self._warn_if_unheard()
        self._journal.seconds += time.thread_time() - start
        self._step = 0
        self._owners = self._cut.owners(self.epoch)

    def _warn_if_unheard(self) -> None:
        """Say so once if an epoch was trained and nothing of it was seen."""
        before, self._heard = self._heard, self._journal.observed + self._journal.not_finite
        if self._steps is not None and self._steps.count:
            if self._heard == before:
                self._steps.remove()
                self._steps = None
                warnings.warn(NEVER, UserWarning, stacklevel=4)
            else:
                self._steps.count = 0

    def _close_source(self) -> None:
        for _, _, record in self._pending:
            if record is not None and self._source is not None:
                self._source.close(record)
        self._pending = []

    def _seconds(self) -> float:
        """Processor time spent on signals and the policy so far."""
        tape: Any = getattr(self._source, "tape", None)
        return self._journal.seconds + (0.0 if tape is None else float(tape.seconds))

    def _identity(self) -> dict[str, Any]:
        return {
            "examples": self._cut.n,
            "batch_size": self._cut.size,
            "drop_last": self._cut.drop_last,
            "seed": self.seed,
            "signals": "none" if self.spec is None else describe(self.spec),
        }

    def _rebuilt(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Make the same loader, but with tagged data and our batches."""
        self._generator = torch.Generator()  # worker seeds; the global generator is left to the training
        data: Any = Tagged(loader.dataset)
        collate: Any = TaggedCollate(loader.collate_fn)
        with warnings.catch_warnings():  # whatever there is to say, the loader that was given said
            warnings.simplefilter("ignore")
            return DataLoader(
                data,
                batch_sampler=self._plan,
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


class Plan:
    """The batch sampler: what is left of the epoch. It knows no loader: a cycle would keep workers alive."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)
