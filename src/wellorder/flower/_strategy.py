"""The strategy: the one you have still configures and aggregates; the policy decides who takes part.

What needs no Flower (whose turn it is, signals, the saved state) is in `wellorder._clients`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError, InconsistentMessageReplies
from flwr.serverapp.strategy import Result, Strategy

from wellorder._arguments import one_of, path_of, real_number, seed_of, shown, whole_number
from wellorder._clients.federation import Federation, Visit
from wellorder._clients.heterogeneity import expectation
from wellorder._clients.queue import check_cohort
from wellorder._clients.tolerance import Tolerance
from wellorder._clients.updates import Signal, odd_ones, shape_of
from wellorder._order import Policy, policy_of
from wellorder.flower._inner import (
    accounts,
    averages,
    check_inner,
    check_kind,
    check_whole,
    layers,
    told,
    wanted,
)
from wellorder.flower._memory import Memory, check_memory
from wellorder.flower._nodes import LOG, Nodes, NodesView
from wellorder.flower._records import History, arrays_of, record_of, reply_arrays, report_of

Failures = dict[int, tuple[str, Message | None]]
"""Why each client failed, and the error that it sent, if it sent any."""
SAID_EVERY = 10.0
"""Seconds after which a line about waiting is said again."""


class OrderedStrategy(Strategy):
    r"""Any Flower strategy, clients visited in a policy's order (Algorithm 2).

    Each epoch visits every known client once, ``cohort`` at a time. Pseudo-gradients (global minus local
    arrays) are shown to the policy in cohort order, whatever order replies come in; the policy's next order
    rules the next epoch. An epoch ends at :math:`x_{q+1} = x_q - \eta(x_q - w)`. After the second epoch
    the log says how much clients differ, and what to expect of ordering.

    Parameters
    ----------
    inner
        The strategy that configures and aggregates: FedAvg, FedAdam, FedProx, a DP wrapper, ….
    policy
        `PairGraB()` for FL-GraB, `RandomReshuffling()` for FL-RR, `ShuffleOnce()` for FL-SO, ….
    cohort
        S, the clients of a round. The theory wants S even and a divisor of the number of clients.
    seed, server_step
        The seed of all randomness, and the amplification η at an epoch's end.
    clients
        How many clients to wait for before the first epoch; later ones join with the next epoch.
    names
        ``"query"`` asks each ClientApp for its name or partition-id; ``"key"`` uses the node's public key,
        which is stable where SuperNodes are started with keys of their own.
    signals
        ``"exact"``, ``"sketch"`` (1,024 numbers), or ``"auto"``: exact up to about a million parameters,
        and a sketch where the policy keeps every client's signal.
    state
        A file that is rewritten after each round, whole; if it exists, `start` goes on from it. It holds
        what the inner strategy has learnt as well, if that is arrays or plain values. Beside it are the
        round before (``.previous``), which serves if it is damaged, and all metrics (``.history``).
    tolerance
        How to treat clients that fail, leave, or send nonsense.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> from wellorder import PairGraB
    >>> from wellorder.flower import OrderedStrategy
    >>> OrderedStrategy(FedAvg(), PairGraB(), cohort=10)
    OrderedStrategy(FedAvg, PairGraB(rule=Deterministic(), reorders=1), cohort=10)
    """

    orders_clients: ClassVar[bool] = True

    def __init__(
        self,
        inner: Strategy,
        policy: Policy[Any],
        cohort: int,
        *,
        seed: int = 0,
        server_step: float = 1.0,
        clients: int | None = None,
        names: Literal["query", "key"] = "query",
        signals: Literal["auto", "exact", "sketch"] = "auto",
        state: str | Path | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        _check_settings(policy, cohort, seed, server_step, clients)
        one_of("names", names, ("query", "key"))
        one_of("signals", signals, ("auto", "exact", "sketch"))
        if tolerance is not None and not isinstance(tolerance, Tolerance):
            raise ValueError(f"tolerance={shown(tolerance)}: pass a wellorder.flower.Tolerance")
        if state is not None:
            path_of("state", state)
        check_kind(inner)
        for layer in layers(inner):
            check_inner(layer, cohort, clients)
            if state is not None:
                check_memory(layer)
        self.inner = inner
        self.clients = cohort if clients is None else clients
        self.tolerance = tolerance or Tolerance()
        self.federation = Federation(
            policy, cohort, seed, server_step=server_step, signals=signals, tolerance=self.tolerance
        )
        self._memory = Memory(None if state is None else Path(state), list(layers(inner)))
        self._history = History(self._memory.beside("history"))
        self._nodes = Nodes(names)
        self._record: ArrayRecord | None = None
        self._views: Any = None
        self._given: ArrayRecord | None = None
        self._sent: list[tuple[int, Message]] = []
        self._seen: deque[str] = deque(maxlen=1000)
        self._said = ("", 0.0)
        self._round = 0
        self._started = False

    def __repr__(self) -> str:
        policy, cohort = self.federation.queue.policy, self.federation.cohort
        return f"OrderedStrategy({type(self.inner).__name__}, {policy!r}, cohort={cohort})"

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names; client ``c`` of the metrics is ``names[c]``."""
        return tuple(self.federation.names)

    def summary(self) -> None:
        """Log what the strategy does, then what the inner one does."""
        LOG.info("\t├──> %r", self)
        self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run as any Flower strategy does; if the state file exists, go on after its last finished round.

        A round in which the model did not move is tried again: ``num_rounds`` counts those in which it did.
        Raises a RuntimeError after ``fruitless`` tries in a row. The result holds all rounds, also those
        before a restart.
        """
        if self._started:
            raise RuntimeError(
                "this strategy was started before; make a new one (with state=… it goes on where this one is)"
            )
        self._started, began = True, time.monotonic()
        arrays, history, federation = self._opened(initial_arrays), self._history, self.federation
        first = federation.rounds
        LOG.info("Starting %r: %d rounds, %.2f MB", self, num_rounds, _megabytes(arrays))
        self.summary()
        if first >= num_rounds:
            LOG.warning("[ORDER] nothing is left to do: %d of %d rounds are done", first, num_rounds)
        if evaluate_fn is not None:
            history.add("server", first, evaluate_fn(first, arrays))
        asked, looked = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        while federation.rounds < num_rounds:
            number = federation.rounds + 1
            LOG.info("[ROUND %d/%d]", number, num_rounds)
            messages = self.configure_train(number, arrays, asked, grid)
            moved, _ = self.aggregate_train(number, grid.send_and_receive(messages, timeout=timeout))
            if moved is None:
                LOG.warning("[ORDER] round %d did not move the model; it is tried again", number)
                continue
            arrays = moved
            messages = self.configure_evaluate(number, arrays, looked, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            history.add("evaluate", number, self.aggregate_evaluate(number, replies))
            if evaluate_fn is not None:
                history.add("server", number, evaluate_fn(number, arrays))
        history.result.arrays = arrays
        self._summarised(first, time.monotonic() - began)
        return history.result

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002 - ours counts the rounds that moved the model
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Let the inner strategy write to the next cohort."""
        self._round = self.federation.rounds + 1
        if self._record is None or arrays is not self._given:
            self._hold(arrays)
            self.federation.check_model()
            self._given = arrays
        chosen = self._next_cohort(grid)
        nodes = {self._nodes.of[self.names[client]]: client for client in chosen}
        self._sent = []
        if not nodes:
            LOG.warning("[ORDER] round %d: nobody to ask", self._round)
            return []
        view = NodesView(grid, list(nodes), wanted(self.inner, "min_train_nodes"))
        for layer in layers(self.inner):
            if isinstance(getattr(layer, "current_arrays", None), ArrayRecord):
                layer.current_arrays = self._as_record()
        written = self.inner.configure_train(self._round, self._as_record(), config, view)
        by_node = {message.metadata.dst_node_id: message for message in written}
        self._sent = [(client, by_node[node]) for node, client in nodes.items() if node in by_node]
        return [message for _, message in self._sent]

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the replies in cohort order, then show them to the policy."""
        federation = self.federation
        answers, failed = self._sorted(replies)
        visits, signal = self._visits(answers, self._odd(answers) if averages(self.inner) else {})
        moved, metrics, bad = self._combined(answers, visits, failed)
        if moved is None:
            spared = bad if self.tolerance.bad_updates == "drop" else {}
            failed |= {c: ("the inner strategy took nothing", None) for c, _ in answers if c not in spared}
            visits = [visit for visit in visits if visit.client in spared]
        else:
            visits = [Visit(v.client, {}, fault=bad[v.client]) if v.client in bad else v for v in visits]
            self._hold(moved)
            federation.rounds = self._round
        epoch = federation.queue.epoch
        figures = federation.take(signal, visits, list(failed), moved is not None)
        self._given = self._given if moved is None else self._as_record()
        self._log(figures, failed, bad)
        for visit in visits:
            if visit.fault and visit.client not in bad:
                LOG.info("[ORDER] client %s gives no signal: %s", self.names[visit.client], visit.fault)
        self._say_what_to_expect(epoch)
        metrics = MetricRecord() if metrics is None else metrics
        metrics.update({f"order-{name}": value for name, value in figures.items()})
        self._history.add("train", self._round, metrics)
        if federation.queue.state is not None:
            self._memory.save(federation.saved())
        self._stop_if_fruitless()
        return (None if moved is None else self._given), metrics

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Let the inner strategy evaluate on whom it likes; it cannot wait for clients that are not there."""
        nodes = list(grid.get_node_ids())
        view = NodesView(grid, nodes, wanted(self.inner, "min_evaluate_nodes"))
        written = self.inner.configure_evaluate(self._round, arrays, config, view) if nodes else []
        return [message for message in written if message.metadata.dst_node_id in set(nodes)]

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Leave it to the inner strategy."""
        return self.inner.aggregate_evaluate(self._round, replies)

    def _opened(self, initial: ArrayRecord) -> ArrayRecord:
        """The model to begin with: that of the state file, if there is one."""
        saved = self._memory.load({name: list(array.shape) for name, array in initial.items()})
        if saved is None:
            self._history.clear()
            return initial
        self.federation.restore(saved)
        self._memory.recall(saved)
        self._history.load(self.federation.rounds)
        self._given = self._as_record()
        LOG.info("[ORDER] going on after round %d from %s", self.federation.rounds, self._memory.path)
        return self._given

    def _next_cohort(self, grid: Grid) -> tuple[int, ...]:
        """Wait for somebody whose turn it is, at most ``patience`` seconds."""
        federation, queue = self.federation, self.federation.queue
        began = time.monotonic()
        deadline = began + self.tolerance.patience
        while True:
            late = time.monotonic() >= deadline
            present = self._nodes.look(grid, refuse=queue.epoch < 0)
            epoch, waiting, chosen = queue.epoch, queue.waiting, None
            if late or not self._nodes.pending(self.tolerance.patience):
                chosen = federation.choose(present, self.clients, late)
                if chosen and len(chosen) < federation.cohort and accounts(self.inner):
                    chosen = self._whole_cohort(present, late)
            if queue.epoch > epoch:
                self._say_epoch(epoch, waiting, len(present), time.monotonic() - began)
                self._say_what_to_expect(epoch)
            if chosen is not None:
                return chosen
            self._say_waiting(len(present))
            time.sleep(min(self.tolerance.poll, max(deadline - time.monotonic(), 0.0)))

    def _whole_cohort(self, present: list[str], late: bool) -> tuple[int, ...] | None:
        """Who is next where a short cohort must not train: wait, then go on with the next epoch."""
        federation = self.federation
        if federation.queue.epoch == 0:
            check_whole(federation.queue.size, federation.cohort)
        if not late:
            return None
        federation.give_up()
        chosen = federation.choose(present, self.clients, late) or ()
        return chosen if len(chosen) == federation.cohort else ()

    def _say_epoch(self, before: int, waiting: Any, present: int, seconds: float) -> None:
        """Say that an epoch began with fewer clients than wanted, or that one was closed without some."""
        names = self.federation.names
        if before < 0:
            if present < self.clients:
                LOG.warning(
                    "[ORDER] after %.0f s the first epoch begins with %d of %d clients; others join later",
                    seconds, present, self.clients,
                )  # fmt: skip
            if accounts(self.inner):
                check_whole(self.federation.queue.size, self.federation.cohort)
            return
        LOG.warning("[ORDER] epoch %d is closed without %s", before, ", ".join(names[c] for c in waiting))

    def _say_waiting(self, present: int) -> None:
        """Say for whom the round waits, when that changes and now and then."""
        queue = self.federation.queue
        if queue.epoch < 0:
            text = f"Waiting for nodes to connect: {present} connected (minimum required: {self.clients})"
        else:
            text = f"Waiting for clients: {len(queue)} of {queue.size} have not come, {present} connected"
        said, at = self._said
        if text != said or time.monotonic() >= at + SAID_EVERY:
            LOG.info("[ORDER] %s", text)
            self._said = text, time.monotonic()

    def _hold(self, record: ArrayRecord) -> None:
        """Take a new model from outside."""
        self._record, self._views = record, arrays_of(record)
        self.federation.model = self._views

    def _as_record(self) -> ArrayRecord:
        """The model as a record: the one held, unless an epoch's end has changed the arrays."""
        if self._record is None or self.federation.model is not self._views:
            self._hold(record_of(self.federation.model))
        return self._record or ArrayRecord()

    def _sorted(self, replies: Iterable[Message]) -> tuple[list[tuple[int, Message]], Failures]:
        """Sort this round's answers by the cohort's order; say what went wrong with the others."""
        asked = {message.metadata.message_id: client for client, message in self._sent}
        first: dict[int, Message] = {}
        for reply in replies:
            client = asked.get(reply.metadata.reply_to_message_id)
            if client is None:
                LOG.warning("[ORDER] ignored a reply to no message of round %d", self._round)
            elif client in first:
                LOG.warning("[ORDER] ignored a second reply of client %s", self.names[client])
            else:
                first[client] = reply
        failed: Failures = {}
        for client, _ in self._sent:
            if client not in first:
                failed[client] = ("no answer in time", None)
            elif first[client].has_error():
                failed[client] = (first[client].error.reason or "an error", first[client])
        return [(c, first[c]) for c, _ in self._sent if c not in failed], failed

    def _odd(self, answers: list[tuple[int, Message]]) -> dict[int, str]:
        """The answers that would keep FedAvg from averaging the others, and why."""
        reports = {client: report_of(reply) for client, reply in answers}
        odd = odd_ones(reports, told(self.inner, "weighted_by_key", "num-examples"), self._seen)
        self._seen += [shape_of(report) for client, report in reports.items() if client not in odd]
        return odd

    def _visits(
        self, answers: list[tuple[int, Message]], odd: Mapping[int, str]
    ) -> tuple[list[Visit], Signal]:
        """Look at the answers, before the inner strategy does."""
        key = told(self.inner, "arrayrecord_key", "arrays")
        model = self.federation.model
        arrays = {client: reply_arrays(reply, key, model) for client, reply in answers if client not in odd}
        signal = self.federation.signal(set().union(*arrays.values()))
        return [
            Visit(client, {}, fault=odd[client])
            if client in odd
            else self.federation.measure(signal, client, arrays[client])
            for client, _ in answers
        ], signal

    def _combined(
        self, answers: list[tuple[int, Message]], visits: list[Visit], failed: Failures
    ) -> tuple[ArrayRecord | None, MetricRecord | None, dict[int, str]]:
        """The inner strategy's model and metrics, and the bad updates, which it is spared.

        Replies that it cannot combine are a failed round, not the run's end. A strategy that aggregates by
        itself is handed those that give no signal, too; if it then finds them inconsistent, it is asked once
        more, without the odd ones.
        """
        alike = averages(self.inner)
        bad = {visit.client: visit.fault for visit in visits if visit.fault and (visit.bad or alike)}
        errors = [reply for _, reply in failed.values() if reply]
        for last in (alike, True):
            drop = bad if self.tolerance.bad_updates == "drop" else {}
            good = [reply for client, reply in answers if client not in drop]
            if not good and not accounts(self.inner):  # an accountant must hear that its round is over
                break
            try:
                moved, metrics = self.inner.aggregate_train(self._round, good + errors)
                return (moved, metrics, bad) if good else (None, None, bad)
            except InconsistentMessageReplies as error:
                LOG.error("[ORDER] round %d could not be aggregated: %s", self._round, error)
                more = {} if last else self._odd([(c, r) for c, r in answers if c not in bad])
                if not more:
                    break
                bad |= more
            except AggregationError as error:
                LOG.error("[ORDER] round %d could not be aggregated: %s", self._round, error)
                break
            except ValueError as error:  # a privacy accountant wants every reply of the cohort
                if not accounts(self.inner):
                    raise
                LOG.error("[ORDER] round %d could not be aggregated: %s", self._round, error)
                break
        return None, None, bad

    def _log(self, figures: Mapping[str, Any], failed: Failures, bad: Mapping[int, str]) -> None:
        names = self.names
        LOG.info(
            "[ORDER] round %d, epoch %d: visited %s (%d of %d), order error about %.4g",
            self._round, figures["epoch"], [names[c] for c in figures["cohort"]], figures["position"],
            figures["clients"], figures["error"],
        )  # fmt: skip
        for client, (reason, _) in failed.items():
            lines = reason.strip().splitlines() or ["an error"]
            LOG.warning("[ORDER] client %s failed: %s", names[client], lines[-1][:300])
        for client, fault in bad.items():
            LOG.warning(
                "[ORDER] client %s sent a bad update (%s): %s",
                names[client],
                self.tolerance.bad_updates,
                fault,
            )

    def _say_what_to_expect(self, before: int) -> None:
        """Say, once the second epoch is over, what ordering may save; ``before`` was the epoch until now."""
        if not before <= 1 < self.federation.queue.epoch:
            return
        measure = self.federation.differences.value(self.federation.cohort)
        if np.isfinite(measure):
            LOG.info("[ORDER] clients differ by %.2f: %s", measure, expectation(measure))
        else:
            LOG.info(
                "[ORDER] how much clients differ is not known: it takes two rounds of them that were seen in "
                "both of the first two epochs, by a server that was not restarted meanwhile"
            )

    def _summarised(self, first: int, seconds: float) -> None:
        """Log a run's end in a few lines, however many rounds it had."""
        federation, result = self.federation, self._history.result
        LOG.info(
            "[ORDER] finished: rounds %d to %d in %.1f s, %d epochs of %d clients",
            first + 1, federation.rounds, seconds, max(federation.queue.epoch, 0), federation.queue.size,
        )  # fmt: skip
        for title, reports in (
            ("training", result.train_metrics_clientapp),
            ("clients' evaluation", result.evaluate_metrics_clientapp),
            ("server's evaluation", result.evaluate_metrics_serverapp),
        ):
            if reports:
                last = max(reports)
                shown = {k: v for k, v in reports[last].items() if not isinstance(v, list)}
                LOG.info("[ORDER] %s after round %d: %s", title, last, shown)

    def _stop_if_fruitless(self) -> None:
        if self.federation.fruitless >= self.tolerance.fruitless:
            raise RuntimeError(
                f"no update arrived in {self.federation.fruitless} rounds in a row; see in the log what the "
                "clients reported, then start again (with state=… the run goes on), or raise fruitless"
            )


def _megabytes(arrays: ArrayRecord) -> float:
    return sum(len(array.data) for array in arrays.values()) / 2**20


def _check_settings(
    policy: Policy[Any], cohort: int, seed: int, server_step: float, clients: int | None
) -> None:
    """Refuse a policy or numbers with which no federation can run."""
    seed_of(seed)
    for name, count in (("cohort", cohort), ("clients", 1 if clients is None else clients)):
        whole_number(name, count, least=1, cure="pass a number of clients")
    real_number("server_step", server_step, above=0)
    check_cohort(policy_of(policy), cohort)
    if policy_of(policy).needs.at_start(0):
        raise ValueError(
            f"policy={policy!r} needs every client's gradient before an epoch begins, which a federation has "
            "not; use PairGraB() or GraB()"
        )
