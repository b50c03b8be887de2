"""The strategy: the one you have still configures and aggregates; the policy decides who takes part.

What needs no Flower (whose turn it is, signals, the saved state) is in `wellorder._clients`.
"""

from __future__ import annotations

import io
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError, InconsistentMessageReplies
from flwr.serverapp.strategy import Result, Strategy

from wellorder._arguments import one_of, path_of, real_number, seed_of, shown, whole_number
from wellorder._clients.federation import Federation, Visit
from wellorder._clients.tolerance import Tolerance
from wellorder._clients.updates import Signal, odd_ones, shape_of
from wellorder._order import Policy, policy_of
from wellorder._saving import load_state, save_state
from wellorder.flower._memory import check_memory, recall, remembered, snapshot
from wellorder.flower._nodes import LOG, Nodes, NodesView

Failures = dict[int, tuple[str, Message | None]]
"""Why each client failed, and the error that it sent, if it sent any."""


class OrderedStrategy(Strategy):
    r"""Any Flower strategy, clients visited in a policy's order (Algorithms ``alg:FL``, ``alg:FL-GraB``).

    Each epoch visits every known client once, ``cohort`` at a time. Pseudo-gradients (global minus local
    arrays) are shown to the policy in cohort order, whatever order replies come in; the policy's next order
    rules the next epoch. An epoch ends at :math:`x_{q+1} = x_q - \eta(x_q - w)`.

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
        ``"exact"``, ``"sketch"`` (1,024 numbers), or ``"auto"``: exact up to about a million parameters.
    state
        A file that is rewritten after each round, whole; if it exists, `start` goes on from it. It holds
        what the inner strategy has learnt as well, if that is arrays or plain values.
    tolerance
        How to treat clients that fail, leave, or send nonsense.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> from wellorder import PairGraB
    >>> from wellorder.flower import OrderedStrategy
    >>> OrderedStrategy(FedAvg(), PairGraB(), cohort=10)
    OrderedStrategy(FedAvg, PairGraB(rule=Deterministic(), reorders=1), cohort=10)
    """

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
        file = None if state is None else path_of("state", state)
        for layer in _layers(inner):
            _check_inner(layer, cohort)
            if state is not None:
                check_memory(layer)
        self.inner = inner
        self.clients = cohort if clients is None else clients
        self.state = file
        self.tolerance = tolerance or Tolerance()
        self.federation = Federation(
            policy, cohort, seed, server_step=server_step, signals=signals, tolerance=self.tolerance
        )
        self._new = [snapshot(layer) for layer in _layers(inner)]
        self._nodes = Nodes(names)
        self._record: ArrayRecord | None = None
        self._views: Any = None
        self._given: ArrayRecord | None = None
        self._sent: list[tuple[int, Message]] = []
        self._seen: deque[str] = deque(maxlen=1000)
        self._round = 0

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
        """Run as any Flower strategy does; if the state file exists, go on after its last finished round."""
        if self.state is not None and self.state.exists():
            self._load(self.state, initial_arrays)
            LOG.info("[ORDER] going on after round %d from %s", self.federation.rounds, self.state)
        done, left = self.federation.rounds, max(num_rounds - self.federation.rounds, 0)
        evaluate = evaluate_fn and (lambda at, model: evaluate_fn(at + done, model))
        arrays = self._as_record() if self.federation.model else initial_arrays
        result = super().start(grid, arrays, left, timeout, train_config, evaluate_config, evaluate)
        for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, name, {at + done: record for at, record in getattr(result, name).items()})
        result.arrays = self._as_record() if self.federation.model else initial_arrays
        return result

    def configure_train(
        self,
        server_round: int,  # noqa: ARG002 - counts from the restart, ours from the beginning
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Let the inner strategy write to the next cohort."""
        self._round = self.federation.rounds + 1
        if self._record is None or arrays is not self._given:
            self._hold(arrays)
            self._given = arrays
        chosen = self._next_cohort(grid)
        nodes = {self._nodes.of[self.names[client]]: client for client in chosen}
        self._sent = []
        if not nodes:
            LOG.warning("[ORDER] round %d: nobody to ask", self._round)
            return []
        view = NodesView(grid, list(nodes), _wanted(self.inner, "min_train_nodes"))
        for layer in _layers(self.inner):
            if isinstance(getattr(layer, "current_arrays", None), ArrayRecord):
                layer.current_arrays = self._as_record()  # type: ignore[attr-defined]
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
        signal = federation.signal()
        visits = self._visits(answers, signal)
        bad = {visit.client: visit.fault for visit in visits if visit.fault}
        drop = bad if self.tolerance.bad_updates == "drop" else {}
        kept = {client: reply for client, reply in answers if client not in drop}
        moved, metrics = self._aggregate([*kept.values()], [reply for _, reply in failed.values() if reply])
        if moved is None and kept:
            failed |= dict.fromkeys(kept, ("the inner strategy took nothing", None))
            visits = [visit for visit in visits if visit.client not in kept]
        federation.rounds = self._round
        if moved is not None:
            self._hold(moved)
        figures = federation.take(signal, visits, list(failed), moved is not None)
        self._given = self._given if moved is None else self._as_record()
        self._log(figures, failed, bad)
        self._save()
        self._stop_if_fruitless()
        metrics = MetricRecord() if metrics is None else metrics
        metrics.update({f"order-{name}": value for name, value in figures.items()})
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
        view = NodesView(grid, nodes, _wanted(self.inner, "min_evaluate_nodes"))
        written = self.inner.configure_evaluate(self._round, arrays, config, view) if nodes else []
        return [message for message in written if message.metadata.dst_node_id in set(nodes)]

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Leave it to the inner strategy."""
        return self.inner.aggregate_evaluate(self._round, replies)

    def _next_cohort(self, grid: Grid) -> tuple[int, ...]:
        """Wait for somebody whose turn it is, at most ``patience`` seconds."""
        deadline = time.monotonic() + self.tolerance.patience
        while True:
            late = time.monotonic() >= deadline
            present = self._nodes.look(grid)
            queue, chosen = self.federation.queue, None
            epoch, waiting = queue.epoch, queue.waiting
            if late or not self._nodes.pending(self.tolerance.patience):
                chosen = self.federation.choose(present, self.clients, late)
            if queue.epoch > epoch >= 0:
                missing = ", ".join(self.federation.names[client] for client in waiting)
                LOG.warning("[ORDER] epoch %d is closed without %s", epoch, missing)
            if chosen is not None:
                return chosen
            time.sleep(min(self.tolerance.poll, max(deadline - time.monotonic(), 0.0)))

    def _hold(self, record: ArrayRecord) -> None:
        """Take a new model from outside."""
        self._record, self._views = record, _arrays(record)
        self.federation.model = self._views

    def _as_record(self) -> ArrayRecord:
        """The model as a record: the one held, unless an epoch's end has changed the arrays."""
        if self._record is None or self.federation.model is not self._views:
            self._hold(_as_record(self.federation.model))
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

    def _visits(self, answers: list[tuple[int, Message]], signal: Signal) -> list[Visit]:
        """Look at the answers, before the inner strategy does."""
        weight = next(
            (w for layer in _layers(self.inner) if (w := getattr(layer, "weighted_by_key", ""))), ""
        )
        reports = {client: _report(reply) for client, reply in answers}
        odd = odd_ones(reports, weight, self._seen) if weight else {}
        self._seen += [shape_of(report) for client, report in reports.items() if client not in odd]
        return [
            Visit(client, {}, fault=odd[client])
            if client in odd
            else self.federation.measure(signal, client, _reply_arrays(reply))
            for client, reply in answers
        ]

    def _aggregate(
        self, good: list[Message], errors: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Ask the inner strategy; replies that it cannot combine are a failed round, not the run's end."""
        if not good:
            return None, None
        try:
            return self.inner.aggregate_train(self._round, good + errors)
        except (InconsistentMessageReplies, AggregationError) as error:
            LOG.error("[ORDER] round %d could not be aggregated: %s", self._round, error)
            return None, None

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

    def _stop_if_fruitless(self) -> None:
        if self.federation.fruitless >= self.tolerance.fruitless:
            raise RuntimeError(
                f"no update arrived in {self.federation.fruitless} rounds in a row; see in the log what the "
                "clients reported, then start again (with state=… the run goes on), or raise fruitless"
            )

    def _save(self) -> None:
        if self.state is None or self.federation.queue.state is None:
            return
        inner = [remembered(layer, new) for layer, new in zip(_layers(self.inner), self._new, strict=True)]
        numbered = {f"{depth}": learnt for depth, learnt in enumerate(inner)}
        save_state(self.state, {**self.federation.saved(), "inner": numbered})

    def _load(self, path: Path, initial: ArrayRecord) -> None:
        saved = load_state(path)
        if not {"model", "inner", "queue"} <= saved.keys():
            raise ValueError(f"state={str(path)!r} was not saved by this strategy; delete it to start anew")
        theirs = {name: list(array.shape) for name, array in saved["model"].items()}
        given = {name: list(array.shape) for name, array in initial.items()}
        if theirs != given:
            raise ValueError(
                f"state={str(path)!r} holds a model with arrays {theirs}, initial_arrays are {given}; "
                "pass the model that it was saved with, or another file"
            )
        self.federation.restore(saved)
        layers, told = list(_layers(self.inner)), list(saved["inner"].values())
        if len(told) != len(layers):
            raise ValueError(
                f"state={str(path)!r} was saved with {len(told)} strategies inside, now there are "
                f"{len(layers)}; pass those it was saved with, or another file"
            )
        for layer, learnt in zip(layers, told, strict=True):
            recall(layer, learnt)
        self._given = self._as_record()


def _layers(inner: Any) -> Iterator[Strategy]:
    """The inner strategy, and those that it wraps."""
    while isinstance(inner, Strategy):
        yield inner
        inner = getattr(inner, "strategy", None)


def _wanted(inner: Strategy, name: str) -> int:
    """Fewest nodes that the inner strategy goes on with, as far as it tells."""
    return max(getattr(layer, key, 0) for layer in _layers(inner) for key in (name, "min_available_nodes"))


def _check_settings(
    policy: Policy[Any], cohort: int, seed: int, server_step: float, clients: int | None
) -> None:
    """Refuse a policy or numbers with which no federation can run."""
    seed_of(seed)
    for name, count in (("cohort", cohort), ("clients", 1 if clients is None else clients)):
        whole_number(name, count, least=1, cure="pass a number of clients")
    real_number("server_step", server_step, above=0)
    if policy_of(policy).needs.at_start(0):
        raise ValueError(
            f"policy={policy!r} needs every client's gradient before an epoch begins, which a federation has "
            "not; use PairGraB() or GraB()"
        )


def _check_inner(layer: Any, cohort: int) -> None:
    """Refuse settings under which the inner strategy would sample by itself, or wait for ever."""
    name, fraction = type(layer).__name__, getattr(layer, "fraction_train", 1.0)
    if fraction != 1.0:
        raise ValueError(
            f"inner: {name}(fraction_train={fraction}) would draw from the cohort at random; pass "
            f"fraction_train=1.0 (cohort={cohort} says how many clients train)"
        )
    for setting in ("min_train_nodes", "min_available_nodes"):
        least = getattr(layer, setting, 0)
        if least > cohort and not (cohort == 1 and least == 2):
            raise ValueError(
                f"inner: {name}({setting}={least}) would wait for ever in rounds of cohort={cohort}; pass "
                f"{setting}={cohort} (OrderedStrategy(clients={least}) waits for so many before it begins)"
            )
    sampled = getattr(layer, "num_sampled_clients", cohort)
    if sampled != cohort:
        raise ValueError(
            f"inner: {name}(num_sampled_clients={sampled}) in rounds of cohort={cohort}; pass {cohort}"
        )


def _report(reply: Message) -> tuple[list[str], dict[str, Any]]:
    content = reply.content
    return list(content.array_records), {
        name: dict(record) for name, record in content.metric_records.items()
    }


def _reply_arrays(reply: Message) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a reply; none if it does not hold exactly one readable record of them."""
    records = list(reply.content.array_records.values())
    try:
        return _arrays(records[0]) if len(records) == 1 else {}
    except (TypeError, ValueError):
        return {}


def _arrays(record: ArrayRecord) -> dict[str, npt.NDArray[Any]]:
    """Views of a record's arrays: their bytes are read where they are, and nothing is unpickled."""
    return {name: _view(array) for name, array in record.items()}


def _view(array: Array) -> npt.NDArray[Any]:
    header = io.BytesIO(array.data)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    reader = readers.get(np.lib.format.read_magic(header)) if array.stype == "numpy.ndarray" else None
    if reader is None:
        return array.numpy()
    shape, fortran, dtype = reader(header)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    flat = np.frombuffer(array.data, dtype, count=math.prod(shape), offset=header.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def _as_record(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
