"""What two processes train, with somebody else's trainer: started by test_trainers.py for each framework.

Each writes its visits, one list of examples a batch, and checks on the way: weights equal those of the plain
framework on the same batches, bit for bit, and a run that was resumed goes on as if it had not been stopped.
"""

import copy
import faulthandler
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from ranks_processes import leave, workers

N, BATCH, EPOCHS = 26, 4, 4


def examples(n=N):
    """Two classes of vectors in double precision, with their numbers."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (n,), generator=generator)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64) + y.unsqueeze(1)
    return TensorDataset(x, y, torch.arange(n))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


class Named(nn.Module):
    """The network as a part of a module, as it is in Lightning."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)


def loss_of(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def same_weights(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


class Sentences(Dataset):
    """Tokens of which the first two tell an example's number."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        rest = torch.randint(0, 9, (4,), generator=torch.Generator().manual_seed(i))
        ids = torch.cat([torch.tensor([i // 9, i % 9]), rest])
        return {"input_ids": ids, "labels": ids.clone()}


def numbers_in(inputs):
    return [int(a) * 9 + int(b) for a, b in inputs["input_ids"][:, :2]]


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = dict(vocab_size=10, n_positions=12, n_embd=8, n_layer=1, n_head=2, bos_token_id=9, eos_token_id=9)
    drops = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **drops, initializer_range=0.3)).double()


def trainer_for(out, batch, *, epochs=EPOCHS, base=None, **options):
    """A Trainer that notes its visits and batches."""
    from transformers import TrainingArguments

    from wellorder.transformers import OrderedTrainer

    class Noting(base or OrderedTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.visits, self.batches = [], []

        def training_step(self, model, inputs, *args):
            self.visits.append(numbers_in(inputs))
            self.batches.append(copy.deepcopy(dict(inputs)))
            return super().training_step(model, inputs, *args)

    settings = dict(save_steps=3, logging_steps=1, gradient_accumulation_steps=1, learning_rate=0.05)
    quiet = dict(report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False)
    args = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=batch,
        num_train_epochs=epochs,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        **{**settings, **options},
        **quiet,
    )
    return Noting(model=gpt2(), args=args, train_dataset=Sentences())


# ---- Accelerate ----


def with_accelerate(out):
    from accelerate import Accelerator, DataLoaderConfiguration

    from wellorder.torch import ordered

    def objects(order_first, accelerator, n=N, count=0):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(examples(n), BATCH, shuffle=True, **workers(count))
        if order_first:
            loader = ordered(loader, model)
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        else:
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            loader = ordered(loader, model)
        return model, optimizer, loader

    def step(accelerator, model, optimizer, batch):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()

    found = {}
    for name, order_first, accumulation, n, count in (
        ("prepare(ordered)", True, 1, N, 0),
        ("ordered(prepare)", False, 1, N, 2),
        ("accumulated", True, 2, N, 0),
        ("odd", True, 1, N + 1, 0),
    ):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        model, optimizer, loader = objects(order_first, accelerator, n, count)
        assert type(model).__name__ == "DistributedDataParallel"
        batches, synced = [], []
        for epoch in range(EPOCHS):
            for at, batch in enumerate(loader):
                batches.append(batch)
                step(accelerator, model, optimizer, batch)
                synced.append(accelerator.sync_gradients)
                if name == "prepare(ordered)" and (epoch, at) == (1, 1):
                    accelerator.save_state(str(out / "accelerate"))
        found[name] = [batch[2].tolist() for batch in batches]
        if accumulation == 2:  # the epoch's last batch is always stepped after
            assert synced == [False, True, False, True] * EPOCHS, synced
        assert all(batch[0].device.type == accelerator.device.type for batch in batches)
        # The same batches in a plain loop.
        plain = network()
        other = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        plain = accelerator.prepare(plain)
        for at, batch in enumerate(batches):
            with plain.no_sync() if accumulation == 2 and at % 2 == 0 else nullcontext():
                (loss_of(plain, batch) / accumulation).backward()
            if synced[at]:
                other.step()
                other.zero_grad()
        assert same_weights(model, plain), name
        accelerator.free_memory()

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = objects(True, accelerator)
    accelerator.load_state(str(out / "accelerate"))
    assert (loader.epoch, loader.report().step) == (1, 2)
    rest = []
    for _ in range(1, EPOCHS):
        for batch in loader:
            rest.append(batch[2].tolist())
            step(accelerator, model, optimizer, batch)
    assert rest == found["prepare(ordered)"][4 + 2 :]

    for settings, name in (({"split_batches": True}, "split"), ({"even_batches": False}, "even")):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))
        for order_first in (True, False):
            with pytest.raises(ValueError, match=f"{name}_batches"):
                objects(order_first, accelerator)
    return found


# ---- the Hugging Face Trainer ----


def with_transformers(out):
    from transformers import Trainer

    trainer = trainer_for(out / "hf", BATCH)
    trainer.train()
    again = trainer_for(out / "again", BATCH)
    again.train(resume_from_checkpoint=str(out / "hf" / "checkpoint-6"))
    assert again.visits == trainer.visits[6:]
    assert same_weights(trainer.model, again.model)
    assert again.ordered_loader.report().order_error == trainer.ordered_loader.report().order_error
    logged = trainer.state.log_history[-2]
    assert logged["order/known"] == 1.0
    assert logged["order/error_vs_shuffle"] < 0.9

    class Replaying(Trainer):
        def get_train_dataloader(self):
            return DataLoader(trainer.batches, batch_size=None)

    plain = trainer_for(out / "plain", BATCH, base=Replaying, epochs=1, save_strategy="no")
    plain.train()
    assert plain.visits == trainer.visits
    assert same_weights(trainer.model, plain.model)

    accumulated = trainer_for(
        out / "accumulated", BATCH, epochs=2, gradient_accumulation_steps=2, bf16=True, save_strategy="no"
    )
    accumulated.train()
    assert accumulated.ordered_loader.report().rows.startswith(f"{N} of {N} units")
    return {"trainer": trainer.visits, "accumulated": accumulated.visits}


# ---- Lightning ----


def with_lightning(out):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wellorder.lightning import OrderCallback
    from wellorder.torch import ordered

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.batches = network(), []

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            self.batches.append([part.clone() for part in batch])
            return loss_of(self, batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    class Reloading(Classifier):
        def train_dataloader(self):
            return ordered(DataLoader(examples(), BATCH, shuffle=True, num_workers=0), self)

    def fit(module, loader=None, checkpoint=None, save=None, epochs=EPOCHS, **options):
        savers = [] if save is None else [
            ModelCheckpoint(save, filename="{step}", save_top_k=-1, every_n_train_steps=3),
            ModelCheckpoint(save, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True),
        ]  # fmt: skip
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, logger=False,
            callbacks=[OrderCallback(), *savers] if epochs > 1 else [], enable_checkpointing=save is not None,
            enable_progress_bar=False, enable_model_summary=False, **options,
        )  # fmt: skip
        trainer.fit(module, loader, ckpt_path=checkpoint)
        return trainer

    def visits(module):
        return [batch[2].tolist() for batch in module.batches]

    def given(module, **options):
        return ordered(DataLoader(examples(), BATCH, shuffle=True, **options), module)

    module = Classifier()
    trainer = fit(module, given(module), save=str(out / "lightning"))
    assert trainer.callback_metrics["order/error_vs_shuffle"] < 0.9
    full = visits(module)
    for name, done in (("step=6", 6), ("epoch=1", 8)):
        again = Classifier()
        fit(again, given(again, **workers(2)), checkpoint=str(out / "lightning" / f"{name}.ckpt"))
        assert visits(again) == full[done:], name
        assert same_weights(module, again), name
    reloading = Reloading()
    fit(reloading, reload_dataloaders_every_n_epochs=1)
    assert visits(reloading) == full
    plain = Classifier()
    fit(
        plain,
        DataLoader(module.batches, batch_size=None, shuffle=False),
        epochs=1,
        use_distributed_sampler=False,
    )
    assert visits(plain) == full
    assert same_weights(module, plain)
    return {"fit": full}


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    faulthandler.dump_traceback_later(380, exit=True)  # a hang says where
    result = globals()[f"with_{kind}"](folder)
    rank = torch.distributed.get_rank()
    (folder / f"{kind}-{rank}.json").write_text(json.dumps(result))
    leave()
