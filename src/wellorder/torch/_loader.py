"""`OrderedLoader`: an epoch of batches in an order that a policy makes, and what is seen of it."""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from wellorder._arguments import instance_of
from wellorder._measure import error_vs_shuffle
from wellorder._order import Order, Policy, describe, remembers, rng
from wellorder.torch._batch_gradients import MicroBatch
from wellorder.torch._batch_record import BatchRecord, BatchRecords
from wellorder.torch._batching import (
    BatchesOrErrors,
    Batching,
    ExamplesOfEpoch,
    Failed,
    NumberedCollate,
    NumberedDataset,
    RestOfEpoch,
    with_errors,
)
from wellorder.torch._distributed import Ranks, Share, check_initialised, checksum, share_of
from wellorder.torch._frameworks import KEPT, PlainWhenCalled, Prepared
from wellorder.torch._hooks import Scaler
from wellorder.torch._loop_watch import LoopWatch
from wellorder.torch._observing import Observer
from wellorder.torch._per_example.exact import Exact
from wellorder.torch._report import Report, rows_in_words
from wellorder.torch._saved_state import (
    COUNTS,
    check_given,
    checked,
    packed,
    reopened,
    unpacked,
    with_all_pending,
    with_own_pending,
)
from wellorder.torch._schedule import (
    NextState,
    Observe,
    let_threads_end,
    makes_orders_in_parts,
    schedule_of,
)
from wellorder.torch._signal_sources import Source, Spec, choose, watch
from wellorder.torch._validation import check_something_left, opened

_BEHIND = (
    "the training is in epoch {}, and this ordered loader is new and in epoch {}: its order begins knowing "
    "nothing. Load the state_dict() of the loader before (in Lightning add "
    "wellorder.lightning.OrderCallback(), which does that after an epoch's end, and for loaders made anew)"
)
LEFT_FOR_ANOTHER = "this epoch was left for another: iterate over an OrderedLoader once at a time"
ONE_RANK_ALONE = (
    "this state was saved by another rank alone, in the middle of an observed epoch: what this one saw in it "
    "is lost, and those examples keep their older rows. Save on every rank, or at an epoch's end"
)


class OrderedLoader(PlainWhenCalled, Prepared, DataLoader[Any]):
    """A `DataLoader` whose order a policy makes from what is known of the examples; made by `ordered`.

    Iterate over it once at a time; after a ``break`` the next iteration opens a new epoch. Its data set,
    batch size, workers and collate are the given loader's; its samplers are its own, and give the present
    order.
    """

    _plain = DataLoader

    def _begin(
        self,
        loader: DataLoader[Any],
        model: nn.Module | None,
        policy: Policy[Any],
        *,
        rows: Any = None,
        observe: Observe = "auto",
        signals: str | Spec = "auto",
        seed: int = 0,
        scaler: Scaler | None = None,
    ) -> None:
        data: Any = loader.dataset
        n, size = len(data), int(loader.batch_size or 1)
        chosen = choose(signals, policy, model, n, size, given=rows is not None)
        grouped = isinstance(chosen.spec, MicroBatch)
        given: Any = loader.sampler
        self._shard = given if isinstance(given, DistributedSampler) else None
        self.policy, self.seed, self.spec, self._why = policy, seed, chosen.spec, chosen.why
        self._batching = Batching(n, size, loader.drop_last, grouped, seed, self._share())
        check_something_left(self._batching)
        self._rest, self._ranks = RestOfEpoch._made(self._batching), Ranks()
        self._generator = torch.Generator()  # worker seeds; the global generator is left to the training
        settings = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
        with warnings.catch_warnings():  # whatever there is to say, the loader that was given said
            warnings.simplefilter("ignore")
            super().__init__(
                loader.dataset,
                batch_size=size,
                sampler=ExamplesOfEpoch(self._rest, loader.dataset),
                drop_last=loader.drop_last,
                collate_fn=loader.collate_fn,
                generator=loader.generator,
                **settings,
            )
            # What is iterated over has numbered examples, so that a batch knows whose it is. Where nobody
            # asks, and no workers would be kept twice, they are as they were given: that is quicker.
            numbered: Any = NumberedDataset(loader.dataset)
            collate: Any = NumberedCollate(loader.collate_fn)
            how: dict[str, Any] = {"batch_sampler": self._rest, "generator": self._generator, **settings}
            self._inner: DataLoader[Any] = DataLoader(numbered, collate_fn=collate, **how)
            self._without_numbers: DataLoader[Any] | None = None
            if not self.num_workers:
                self._without_numbers = DataLoader(loader.dataset, collate_fn=loader.collate_fn, **how)
        object.__setattr__(self, "batch_sampler", self._rest)  # torch lets nobody set it later
        self._schedule = schedule_of(observe, policy)
        self._records = BatchRecords()
        self._records.drawn_elsewhere = partial(getattr, self._rest, "asked_elsewhere")
        self._source: Source | None = None
        if self.spec is not None and model is not None:
            strict = signals != "auto"
            self._source = watch(
                self.spec, model, policy, seed, scaler, self._records, batch=size, strict=strict
            )
        self._given = rows is not None
        self._observer = Observer(policy, opened(policy, self._batching.units, seed, rows), **self._how())
        # Each iteration has a number, so that one that was left behind notices that another has begun.
        self._step, self._resumed, self._iteration = 0, False, 0
        self._steps_before = 0  # of the epoch before this one
        self._next: NextState | None = None
        # The model only if gradients are looked at: otherwise it is none of ours to keep alive.
        self._model = None if self._source is None else model
        self._watch = LoopWatch(self._records, self._model, look_for_scaler=scaler is None)
        self._seen_in = -1
        self._postponed = False  # nothing was trained in the last epoch, which was to be observed
        self._clock, self._wall = 0.0, 0.0
        self._latest: deque[tuple[int, bool, float]] = deque(maxlen=5)
        self._epoch_began = (0.0, 0.0)  # our seconds and those of the clock
        # Hooks must go when the loader goes, and the source may not know the loader: it would keep it alive.
        self._off = None if self._source is None else weakref.finalize(self, self._source.remove)
        self._open_epoch()

    def __len__(self) -> int:
        if not self._step:
            self._take_share()
        return len(self._batching)

    def __reduce__(self) -> Any:
        raise TypeError(
            "an OrderedLoader watches one model in one process and cannot be copied or pickled: save "
            "loader.state_dict(), make a loader and call ordered(...) there, and load the state into it"
        )

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__reduce__()

    @property
    def order(self) -> Order:
        """The present epoch's order: the unit at each step."""
        order: Order = self._observer.state.order
        return order

    @property
    def epoch(self) -> int:
        """The epoch that is being visited, or comes next; the first is 0."""
        return self._observer.epoch

    @property
    def observing(self) -> bool:
        """Whether the present epoch is one in which signals are taken."""
        return self._source is not None and self._scheduled

    @property
    def units(self) -> Order | None:
        """Units of the batch that was given out last and has not been settled; None between epochs."""
        latest = self._records.open_records[-1:]
        return latest[0].units if latest else None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class there
        return BatchesOrErrors(self._visited())

    def _visited(self) -> Iterator[Any]:
        """The epoch's batches, and the errors of those that could not be had."""
        self._clock = time.perf_counter()
        skipped = self._rest.skipped_through == self.epoch
        if skipped or (self._step and not self._resumed):  # the last epoch was drawn elsewhere, or left early
            self._watch.epoch_was_left(in_first_step=self._step == 1 < len(self))
            self._advance()
        self._take_share()
        check_initialised(observing=self._source is not None, share=self._batching.share)
        data: Any = self.dataset
        if len(data) != self._batching.n:
            raise ValueError(
                f"the data set had {self._batching.n} examples when ordered(...) was called, and has "
                f"{len(data)} now; call ordered(...) again on a new DataLoader"
            )
        if not self._iteration and self._rest.told_epoch > self.epoch:
            warnings.warn(_BEHIND.format(self._rest.told_epoch, self.epoch), UserWarning, stacklevel=3)
        self._resumed = False
        if self._together:
            where = f"the start of epoch {self.epoch}"
            self._ranks.agree(where, self._batching.share, self._facts(ending=False))
        self._iteration += 1
        iteration = self._iteration
        given: Any = self.generator  # its seed counts; its state would not come back on resume
        name = "workers" if given is None else f"workers.{given.initial_seed()}"
        name += f".rank{self._batching.share.number}" if self._batching.share.number else ""
        self._generator.manual_seed(int(rng(self.seed, self.epoch, name).integers(2**62)))
        if self._delivery is not None:
            self._delivery.begin(self)
        try:
            yield from self._observed_epoch(iteration) if self.observing else self._plain_epoch(iteration)
        finally:  # at the epoch's end, or where the loop was left
            if self._delivery is not None:
                self._delivery.end(self)
            if iteration == self._iteration:
                self._wall, self._clock = self._wall_so_far(), 0.0

    def _plain_epoch(self, iteration: int) -> Iterator[Any]:
        """Hand out batches, and nothing else: no hook is on the model, and no record is kept."""
        batches = self._drawn(numbered=False)  # workers are forked here, and before there is a thread
        if remembers(self.policy) and self._next is None:
            self._next = NextState(self.policy, self._observer.coming or self._observer.state)
        own = vars(self)  # past DataLoader's own __setattr__, a call in every step
        for batch in with_errors(batches):
            if iteration != self._iteration:
                raise RuntimeError(LEFT_FOR_ANOTHER)
            own["_step"] += 1
            yield batch
        if iteration == self._iteration:
            self._advance()

    def _observed_epoch(self, iteration: int) -> Iterator[Any]:
        grouped = self._batching.grouped
        # A parameter's gradient does not tell its batch: micro-batches are settled when the next is drawn.
        for drawn in with_errors(self._drawn()):
            if iteration != self._iteration:
                raise RuntimeError(LEFT_FOR_ANOTHER)
            self._settle()
            self._step += 1
            if type(drawn) is Failed:
                yield drawn
                continue
            examples, batch = drawn
            units = self._owners[examples[:1] if grouped else examples]
            if self._batching.padded and self._step == len(self._batching):
                units[-1] = -1  # it was visited before in this epoch, here or elsewhere
            self._records.open(len(examples), batch, step=self._step, units=units, awaited=not grouped)
            self._observer.give_out(self._step)
            try:
                yield batch
            except GeneratorExit:  # the loop was left: what follows it is none of the batch's
                if iteration == self._iteration:
                    self._records.pause()
                raise
        if iteration == self._iteration:
            self._watch.all_drawn()
            self._advance()

    def _drawn(self, *, numbered: bool = True) -> Iterator[Any]:
        """The epoch's batches, with their examples' numbers or without."""
        if self.num_workers:
            let_threads_end()
        self._rest.asked_by_loader = True
        try:
            plain = None if numbered or self.num_workers or self._delivery else self._without_numbers
            if plain is not None:
                self._pass_on(plain)
                plain.collate_fn = self.collate_fn
                return iter(plain)
            self._pass_on(self._inner)
            self._inner.collate_fn = NumberedCollate(self.collate_fn)
            batches: Iterator[Any] = iter(self._inner)
            batches = batches if self._delivery is None else self._delivery.placed(batches)
            return batches if numbered else map(itemgetter(1), batches)
        finally:
            self._rest.asked_by_loader = False

    def _pass_on(self, loader: DataLoader[Any]) -> None:
        """Let a loader inside fetch batches as is set here: trainers set `worker_init_fn` later, say."""
        for name in KEPT:
            if getattr(loader, name, None) is not getattr(self, name, None):
                setattr(loader, name, getattr(self, name))

    def state_dict(self) -> dict[str, Any]:
        """All that continues this loader exactly, in mid-epoch too: tensors, numbers and strings, no pickles.

        Batches already given out count as visited, as with torchdata's ``StatefulDataLoader``. With several
        ranks, each saves its own, or one saves for all; the latter lacks what the others saw in an observed
        epoch that is not over, so save once at epochs' ends, or per rank. Nothing is sent; but where trainers
        save one state for all (Accelerate, `OrderCallback`, `OrderedTrainer`), all ranks must ask, and it
        holds what any of them saw.
        """
        latest = self._records.open_records[-1:]
        unheard = latest[0] if latest and not latest[0].heard else None
        self._settle(but=unheard, now=True)  # its gradient is still to come
        start = time.thread_time()
        self._observer.flush()
        self._observer.seconds += time.thread_time() - start
        state = {
            "loader": self._identity(),
            "step": self._step,
            "seen_in": self._seen_in,
            "postponed": int(self._postponed),
            "seconds": self._seconds(),
            "wall": self._wall_so_far(),
            "ranks": self._batching.share.of,
            "rank": self._batching.share.number,
            **packed(self._observer),
        }
        return with_all_pending(state) if self._saved_once and self._together else state

    def load_state_dict(self, mapping: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; refuses the state of another loader, policy or signals.

        With several ranks, call it on all of them. On another number of ranks the rows and the epoch carry
        over: it goes on in mid-epoch if global batches are as large as before, else begins the epoch anew.
        """
        instance_of("mapping", mapping, Mapping, "load what loader.state_dict() gave")
        self._take_share()
        share = self._batching.share
        mapping = with_own_pending(checked(mapping, self._identity(), share.of), share.number)
        step, ranks = mapping["step"], mapping["ranks"]
        if ranks == share.of and step > len(self):
            raise ValueError(f"damaged state: step={step} of {len(self)} in an epoch; load an intact copy")
        like = getattr(self._source, "like", None)
        loaded = unpacked(self.policy, mapping, like, **self._how())
        if self._given:  # else a state brings its own along
            check_given(self._observer.state, loaded.state)
        self._records.settle(everything=True)
        if self._source is not None:
            self._source.forget()
        self._observer = loaded
        if ranks != share.of and not self._batching.same_steps(int(mapping["loader"]["batch_size"]), ranks):
            self._observer.state, step = reopened(self.policy, self._observer.state), 0
        elif ranks == share.of and mapping["rank"] == share.number and self._observer.together:
            self._observer.wait_with(mapping.get("pending", {}), self._batching.step)
        self._observer.seconds = mapping["seconds"] - self._records.seconds
        self._watch.count_from(self._heard)  # steps from before belong to no epoch of this state
        self._seen_in, self._postponed = mapping["seen_in"], bool(mapping["postponed"])
        self._wall, self._clock = mapping["wall"], 0.0
        self._epoch_began = self._seconds(), self._wall
        self._latest.clear()
        self._step, self._resumed, self._steps_before = step, step > 0, 0
        self._next = None
        self._iteration += 1
        self._open_epoch()
        if ranks == share.of and mapping["rank"] != share.number and step and self.observing:
            warnings.warn(ONE_RANK_ALONE, UserWarning, stacklevel=2)
        if self._step >= len(self):  # saved in the body of an epoch's last step: that epoch is over
            self._resumed = False
            self._advance()

    def _go_to(self, epoch: int, step: int) -> None:
        """Be where a training is that was not ours so far; all that is known of the units stays."""
        while self.epoch < epoch:
            self._observer.advance()
        self._step, self._resumed = step, step > 0
        self._open_epoch()

    def report(self) -> Report:
        """What is collected and why, what it costs, what was observed, and the order error so far.

        Only asks: training goes on as if nobody had.
        """
        observer, source = self._observer, self._source
        self._take_in([], now=True)
        return Report(
            signals="none" if self.spec is None else describe(self.spec),
            why=self._why + ("" if source is None else source.note()),
            policy=describe(self.policy),
            units=self._batching.units,
            epoch=self.epoch,
            step=self._step,
            steps=len(self._batching),
            **observer.counts(),
            seconds_per_step=self._seconds() / observer.steps if observer.steps else 0.0,
            memory=observer.memory(),
            order_error=(*observer.errors, *observer.error_so_far()),
            coverage={} if source is None else source.coverage(),
            rows=rows_in_words(observer.state, self._last_seen),
            overhead=self._overhead(),
            latest=tuple(self._latest),
            rank=self._batching.share.number,
            ranks=self._batching.share.of,
            sent=self._ranks.sent,
        )

    def metrics(self) -> dict[str, float]:
        """Numbers for a logger, flat: what the order is worth, what it knows, what it costs. Only asks.

        ``order/error_vs_shuffle`` compares this epoch's order with three shuffles, over the rows seen last
        (or given, if none were seen), at the batches' ends (1 means no better; it takes eight passes over the
        rows, so ask once an epoch; left out until all were seen, once some were);
        ``order/observed`` is 1 in an epoch that is observed; ``order/known`` is the part of the units that
        have a row, given or seen; ``order/row_age`` tells how many epochs ago rows were last seen, and
        ``order/overhead`` our processor time by the time the epochs took. With several ranks,
        ``order/sent_bytes`` is what this one gave to the others so far. What is not known is left out.
        """
        state = self._observer.state
        found = {
            "order/epoch": float(self.epoch),
            "order/observed": float(self.observing),
            "order/overhead": self._overhead(),
        }
        share = self._batching.share
        if share.of > 1:
            found["order/sent_bytes"] = float(self._ranks.sent)
        known = getattr(state, "known", None)
        if known is not None:
            found["order/known"] = float((known != 0).mean())
        if self._last_seen >= 0:
            found["order/row_age"] = float(self.epoch - self._last_seen)
        if known is not None and (known > 0).all():
            rows = getattr(state, "latest", state.rows)
            every = self._batching.step * share.of
            found["order/error_vs_shuffle"] = error_vs_shuffle(rows, state.order, every=every)
        return found

    @contextmanager
    def ignore(self) -> Iterator[None]:
        """Passes inside do not count as signals: other data, an attack, a penalty that is no example's."""
        with self._records.ignore():
            yield

    def remove(self) -> None:
        """Take all hooks off the model; orders are made from what is known by then."""
        self._records.settle(everything=True)
        if self._source is not None:
            self._source.remove()
        self._watch.stop()
        self._source = None

    def _settle(self, *, everything: bool = False, but: BatchRecord | None = None, now: bool = False) -> None:
        """Show the policy what the batches given out revealed; keep those whose gradient may still come."""
        self._take_in(self._records.settle(everything=everything, but=but), now=everything or now)

    def _take_in(self, closed: list[BatchRecord], *, now: bool) -> None:
        """Take in what became of batches that are closed, and ``now`` of those that wait for others too."""
        settled = () if self._source is None else self._source.settled(closed, now=now)
        if not settled:  # most steps only wait for those beside them: they ask for no time, which takes some
            return
        start = time.thread_time()
        with torch.no_grad():
            for record, signals in settled:
                self._observer.take(record.step, record.units, signals)
        self._observer.seconds += time.thread_time() - start

    def _advance(self) -> None:
        """Close the epoch, and open the next: in the order that was made ahead, if one was."""
        self._settle(everything=True)
        start = time.thread_time()
        if self._together and self.observing:
            self._show_rows_of_all()
        self._observer.flush()
        if self._observer.learnt:
            self._seen_in = self.epoch
        if self.observing:
            trained = self._watch.observed_epoch_ended(self._heard) or self._seen_in == self.epoch
            self._postponed = not trained
        following, self._next = (None if self._next is None else self._next.get()), None
        # Where workers are forked there should be no thread, and they are given batches ahead anyway.
        in_parts = makes_orders_in_parts(self.policy) and self._batching.plain and not self.num_workers
        if following is None and in_parts:
            following = NextState(self.policy, self._observer.state)
        self._observer.advance(following)
        self._observer.seconds += time.thread_time() - start
        self._note_cost()
        self._step, self._steps_before = 0, self._step
        self._open_epoch()

    def _note_cost(self) -> None:
        """Note our share of the time that the epoch took which is over."""
        ours, wall = self._epoch_began
        self._epoch_began = self._seconds(), self._wall_so_far()
        took = self._epoch_began[1] - wall
        if took > 0:
            share = (self._epoch_began[0] - ours) / took
            self._latest.append((self.epoch - 1, self.observing, share))

    def _show_rows_of_all(self) -> None:
        """Let every rank know what any saw in this epoch: all make the same order of it."""
        where, share = f"the end of epoch {self.epoch}", self._batching.share
        self._ranks.agree(where, share, self._facts(ending=True))
        visits, step = self._batching.of_all(self.order, self.epoch), self._batching.step
        for batches in self._ranks.rows_of_all(where, share, visits, self._observer.own_rows(step), step):
            self._observer.show(batches)

    def _facts(self, *, ending: bool) -> dict[str, int]:
        """What must be the same on all ranks, as numbers."""
        model: Any = self._model
        share = replace(self._batching.share, number=0)
        return {
            "place": 2 * self.epoch + ending,
            "examples": self._batching.n,
            "batch_size": self._batching.size,
            "drop_last": self._batching.drop_last,
            "shares": checksum(repr(share)),
            "seed": self.seed % (2**63 - 1),
            "policy": checksum(describe(self.policy)),
            "signals": checksum(describe(self.spec)),
            "parameters of the model": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "steps of the epoch before": self._steps_before,
            "steps of this epoch" if ending else "step": self._step,
            "order": checksum(self.order),
            "observed": self.observing,
        }

    @property
    def _last_seen(self) -> int:
        """The last epoch in which anything was seen, the present one too; -1 if there is none."""
        return self.epoch if self._observer.learnt else self._seen_in

    @property
    def _heard(self) -> int:
        """How many gradients came so far."""
        return self._observer.observed + self._observer.not_finite

    @property
    def _together(self) -> bool:
        """Whether other ranks see a part of what orders are made from."""
        return self._source is not None and self._batching.share.of > 1

    def _share(self) -> Share:
        """What this process takes of the data."""
        share = share_of(self._shard, self.policy)
        if share.of > 1 and isinstance(self.spec, Exact):
            raise ValueError(
                f'signals="exact" gives no rows that {share.of} ranks could give each other; use '
                'signals="sketch"'
            )
        return share

    def _take_share(self) -> None:
        """Look again which ranks there are: trainers make their process group after the loader."""
        share, before = self._share(), self._batching
        if share == before.share:
            return
        batching = replace(before, share=share)
        check_something_left(batching)
        if self._step or (self.epoch and batching.units != before.units):
            raise ValueError(
                f"the epoch began with {before.share.of} ranks, and there are {share.of} now; call "
                "torch.distributed.init_process_group() before the loop"
            )
        self._batching = self._rest.batching = batching
        state = self._observer.state
        if batching.units != before.units:
            state = opened(self.policy, batching.units, self.seed, None)
        observer = Observer(self.policy, state, **self._how())
        for name in ("errors", "seconds", *COUNTS):
            setattr(observer, name, getattr(self._observer, name))
        self._observer = observer
        self._open_epoch()

    def _how(self) -> dict[str, Any]:
        """How an observer is made here."""
        return {"visits": self._batching.visits, "together": self._together}

    def _open_epoch(self) -> None:
        """Tell the samplers the order; put hooks on the model in an observed epoch, off in others."""
        self._rest.coming = self._observer.coming
        if self._rest.coming is None:
            self._rest.order = self.order
        self._rest.epoch, self._rest.start = self.epoch, self._step
        self._owners = self._batching.owners(self.epoch)
        # Asked once: a user's function may change its mind.
        self._scheduled = self._schedule(self.epoch) or self._postponed
        if self._source is None:
            return
        if self.observing:
            self._source.attach()
            self._watch.start()
        else:
            self._source.pause()
            self._watch.stop()

    def _seconds(self) -> float:
        """Processor time spent on signals and the policy so far, in the training's thread."""
        return self._observer.seconds + self._records.seconds

    def _wall_so_far(self) -> float:
        """Seconds that epochs took, the present one's until now."""
        return self._wall + (time.perf_counter() - self._clock if self._clock else 0.0)

    def _overhead(self) -> float:
        wall = self._wall_so_far()
        return self._seconds() / wall if wall else 0.0

    def _identity(self) -> dict[str, Any]:
        return {
            "examples": self._batching.n,
            "batch_size": self._batching.size,
            "drop_last": self._batching.drop_last,
            "seed": self.seed,
            "signals": "none" if self.spec is None else describe(self.spec),
        }
