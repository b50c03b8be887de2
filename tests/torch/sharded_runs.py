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


if __name__ == "__main__":
    {"killed": killed, "accelerated": accelerated}[sys.argv[1]](Path(sys.argv[2]))
