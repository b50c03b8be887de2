"""Runs that test_sharded_processes.py starts: one that is killed and goes on, and one under Accelerate."""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from wellorder.shards import survey
from wellorder.torch import ShardedDataset

SHARDS, EACH, BATCH = 40, 25, 10


def read(shard):
    return [(shard * EACH + i, shard % 5) for i in range(EACH)]


def only_label(example):
    return None, example[1]


def dataset(**options):
    found = survey(range(SHARDS), read, xy=only_label, threads=1)
    return ShardedDataset(range(SHARDS), read, survey=found, window=60, batch_size=BATCH, **options)


def killed(folder):
    """Write down each batch, then the state, until killed; what a state does not cover is written again."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    workers = int(os.environ["WORKERS"])
    loader = StatefulDataLoader(dataset(), batch_size=BATCH, num_workers=workers)
    state, done = folder / "state.pt", 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        done = saved["done"]
        loader.load_state_dict(saved["loader"])
    print("ready", flush=True)
    for x, _ in loader:
        (folder / f"batch-{done:04}.json").write_text(json.dumps(x.tolist()))
        done += 1
        torch.save({"done": done, "loader": loader.state_dict()}, folder / "beside.pt")
        (folder / "beside.pt").replace(state)
    (folder / "end").write_text("")


def accelerated(folder):
    """Two ranks: a prepared loader, one that deals for itself, and the refusal of what would lose data."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    out = {}
    prepared = accelerator.prepare(DataLoader(dataset(rank=0, ranks=1), batch_size=BATCH))
    out["prepared"] = [[x.tolist() for x, _ in prepared] for _ in range(2)]
    own = dataset(rank=accelerator.process_index, ranks=accelerator.num_processes)
    out["own"] = [[x.tolist() for x, _ in DataLoader(own, batch_size=BATCH)] for _ in range(2)]
    try:
        next(iter(dataset()))
    except ValueError as error:
        out["refused"] = str(error)
    (folder / f"rank-{accelerator.process_index}.json").write_text(json.dumps(out))


def trained(folder):
    """Two epochs by Lightning and by the Trainer of transformers; what the models were given."""
    import lightning
    from transformers import Trainer, TrainingArguments

    seen = {"lightning": [], "trainer": []}

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, index):
            seen["lightning"].append(batch[0].tolist())
            return self.layer(batch[0][:, None].float()).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = dict(
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=folder, **quiet)
    trainer.fit(Module(), DataLoader(dataset(), batch_size=BATCH))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, numbers):
            seen["trainer"].append(numbers.tolist())
            return {"loss": self.layer(numbers[:, None].float()).mean()}

    def collate(examples):
        return {"numbers": torch.tensor([number for number, _ in examples])}

    options = TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, per_device_train_batch_size=BATCH, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    Trainer(Model(), options, train_dataset=dataset(rank=0, ranks=1), data_collator=collate).train()
    (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    {"killed": killed, "accelerated": accelerated, "trained": trained}[sys.argv[1]](Path(sys.argv[2]))
