"""A network of one's own as a task: model, data, loss, optimizer; trained in any order, by `ordered`."""

from __future__ import annotations

import inspect
import math
import re
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellorder._arguments import function, instance_of, is_real, one_of, shown, whole_number
from wellorder._order import Policy, policy_of, rng
from wellorder.experiments._tasks.network_data import (
    CURE,
    Examples,
    aside,
    examples_of,
    on_device,
    seed_everything,
)
from wellorder.experiments._tasks.network_training import Stepping, Training, is_pair, seen
from wellorder.experiments._tasks.task import LOSS, TEST_ACCURACY, TEST_LOSS
from wellorder.experiments._training import Settings
from wellorder.report._table import Metric
from wellorder.torch._validation import check_policy_fits

DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")
RESERVED = ("policy", "seed", "epoch", "gradients", "seconds", LOSS.column, TEST_LOSS.column)
WARM = 4
"""Batches of a run that nobody records: compilation is no cost of training."""


def sgd(params: Any) -> torch.optim.Optimizer:
    """SGD with momentum: the optimizer where none is named."""
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


@dataclass(frozen=True, eq=False)
class NetworkTask:
    """The task of training a network: your model, data, loss and optimizer, with the loop around them.

    Policies that learn from gradients, and those that know rows before, order the data through
    `wellorder.torch.ordered`, as you would switch it on; the others through a plain ``DataLoader``. All
    overhead is in the seconds.

    Parameters
    ----------
    model
        A function of no arguments that makes the network, such as its class: every run starts anew, with
        weights by its seed.
    data
        What to train on: ``(x, y)``, tensors or arrays; a ``Dataset`` (augmentation and all); a
        ``DataLoader``, whose batch size, workers and collate function are kept; or a function of no arguments
        that gives one of these.
    loss
        ``loss(model(x), y)`` where batches are pairs, else (dictionaries, triples) ``loss(model, batch)``.
    optimizer
        From the parameters to an optimizer: ``lambda params: torch.optim.Adam(params, lr=1e-3)``. Its step
        size is what ``--lr`` and ``--tune`` replace; those of several groups keep their ratios.
    scheduler
        From the optimizer to a learning-rate scheduler, which steps after every epoch, or after every step if
        ``scheduler_steps="batch"``.
    batch_size
        Examples in a step.
    test
        Data that are not trained on, in any form of ``data``; or a share of the data to hold out, such as
        ``0.2``, drawn by each run's seed.
    test_metrics
        Numbers to take on the test data, by name: functions like ``loss``, averaged over batches. Higher is
        better; where it is not, use a `wellorder.report.Metric` for the name. The first answers "better on
        test data?". Unless given: the accuracy, if labels are classes. The loss is always taken.
    epochs, device, name, title
        How long, where (``"cpu"``, ``"cuda"``), and what to call it.
    step
        What to do with a batch, ``step(model, batch, optimizer)``, if it is more than to take the loss, go
        back and step: clipping, mixed precision.
    workers, collate
        As for a ``DataLoader`` of the data set.
    command
        Words of ``wellorder compare`` that make this task, if it has any: for the report.

    >>> import torch
    >>> from wellorder.experiments import Config, NetworkTask, compare
    >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> task = NetworkTask(lambda: torch.nn.Linear(4, 2), (x, (x[:, 0] > 0).long()), test=0.25)
    >>> task.method
    'Linear (10 parameters) on 45 examples, SGD in batches of 32, momentum 0.9'
    >>> done = compare(task, Config(policies=("RR", "Steering"), epochs=2, seeds=(0, 1)))
    >>> done.table.column_names
    ['policy', 'seed', 'epoch', 'loss', 'test_accuracy', 'test_loss', 'gradients', 'seconds']
    """

    model: Callable[[], nn.Module]
    data: Any = field(repr=False)
    loss: Callable[[Any, Any], Tensor] = functional.cross_entropy
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    scheduler: Callable[[Any], Any] | None = None
    batch_size: int = 32
    test: Any = field(default=None, repr=False)
    test_metrics: Mapping[str | Metric, Callable[[Any, Any], Any]] | None = None
    epochs: int = 10
    device: str = "cpu"
    name: str = "network"
    title: str = ""
    step: Callable[[Any, Any, Any], object] | None = None
    scheduler_steps: str = "epoch"
    workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, given in (("model", nn.Module), ("optimizer", torch.optim.Optimizer)):
            value = getattr(self, what)
            if isinstance(value, given):
                raise ValueError(
                    f"{what}={shown(value)}: every run needs a new one; pass a function that makes it"
                )
        function("model", self.model, "of no arguments that makes the network")
        function("loss", self.loss, "of the model's output and the labels")
        function("optimizer", self.optimizer, "from the parameters to an optimizer")
        for what, does in (
            ("scheduler", "from the optimizer to a scheduler"),
            ("step", "of the model, a batch and the optimizer"),
            ("collate", "from examples to a batch"),
        ):
            if getattr(self, what) is not None:
                function(what, getattr(self, what), does)
        for what, least in (("batch_size", 1), ("epochs", 1), ("workers", 0)):
            whole_number(what, getattr(self, what), least=least)
        one_of("scheduler_steps", self.scheduler_steps, ("epoch", "batch"))
        for what in ("name", "title"):
            instance_of(what, getattr(self, what), str, "pass a line of text")
        if not isinstance(self.device, str) or not DEVICE.fullmatch(self.device):
            raise ValueError(f"device={shown(self.device)}: pass such as 'cpu' or 'cuda'")
        if self._share is not None and not 0 < self._share < 1:
            raise ValueError(f"test={shown(self.test)}: pass a share between 0 and 1 to hold out, or data")
        own = self.test_metrics
        named = isinstance(own, Mapping) and all(isinstance(key, str | Metric) for key in own)
        if own is not None and (not named or not all(key and callable(value) for key, value in own.items())):
            raise ValueError(f"test_metrics={shown(own)}: pass functions by name, as {{'f1': f1}}")
        taken = [key for key in own or () if _column(key) in RESERVED]
        if taken:
            raise ValueError(f"test_metrics: {_column(taken[0])!r} is a column already; call it otherwise")
        if own and self.test is None:
            raise ValueError("test_metrics: there are no test data to take them on; pass test=0.2, or data")
        if not isinstance(self.command, tuple) or not all(isinstance(word, str) for word in self.command):
            raise ValueError(f"command={shown(self.command)}: pass a tuple of words")
        if self.data is None:
            raise ValueError(f"data=None: {CURE}")
        if not self.title:
            object.__setattr__(self, "title", self.name)

    def __getstate__(self) -> dict[str, Any]:
        """What was given; what was made of it stays in this process."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @property
    def _share(self) -> float | None:
        """The share of the data to hold out, if it is one."""
        return float(self.test) if is_real(self.test) else None

    @cached_property
    def _data(self) -> tuple[Examples, Examples | None]:
        """All data, and those to test on where they are apart."""
        how: dict[str, Any] = {
            "batch_size": self.batch_size,
            "workers": self.workers,
            "collate": self.collate,
        }
        data = examples_of("data", self.data, **how)
        if self._share is None:
            return data, None if self.test is None else examples_of("test", self.test, **how)
        if not 1 <= self._held_out(len(data)) < len(data):
            raise ValueError(
                f"test={self.test}: leaves nothing of {len(data)} examples on one side; pass data"
            )
        return data, None

    def _held_out(self, n: int) -> int:
        return round(n * (self._share or 0.0))

    def _split(self, seed: int) -> tuple[Examples, Examples | None]:
        """What a seed trains on, and what it tests on."""
        data, test = self._data
        if self._share is None:
            return data, test
        mixed = rng(seed, 0, "held out").permutation(len(data))
        cut = self._held_out(len(data))
        return data.part(sorted(mixed[cut:])), data.part(sorted(mixed[:cut]))

    @property
    def n(self) -> int:
        """The number of examples that are trained on."""
        return len(self._data[0]) - self._held_out(len(self._data[0]))

    @property
    def knows(self) -> tuple[str, ...]:
        """What is known of all examples before training: "labels", "inputs"."""
        return self._data[0].knows

    @property
    def step_size(self) -> float:
        """The optimizer's own."""
        found: float = self._facts["step_size"]
        return found

    @property
    def grid(self) -> tuple[float, ...]:
        return (self.step_size / 10, self.step_size, self.step_size * 10)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The training loss, and what is taken on the test data."""
        return (LOSS, *self._measures, TEST_LOSS) if self.test is not None else (LOSS,)

    @property
    def _measures(self) -> dict[Metric, Callable[[Any, Any], Any]]:
        if self.test_metrics is None:
            return {TEST_ACCURACY: accuracy} if self._classes else {}
        plain = Metric("", "", lower_is_better=False, log=False, held_out=True)
        return {
            replace(key, held_out=True)
            if isinstance(key, Metric)
            else replace(plain, column=key, label=key): take
            for key, take in self.test_metrics.items()
        }

    @property
    def method(self) -> str:
        """How it trains, in words: model, data, optimizer, batch."""
        facts, data = self._facts, self._data[0]
        words = [f"{facts['model']} ({facts['parameters']:,} parameters) on {self.n:,} examples"]
        words += [f"{facts['optimizer']} in batches of {data.batch_size}", *facts["options"]]
        words += [facts["scheduler"]] if facts["scheduler"] else []
        words += [f"on {self.device}"] if self.device != "cpu" else []
        return ", ".join(words)

    def fingerprint(self) -> dict[str, Any]:
        """What tells this task from another of its name: model, optimizer, batch, code, looks at the data."""
        facts, (data, test) = self._facts, self._data
        with aside(self.device):
            checksums = {
                "data": data.checksum(),
                "test_data": test.checksum() if test is not None else self._share,
            }
        return {
            "kind": "network",
            **{name: facts[name] for name in ("model", "parameters", "layers", "weights")},
            "optimizer": ", ".join([facts["optimizer"], *facts["options"]]),
            "scheduler": facts["scheduler"],
            "code": f"{zlib.crc32(repr([_source(f) for f in self._functions()]).encode()):08x}",
            "batch": data.batch_size,
            "device": self.device,
            "metrics": [metric.column for metric in self.metrics],
            "n": self.n,
            "tests": len(test) if test is not None else self._held_out(len(data)),
            **checksums,
        }

    def _functions(self) -> list[Any]:
        own = self.test_metrics or {}
        return [self.loss, self.step, self.scheduler, self.collate, *own.values()]

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What a look at a new model and its optimizer tells."""
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device={self.device!r}: torch finds no such device here; pass device='cpu'")
        with aside(self.device):
            model = self._new_model()
            optimizer, scheduler = self._new_optimizer(model)
            facts = {
                "made": weakref.ref(model),
                "model": _name(self.model, model),
                "parameters": sum(p.numel() for p in model.parameters()),
                "layers": f"{zlib.crc32(repr(model).encode()):08x}",
                "weights": f"{sum(float(p.detach().abs().sum()) for p in model.parameters()):.3e}",
                "step_size": float(optimizer.param_groups[0]["lr"]),
                "optimizer": type(optimizer).__name__,
                "options": _options(optimizer),
                "scheduler": "" if scheduler is None else type(scheduler).__name__,
            }
        return facts

    @cached_property
    def _classes(self) -> bool:
        """Whether labels are classes; a batch goes through a new model, so that mistakes are told at once."""
        with aside(self.device), torch.enable_grad():
            return self._tried(self._new_model(), self._data[0].to(self.device).first_batch())

    def _new_model(self) -> nn.Module:
        made: Any = _called("model()", self.model)
        if not isinstance(made, nn.Module):
            raise ValueError(
                f"model() returned {shown(made)}: pass a function that returns a torch.nn.Module"
            )
        known = self.__dict__.get("_facts")
        if known is not None and known["made"]() is made:
            raise ValueError("model() returns the same module every time; make a new one in it, for each run")
        return made.to(self.device)

    def _new_optimizer(self, model: nn.Module, step_size: float | None = None) -> tuple[Any, Any]:
        optimizer = _called("optimizer(params)", self.optimizer, model.parameters())
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer(params) returned {shown(optimizer)}: return a torch.optim.Optimizer")
        first = float(optimizer.param_groups[0]["lr"])
        if not first > 0:
            raise ValueError(f"optimizer(params) has the step size {first}; give it a positive one")
        if step_size is not None and step_size != first:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] / first * step_size
        made = self.scheduler and _called("scheduler(optimizer)", self.scheduler, optimizer)
        if made is not None and not hasattr(made, "step"):
            raise ValueError(f"scheduler(optimizer) returned {shown(made)}: return a learning-rate scheduler")
        return optimizer, made

    def _tried(self, model: nn.Module, batch: Any) -> bool:
        """Take the loss of a batch; whether labels are classes, and outputs have a score for each."""
        output, labels, loss = self._loss_of(model, batch, "first batch")
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ValueError(
                f"loss: returned {shown(loss)} for the first batch; return one number that depends on the "
                "model"
            )
        if not isinstance(output, Tensor) or not isinstance(labels, Tensor):
            return False
        whole = labels.dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        return whole and output.ndim == labels.ndim + 1 and output.ndim > 1

    def _loss_of(self, model: nn.Module, batch: Any, which: str) -> tuple[Any, Any, Any]:
        """What the model says of a batch, the labels, and the loss; says what is wrong with them."""
        batch = on_device(batch, self.device)
        try:
            output, labels = seen(model, batch)
            return output, labels, self.loss(output, labels)
        except Exception as error:
            call = "loss(model(x), y)" if is_pair(batch) else "loss(model, batch)"
            raise ValueError(
                f"{call} failed on the {which}, {_described(batch)}: {type(error).__name__}: {error}"
            ) from error

    def check(self, settings: Settings) -> int:
        self._check_settings(settings)
        self._facts, self._classes  # noqa: B018  (they say what is wrong with model, data, loss, optimizer)
        test = self._data[1]
        if test is not None:
            with aside(self.device), torch.no_grad():
                batch = test.to(self.device).first_batch()
                self._loss_of(self._new_model().eval(), batch, "first batch of the test data")
        return self.n

    def check_policy(self, policy: Policy[Any]) -> None:
        """Refuse a policy that a loader cannot serve."""
        check_policy_fits(policy)

    def _check_settings(self, settings: Settings) -> None:
        instance_of("settings", settings, Settings, "pass a wellorder.experiments.Settings")
        if settings.cohort != 1 or settings.local_steps != 1 or settings.server_step != 1:
            raise ValueError(
                f"cohort={settings.cohort}, local_steps={settings.local_steps}, "
                f"server_step={settings.server_step}: {self.name} trains one model; leave all at 1"
            )
        settings.check(2)

    def _check_run(self, policy: Policy[Any], seed: int, settings: Settings) -> None:
        self._check_settings(settings)
        policy_of(policy)
        whole_number("seed", seed, least=0)
        self._facts, self._classes  # noqa: B018  (as `check` does, for those who did not call it)

    def warm_up(self, policy: Policy[Any], seed: int, settings: Settings) -> None:
        """Train on a few batches, which nobody records: compilation is no cost of training."""
        self._check_run(policy, seed, settings)
        data, _ = self._split(seed)
        few = data.part(range(min(len(data), WARM * data.batch_size)))
        for _ in self._trained(policy, seed, settings.step_size, 2, few, None):
            pass

    def train(self, policy: Policy[Any], seed: int, settings: Settings) -> Iterator[dict[str, float]]:
        self._check_run(policy, seed, settings)
        yield from self._trained(policy, seed, settings.step_size, settings.epochs, *self._split(seed))

    def _trained(
        self,
        policy: Policy[Any],
        seed: int,
        step_size: float,
        epochs: int,
        data: Examples,
        test: Examples | None,
    ) -> Iterator[dict[str, float]]:
        """One row at the start of each epoch and one at the end.

        Seeds differ in the first weights, the policy's randomness, and what is held out; policies share all
        of these, and the first order. Seconds are processor time of training and ordering; on an accelerator,
        or with workers, the wall clock's. On a CPU one thread trains, so that last bits and clocks do not
        depend on how many runs there are at a time.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            seed_everything(seed)
            model = self._new_model()
            by_batch = self.scheduler_steps == "batch"
            how = Stepping(model, self.loss, *self._new_optimizer(model, step_size), by_batch, self.step)
            training = Training(how, data.to(self.device), policy, seed, self.device)
            tested = None if test is None else test.to(self.device)
            for epoch in range(epochs + 1):
                row = self._look(model, training.data, tested)
                row |= {"gradients": epoch * len(data), "seconds": training.seconds}
                yield {"epoch": epoch, **row}
                if not math.isfinite(row["loss"]):
                    break
                if epoch < epochs:
                    training.one_epoch(row["loss"])
            for later in range(epoch + 1, epochs + 1):
                yield {"epoch": later, **row}
        finally:
            torch.set_num_threads(threads)

    def _look(self, model: nn.Module, data: Examples, test: Examples | None) -> dict[str, float]:
        """Losses and test metrics, the worst there is once they are not finite; nothing random is used up."""
        found = {}
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with aside(self.device), torch.no_grad():
                found["loss"] = self._means(model, data, {LOSS: self.loss})["loss"]
                if test is not None:
                    found |= self._means(model, test, {**self._measures, TEST_LOSS: self.loss})
        finally:
            for module, mode in modes:
                module.training = mode
        worst = {m.column: math.inf if m.lower_is_better else 0.0 for m in self.metrics}
        return {name: value if math.isfinite(value) else worst[name] for name, value in found.items()}

    def _means(self, model: nn.Module, data: Examples, wanted: Mapping[Metric, Any]) -> dict[str, float]:
        """Means over the batches, each counted by its examples."""
        totals = dict.fromkeys((metric.column for metric in wanted), 0.0)
        for given, count in data.batches():
            what = seen(model, on_device(given, self.device))
            for metric, take in wanted.items():
                totals[metric.column] += float(take(*what)) * count / len(data)
        return totals


def accuracy(output: Tensor, labels: Tensor) -> Tensor:
    """The share of labels that have the highest score.

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])).item()
    0.5
    """
    return (output.argmax(1) == labels).float().mean()


def _column(key: str | Metric) -> str:
    return key.column if isinstance(key, Metric) else key


def _called(what: str, make: Any, *given: Any) -> Any:
    """Call a user's function; what goes wrong there is told as theirs."""
    try:
        return make(*given)
    except Exception as error:
        raise ValueError(f"{what} failed with {type(error).__name__}: {error}") from error


def _name(make: Any, model: nn.Module) -> str:
    """What to call a model: its class, or what makes it where the class says nothing."""
    kind = type(model).__name__
    maker = make.func if isinstance(make, partial) else make
    named = getattr(maker, "__name__", "<")
    return named if kind == "Sequential" and not named.startswith("<") else kind


def _options(optimizer: torch.optim.Optimizer) -> list[str]:
    """The options of an optimizer that are not its class's own, in words; the step size is told elsewhere."""
    usual = {name: p.default for name, p in inspect.signature(type(optimizer)).parameters.items()}
    told = {
        name: value for name, value in optimizer.defaults.items() if name != "lr" and value != usual.get(name)
    }
    words = [f"{name.replace('_', ' ')} {value:g}" if is_real(value) else f"{name.replace('_', ' ')} {value}"
             for name, value in told.items()]  # fmt: skip
    groups = len(optimizer.param_groups)
    return words + ([f"{groups} groups of parameters"] if groups > 1 else [])


def _source(of: Any) -> Any:
    """What a function does, as far as its text or its name tells."""
    if isinstance(of, partial):
        return [_source(of.func), repr(of.args), repr(sorted(of.keywords.items(), key=lambda item: item[0]))]
    if of is None:
        return None
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        return getattr(of, "__qualname__", type(of).__name__)


def _described(batch: Any) -> str:
    """A batch in words: the shapes of what it holds."""
    if isinstance(batch, Tensor):
        return f"{tuple(batch.shape)} of {str(batch.dtype).removeprefix('torch.')}"
    if isinstance(batch, Mapping):
        return f"{{{', '.join(f'{name!r}: {_described(part)}' for name, part in batch.items())}}}"
    if isinstance(batch, tuple | list):
        return f"({', '.join(_described(part) for part in batch)})"
    return type(batch).__name__
