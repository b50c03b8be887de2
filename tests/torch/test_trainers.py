"""Other people's trainers: the order survives them, they train as without us, and a stop is no matter.

Two processes are really started, once for each framework (two_processes.py); what they visited is compared
with one process that takes twice the batch.
"""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from wellorder import Steering
from wellorder.torch import OrderedLoader, ordered

sys.path.insert(0, str(Path(__file__).parent))
import two_processes as two

N, BATCH, EPOCHS = two.N, two.BATCH, two.EPOCHS
pytestmark = pytest.mark.filterwarnings(
    # What these packages say about themselves, and about a machine without an accelerator.
    "ignore::UserWarning:lightning",
    "ignore::UserWarning:torch",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:.*does not have many workers",
    "ignore:You requested to overfit",
    "ignore:Be aware that when using .ckpt_path.",
    "ignore:.*is not an integer within the vocabulary",
)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def given(n=N, batch=BATCH, **options):
    return DataLoader(two.examples(n), batch, shuffle=True, **options)


def plain_run(batch, epochs=EPOCHS, model=None, policy=None, **options):
    """The batches of a plain loop over an ordered loader, and the model."""
    model = two.network() if model is None else model
    loader = ordered(given(batch=batch, **options), model, policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    visits = []
    for _ in range(epochs):
        for part in loader:
            visits.append(part[2].tolist())
            optimizer.zero_grad()
            two.loss_of(model, part).backward()
            optimizer.step()
    return visits, model


def lit_run(batch, policy=None):
    """The same with the names that parameters have in a module of Lightning: sketches depend on them."""
    visits, model = plain_run(batch, model=two.Named(), policy=policy)
    return visits, model.net


def by_epoch(visits, epochs=EPOCHS):
    per = len(visits) // epochs
    assert per * epochs == len(visits)
    return [visits[at : at + per] for at in range(0, len(visits), per)]


def merged(*ranks):
    """The global batches of several ranks' batches: rank r has every W-th place, from the r-th on."""
    return [[i for place in zip(*parts, strict=True) for i in place] for parts in zip(*ranks, strict=True)]


def check_visits(visits, epochs=EPOCHS, n=N):
    """Each example once an epoch, in a new order each."""
    orders = [[i for batch in some for i in batch] for some in by_epoch(visits, epochs)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert all(a != b for a, b in pairwise(orders))


# ---- two processes ----


def launched(kind, folder):
    """What each of two processes visited."""
    script = [str(two.__file__), kind, str(folder)]
    if kind != "lightning":  # which starts its processes itself
        script = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": ""}
    done = subprocess.run([sys.executable, *script], capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return [json.loads((folder / f"{kind}-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_accelerate_in_two_processes_has_the_orders_of_one(tmp_path):
    a, b = launched("accelerate", tmp_path)
    expected, _ = plain_run(2 * BATCH)
    for name in ("prepare(ordered)", "ordered(prepare)"):
        assert all(not set(x) & set(y) for x, y in zip(a[name], b[name], strict=True))
        assert merged(a[name], b[name]) == expected, name
        check_visits(merged(a[name], b[name]))
    check_visits(merged(a["accumulated"], b["accumulated"]))
    for some in by_epoch(merged(a["odd"], b["odd"])):  # one example more is needed, and comes twice
        order = [i for batch in some for i in batch]
        assert sorted(order[:-1]) == list(range(N + 1))
        assert order[-1] == order[0]


@pytest.mark.slow
def test_the_trainer_of_transformers_in_two_processes_has_the_orders_of_one(tmp_path):
    a, b = launched("transformers", tmp_path)
    alone = two.trainer_for(tmp_path / "alone", 2 * BATCH, save_strategy="no")
    alone.train()
    assert merged(a["trainer"], b["trainer"]) == alone.visits
    check_visits(alone.visits)
    check_visits(merged(a["accumulated"], b["accumulated"]), epochs=2)


@pytest.mark.slow
def test_lightning_in_two_processes_has_the_orders_of_one(tmp_path):
    a, b = launched("lightning", tmp_path)
    expected, _ = lit_run(2 * BATCH)
    assert merged(a["fit"], b["fit"]) == expected


# ---- Accelerate ----


def accelerated(order_first, **options):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **options)
    model = two.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = ordered(given(), model) if order_first else given()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return accelerator, model, optimizer, loader if order_first else ordered(loader, model)


def accelerated_epoch(accelerator, model, optimizer, batches):
    visits, synced = [], []
    for batch in batches:
        visits.append(batch[2].tolist())
        with accelerator.accumulate(model):
            accelerator.backward(two.loss_of(model, batch))
            synced.append(accelerator.sync_gradients)
            optimizer.step()
            optimizer.zero_grad()
    return visits, synced


@pytest.mark.parametrize("order_first", [True, False])
def test_accelerate_trains_as_a_plain_loop_does(order_first):
    accelerator, model, optimizer, loader = accelerated(order_first)
    assert isinstance(loader, OrderedLoader)
    visits = [v for _ in range(EPOCHS) for v in accelerated_epoch(accelerator, model, optimizer, loader)[0]]
    expected, plain = plain_run(BATCH)
    assert visits == expected
    assert two.same_weights(model, plain)
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("order_first", [True, False])
def test_accelerate_steps_at_an_epochs_end_and_after_a_break(order_first):
    accelerator, model, optimizer, loader = accelerated(order_first, gradient_accumulation_steps=3)
    _, synced = accelerated_epoch(accelerator, model, optimizer, loader)
    assert synced == [False, False, True, False, False, True, True]
    for _ in loader:
        break
    assert not accelerator.gradient_state.in_dataloader
    assert accelerated_epoch(accelerator, model, optimizer, loader)[1] == synced


def test_accelerate_places_batches_where_it_is_told(monkeypatch):
    from accelerate import Accelerator

    for placed, device in ((True, "meta"), (False, "cpu")):
        accelerator = Accelerator(cpu=True, device_placement=placed)
        monkeypatch.setattr(type(accelerator), "device", torch.device("meta"))
        loader = accelerator.prepare(ordered(given(), rows=torch.eye(N)))
        assert {part.device.type for batch in loader for part in batch} == {device}
        loader = ordered(accelerator.prepare(given()), rows=torch.eye(N))
        assert {part.device.type for batch in loader for part in batch} == {device}
        monkeypatch.undo()


@pytest.mark.parametrize("broken", [0, 3])
def test_accelerate_goes_on_after_a_batch_that_cannot_be_read(broken):
    from accelerate import Accelerator

    calls = []

    def collate(items):
        calls.append(len(items))
        if len(calls) == broken + 1:
            raise OSError("a file")
        return torch.utils.data.default_collate(items)

    loader = Accelerator(cpu=True).prepare(ordered(given(collate_fn=collate), rows=torch.eye(N)))
    order, batches, visited = loader.order.tolist(), iter(loader), []
    for step in range(len(loader)):
        if step == broken:
            with pytest.raises(OSError, match="a file"):
                next(batches)
        else:
            visited += next(batches)[2].tolist()
    assert visited == order[: broken * BATCH] + order[(broken + 1) * BATCH :]
    assert list(batches) == []


@pytest.mark.parametrize("registered", [True, False])
def test_accelerate_saves_and_loads_the_order(registered, tmp_path):
    accelerator, *rest, loader = accelerated(True)
    if registered:
        accelerator.register_for_checkpointing(loader)
    visits = accelerated_epoch(accelerator, *rest, loader)[0]
    for step, batch in enumerate(loader):
        visits += accelerated_epoch(accelerator, *rest, [batch])[0]
        if step == 2:
            accelerator.save_state(str(tmp_path / "state"))
    visits += accelerated_epoch(accelerator, *rest, loader)[0]
    accelerator, *again, other = accelerated(True)
    if registered:
        accelerator.register_for_checkpointing(other)
    accelerator.load_state(str(tmp_path / "state"))
    went_on = [v for _ in range(2) for v in accelerated_epoch(accelerator, *again, other)[0]]
    assert went_on == visits[7 + 3 :]
    assert two.same_weights(rest[0], again[0])


def test_first_batches_that_accelerate_skips_after_a_load_are_not_skipped_twice(tmp_path):
    from accelerate import skip_first_batches

    def unobserved():
        return ordered(given(), two.network(), observe=lambda _: False)

    whole = unobserved()
    epochs = [[batch[2].tolist() for batch in whole] for _ in range(3)]
    stopped = iter(loader := unobserved())
    for _ in range(2):
        next(stopped)
    loaded = unobserved()
    loaded.load_state_dict(loader.state_dict())
    for fresh, skip in ((loaded, 2), (unobserved(), 3)):
        rest = skip_first_batches(fresh, skip)
        assert len(rest) == len(fresh) - skip
        assert [batch[2].tolist() for batch in rest] == epochs[0][skip:]
        assert [batch[2].tolist() for batch in fresh] == epochs[1]
        assert [batch[2].tolist() for batch in fresh] == epochs[2]


def test_loaders_of_accelerate_that_skip_or_send_batches_are_refused_by_name():
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

    prepared = Accelerator(cpu=True).prepare(given())
    for skipping in (skip_first_batches(prepared, 2), skip_first_batches(given(), 2)):
        with pytest.raises(ValueError, match="batch_sampler=SkipBatchSampler cuts its own batches"):
            ordered(skipping, two.network())
    sending = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    stream = DataLoader(Stream())  # such data a Trainer sends from one process, unasked
    with pytest.raises(ValueError, match=r"dataset=\w+ is iterable"):
        ordered(sending.prepare(stream), two.network())
    with pytest.raises(ValueError, match=r"dispatch_batches=True.*leave it out"):
        ordered(sending.prepare(given()), two.network())


# ---- torchdata, and samplers ----


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_is_ordered_as_a_plain_one(shuffle, workers):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader(**options):
        source = StatefulDataLoader(two.examples(), BATCH, shuffle=shuffle, num_workers=workers)
        return ordered(source, two.network(), **options)

    expected, _ = plain_run(BATCH, epochs=1)
    first = loader()
    assert [batch[2].tolist() for batch in first] == expected
    batches = iter(stopped := loader())
    for _ in range(3):
        next(batches)
    went_on = loader()
    went_on.load_state_dict(stopped.state_dict())
    assert [batch[2].tolist() for batch in went_on] == expected[3:]


def test_a_stateful_loader_in_mid_epoch_and_samplers_that_choose_are_refused():
    from accelerate import Accelerator
    from torchdata.stateful_dataloader import StatefulDataLoader

    source = StatefulDataLoader(two.examples(), BATCH, shuffle=True)
    next(iter(source))
    other = StatefulDataLoader(two.examples(), BATCH, shuffle=True)
    other.load_state_dict(source.state_dict())
    with pytest.raises(ValueError, match=r"has a state loaded.*state_dict\(\)"):
        ordered(other, two.network())
    weighted = {"sampler": WeightedRandomSampler([1.0] * N, N)}
    for made in (
        DataLoader(two.examples(), BATCH, **weighted),
        StatefulDataLoader(two.examples(), BATCH, **weighted),
        Accelerator(cpu=True).prepare(DataLoader(two.examples(), BATCH, **weighted)),
    ):
        with pytest.raises(ValueError, match=r"WeightedRandomSampler chooses the examples itself.*Subset"):
            ordered(made, two.network())
    with pytest.raises(ValueError, match=r"batch_sampler=.* cuts its own batches.*batch_size"):
        ordered(StatefulDataLoader(two.examples(), batch_sampler=[[0, 1], [2]]), two.network())


# ---- the Hugging Face Trainer ----


def test_the_trainer_goes_on_from_its_checkpoints_and_logs_the_order(tmp_path):
    options = {"gradient_accumulation_steps": 2, "bf16": True}  # without either: in two processes
    trainer = two.trainer_for(tmp_path / "run", BATCH, epochs=3, **options)
    assert trainer.ordered_loader is None
    trainer.train()
    check_visits(trainer.visits, epochs=3)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["order/epoch"] for entry in logged] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert logged[-1]["order/error_vs_shuffle"] < 0.9
    for step, done in ((3, 6), (9, 7 + 7 + 2)):  # an epoch is seven batches, four steps
        again = two.trainer_for(tmp_path / f"again{step}", BATCH, epochs=3, **options)
        again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        assert again.visits == trainer.visits[done:]
        assert two.same_weights(trainer.model, again.model)
        assert again.ordered_loader.report().order_error == trainer.ordered_loader.report().order_error


def test_the_trainer_trains_as_the_plain_one_does_on_the_same_batches(tmp_path):
    from transformers import Trainer

    trainer = two.trainer_for(tmp_path / "run", BATCH, epochs=2, save_strategy="no")
    trainer.train()

    class Replaying(Trainer):
        def get_train_dataloader(self):
            return DataLoader(trainer.batches, batch_size=None)

    plain = two.trainer_for(tmp_path / "plain", BATCH, base=Replaying, epochs=1, save_strategy="no")
    plain.train()
    assert plain.visits == trainer.visits
    assert two.same_weights(trainer.model, plain.model)


def test_a_checkpoint_without_an_order_is_gone_on_with_and_warned_of(tmp_path):
    two.trainer_for(tmp_path / "run", BATCH, epochs=2).train()
    (tmp_path / "run" / "checkpoint-3" / "wellorder.pt").unlink()
    again = two.trainer_for(tmp_path / "again", BATCH, epochs=2)
    with pytest.warns(UserWarning, match="saved without wellorder"):
        again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert [len(again.visits[:4]), len(again.visits[4:])] == [4, 7]
    assert sorted(i for batch in again.visits[4:] for i in batch) == list(range(N))


def test_what_a_trainer_cannot_do_with_an_order_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="group_by_length chooses each batch's examples"):
        two.trainer_for(tmp_path, BATCH, train_sampling_strategy="group_by_length")
    trainer = two.trainer_for(tmp_path, BATCH, gradient_accumulation_steps=2)
    trainer._ordering = {"signals": "batch"}
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2.*sketch"):
        trainer.train()
    from wellorder.transformers import OrderedTrainer

    with pytest.raises(ValueError, match=r"'epochs'.*pass any of policy, rows"):
        OrderedTrainer(ordering={"epochs": 3})


# ---- Lightning ----


@pytest.fixture(scope="module")
def lit():
    """A module that notes its visits, and a way to fit it."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wellorder.lightning import OrderCallback

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.visits, self.made = two.network(), [], 0

        def training_step(self, batch, _):
            self.visits.append(batch[2].tolist())
            return two.loss_of(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def fit(module, loader=None, checkpoint=None, save=None, callback=True, epochs=EPOCHS, **options):
        savers = [] if save is None else [
            ModelCheckpoint(save, filename="{step}", save_top_k=-1, every_n_train_steps=3),
            ModelCheckpoint(save, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True),
        ]  # fmt: skip
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=save is not None,
            callbacks=[*([OrderCallback()] if callback else []), *savers], **options,
        )  # fmt: skip
        trainer.fit(module, loader, ckpt_path=checkpoint)
        return trainer

    return Classifier, fit


def test_lightning_trains_as_a_plain_loop_does_and_goes_on_from_its_checkpoints(lit, tmp_path):
    make, fit = lit
    module, policy = make(), Steering(lengths=0)  # so few units have room for little beside the order error
    trainer = fit(module, ordered(given(), module, policy), save=tmp_path)
    expected, plain = lit_run(BATCH, policy)
    assert module.visits == expected
    assert two.same_weights(module.net, plain)
    assert trainer.callback_metrics["order/error_vs_shuffle"] < 0.9
    assert trainer.callback_metrics["order/epoch"] == EPOCHS - 1
    for name, done in (("step=9", 9), ("epoch=1", 14)):
        again = make()
        fit(again, ordered(given(), again, policy), checkpoint=tmp_path / f"{name}.ckpt")
        assert again.visits == expected[done:], name
        assert two.same_weights(again.net, plain)


def test_without_the_callback_an_order_that_lightning_does_not_load_is_warned_of(lit, tmp_path):
    make, fit = lit
    module = make()
    fit(module, ordered(given(), module), save=tmp_path, callback=False, epochs=2)
    again = make()
    with pytest.warns(UserWarning, match=r"in epoch 1, and this ordered loader is new.*OrderCallback"):
        fit(again, ordered(given(), again), tmp_path / "epoch=0.ckpt", callback=False, epochs=2)


def test_loaders_that_lightning_makes_anew_go_on_with_the_order(lit):
    make, fit = lit

    class Reloading(make):
        def train_dataloader(self):
            self.made += 1
            return ordered(given(), self)

    module = Reloading()
    fit(module, reload_dataloaders_every_n_epochs=1)
    assert module.made == EPOCHS
    assert module.visits == lit_run(BATCH)[0]
    hooked = [part for part in module.modules() if part._forward_hooks or part._forward_pre_hooks]
    assert not hooked  # epoch 3 is not observed, and the loaders before have let go


def test_lightning_overfits_on_the_first_batches_as_it_does_with_a_plain_loader(lit):
    make, fit = lit
    module = make()
    fit(module, ordered(given(), module), overfit_batches=2, epochs=3)
    first = [list(range(BATCH)), list(range(BATCH, 2 * BATCH))]
    assert module.visits == first * 3


def test_fabric_trains_as_a_plain_loop_does_and_saves_the_order(tmp_path):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)

    def objects():
        model = two.network()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        return model, optimizer, fabric.setup_dataloaders(ordered(given(), model))

    def epoch(model, optimizer, batches):
        for batch in batches:
            visits.append(batch[2].tolist())
            optimizer.zero_grad()
            fabric.backward(two.loss_of(model, batch))
            optimizer.step()

    visits = []
    *trained, loader = objects()
    for _ in range(2):
        epoch(*trained, loader)
    fabric.save(tmp_path / "state", dict(zip("mol", (*trained, loader), strict=True)))
    *trained, loader = objects()
    fabric.load(tmp_path / "state", dict(zip("mol", (*trained, loader), strict=True)))
    for _ in range(2):
        epoch(*trained, loader)
    expected, plain = plain_run(BATCH)
    assert visits == expected
    assert two.same_weights(trained[0], plain)
    with pytest.raises(ValueError, match=r"fabric\.setup_dataloaders\(ordered"):
        ordered(fabric.setup_dataloaders(given()), two.network())


def test_no_framework_is_imported_for_who_does_not_use_it():
    code = "import wellorder.torch, sys; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[0] for name in shown.split()}
    assert not {"accelerate", "transformers", "lightning", "torchdata", "datasets"} & loaded


def test_other_loaders_of_our_class_are_plain_ones():
    loader = ordered(DataLoader(TensorDataset(torch.arange(6)), 2), nn.Linear(1, 1))
    assert type(type(loader)(loader.dataset, 2)) is DataLoader
