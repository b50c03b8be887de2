"""What every rank of a real torchrun does in test_ranks.py: checks by name, each of which asserts.

``torchrun --nproc-per-node W ranks_training.py FOLDER NAME…``; a rank says "ok NAME" after each.
"""

import copy
import datetime
import faulthandler
import itertools
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from wellorder import CDGraB, PairGraB, Steering
from wellorder.torch import ordered

sys.path.insert(0, str(Path(__file__).parent))
from ranks_processes import workers

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(sys.argv[1] if __name__ == "__main__" else ".")
HANGING = "nobody_hangs_beyond_the_timeout"


def numbered(n, seed=0):
    """Inputs, labels, and each example's number."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=made, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 3, (n,), generator=made), torch.arange(n))


def network(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).double()


def train(model, loader, epochs=1, accumulate=1, keep=lambda: None):
    """A plain loop; gives each epoch's batches' numbers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for _ in range(epochs):
        seen = []
        for step, (x, y, number) in enumerate(loader, 1):
            seen.append(number.tolist())
            whole = step % accumulate == 0 or step == len(loader)
            with model.no_sync() if accumulate > 1 and not whole else torch.enable_grad():
                functional.cross_entropy(model(x), y).backward()
            keep()
            if whole:
                optimizer.step()
                optimizer.zero_grad()
        yield seen


def of_all(value):
    """Every rank's value."""
    found = [None] * WORLD
    dist.all_gather_object(found, value)
    return found


def same_everywhere(value):
    first, *others = of_all(value)
    assert all(other == first for other in others), (first, others)


def refusal(attempt, *words):
    """All ranks raise the same error, with these words in it."""
    with pytest.raises((ValueError, RuntimeError)) as found:
        attempt()
    same_everywhere(str(found.value))
    assert all(word in str(found.value) for word in words), found.value


def alone(data, batch, model, **how):
    """An ordered loader in one process, whatever the group."""
    return ordered(DataLoader(data, batch, sampler=DistributedSampler(data, 1, 0)), model, **how)


def check_workers_of_a_fork_server():
    data, model = numbered(24), network()
    given = DataLoader(data, 4, shuffle=True, num_workers=1, multiprocessing_context="forkserver")
    seen = of_all(next(train(model, ordered(given, model))))
    assert sorted(u for steps in seen for batch in steps for u in batch) == list(range(24))


def check_ddp_is_one_process_with_a_larger_batch():
    for n, count, shard in ((100, 0, False), (96, 2, True)):
        data, net = numbered(n), network()
        other, model = copy.deepcopy(net), DistributedDataParallel(net)
        sampler = DistributedSampler(data) if shard else None
        given = DataLoader(data, 4, shuffle=None if shard else True, sampler=sampler, **workers(count))
        loader, single = ordered(given, model), alone(data, 4 * WORLD, other)
        pairs = zip(train(model, loader, 4), train(other, single, 4), strict=True)
        for epoch, (ours, theirs) in enumerate(pairs):
            every = of_all(ours)
            visited = [u for steps in every for batch in steps for u in batch]
            assert sorted(visited) == list(range(n)), epoch
            assert all(a != b for a, b in itertools.pairwise(every)), epoch
            whole = [sorted(u for part in steps for u in part) for steps in zip(*every, strict=True)]
            assert whole == [sorted(batch) for batch in theirs], epoch
            assert loader.order.tolist() == single.order.tolist(), epoch
        same_everywhere(loader.order.tolist())
        assert loader.report().observed == single.report().observed == 3 * n
        assert np.allclose(loader.report().order_error, single.report().order_error)


def check_gradients_are_plain_ddps():
    data, gradients = numbered(37), {}
    batches = None
    for kind in ("ordered", "plain"):
        model = DistributedDataParallel(network())
        given = DataLoader(data, 4, shuffle=True)
        loader = ordered(given, model) if kind == "ordered" else None
        if loader is not None:
            batches = [tuple(data[i] for i in batch) for batch in loader._rest]
            batches = [tuple(map(torch.stack, zip(*batch, strict=True))) for batch in batches]
        found = gradients.setdefault(kind, [])
        list(
            train(
                model,
                loader or batches,
                keep=lambda m=model, f=found: f.append([p.grad.clone() for p in m.parameters()]),
            )
        )
    for ours, theirs in zip(gradients["ordered"], gradients["plain"], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    same_everywhere([g.tolist() for g in gradients["ordered"][-1]])


def check_padded_examples_count_once():
    n = 8 * WORLD + 1
    for signals in ("sketch", "batch"):
        model = DistributedDataParallel(network())
        loader = ordered(DataLoader(numbered(n), 4, shuffle=True), model, signals=signals, seed=2)
        (seen,) = train(model, loader)
        visits = [u for steps in of_all(seen) for batch in steps for u in batch]
        assert set(visits) == set(range(n))
        assert len(visits) > n
        units = n if signals == "sketch" else -(-n // 4)
        assert loader.report().observed == units == len(loader._observer.state.known)
        assert loader._observer.state.known.all()
        same_everywhere(loader.order.tolist())


def check_accumulation_under_no_sync():
    results = []
    for accumulate in (1, 3):
        model = DistributedDataParallel(network())
        loader = ordered(DataLoader(numbered(48), 4, shuffle=True), model)
        before = [p.clone() for p in model.parameters()]
        next(train(model, loader, accumulate=accumulate))
        assert loader.report().observed == 48
        same_everywhere(loader.order.tolist())
        same_everywhere([p.tolist() for p in model.parameters()])
        assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
        first = sorted(loader._rest.batching.of_all(Steering().init(48).order, 0)[: 4 * WORLD])
        results.append(loader._observer.state.rows[first])
    assert np.allclose(*results)  # until the first step of the optimizer, gradients are the same


def check_fsdp2():
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch before 2.6 has it elsewhere
        return
    data, net = numbered(64), network()
    other = copy.deepcopy(net)
    for layer in net:
        fully_shard(layer)
    model = fully_shard(net)
    loader, single = ordered(DataLoader(data, 4, shuffle=True), model), alone(data, 4 * WORLD, other)
    for _ in zip(train(model, loader, 3), train(other, single, 3), strict=True):
        rows, theirs = loader._observer.state.rows, single._observer.state.rows
        assert np.allclose(rows, theirs, atol=1e-5), np.abs(rows - theirs).max()
        same_everywhere(loader.order.tolist())
    assert loader.report().observed == 3 * 64
    refusal(lambda: ordered(DataLoader(data, 4), model, signals="batch"), "sharded", 'signals="sketch"')


def check_a_plain_loop_and_other_policies():
    for policy, signals in ((PairGraB(), "sketch"), (Steering(), "batch"), (CDGraB(WORLD), "sketch")):
        model, data = network(), numbered(40)
        given = DataLoader(data, 4, sampler=DistributedSampler(data))
        loader = ordered(given, model, policy, signals=signals)
        first = loader.order.tolist()
        list(train(model, loader, 2))
        assert loader.order.tolist() != first
        same_everywhere(loader.order.tolist())


def check_own_data_are_coordinated():
    n, size = 24, 4
    data, model = numbered(n, seed=RANK), network()
    loader = ordered(DataLoader(data, size, shuffle=True), model, CDGraB(WORLD))
    assert loader.report().units == WORLD * n
    assert len(loader) == n // size
    state, policy, shown = CDGraB(WORLD).init(WORLD * n), CDGraB(WORLD), []
    show = loader._observer.show
    loader._observer.show = lambda batches: (shown.append(batches.rows.numpy().copy()), show(batches))
    for _ in range(3):
        assert loader.order.tolist() == state.order.tolist()
        (seen,) = train(model, loader)
        state = policy.advance(policy.observe(state, state.order, np.concatenate(shown)))
        shown.clear()
        own = [u for batch in seen for u in batch]
        assert sorted(own) == list(range(n))
    same_everywhere(loader.order.tolist())
    refusal(
        lambda: ordered(DataLoader(data, size), model, CDGraB(WORLD + 1)), f"workers={WORLD + 1}", "ranks"
    )


def check_rows_are_not_communicated():
    rows = np.random.default_rng(0).normal(size=(30, 4))
    sent, dist.all_gather = dist.all_gather, None  # whoever calls it fails
    try:
        loader = ordered(DataLoader(numbered(30), 4, shuffle=True), rows=rows)
        seen = [[u.tolist() for _, _, u in loader] for _ in range(2)]
    finally:
        dist.all_gather = sent
    same_everywhere(loader.order.tolist())
    for epoch in range(2):
        visits = [u for steps in of_all(seen[epoch]) for batch in steps for u in batch]
        assert set(visits) == set(range(30))
        assert len(visits) < 30 + WORLD
    assert loader.metrics()["order/sent_bytes"] == 0


def check_bytes():
    model = DistributedDataParallel(network())
    loader = ordered(DataLoader(numbered(64), 4, shuffle=True), model)
    list(train(model, loader, 8))
    dim = loader._observer.state.rows.shape[1]
    rows = 4 * (64 // WORLD) * (4 * dim + 1)  # in epochs 0, 1, 2 and 4
    assert rows <= loader.report().sent <= rows + 16 * 13 * 8
    assert loader.metrics()["order/sent_bytes"] == loader.report().sent


def check_resume():
    def fresh():
        model = DistributedDataParallel(network())
        return model, ordered(DataLoader(numbered(50), 4, shuffle=True), model, observe=2)

    model, loader = fresh()
    whole = list(train(model, loader, 4))
    for stop in (2, 6, 7, 12, 20):  # observed and not, in mid-epoch, at an epoch's last step
        model, loader = fresh()
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.25), []
        for x, y, number in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), stop):
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(number.tolist())
        weights = copy.deepcopy(model.state_dict())
        file = FOLDER / f"loader-{stop}-{RANK}.pt"
        torch.save(loader.state_dict(), file)
        model, loader = fresh()
        model.load_state_dict(weights)
        loader.load_state_dict(torch.load(file, weights_only=True))
        while loader.epoch < 4:
            for epoch in train(model, loader):
                seen += epoch
        assert seen == [batch for epoch in whole for batch in epoch], stop
    # One rank's state serves all at an epoch's end.
    model, loader = fresh()
    list(train(model, loader, 2))
    if RANK == 0:
        torch.save(loader.state_dict(), FOLDER / "once.pt")
        torch.save(model.module.state_dict(), FOLDER / "weights.pt")
    dist.barrier()
    weights = copy.deepcopy(model.state_dict())
    model, loader = fresh()
    model.load_state_dict(weights)
    loader.load_state_dict(torch.load(FOLDER / "once.pt", weights_only=True))
    assert list(train(model, loader, 2)) == whole[2:]


def check_resume_on_more_ranks():
    saved = torch.load(FOLDER / "once.pt", weights_only=True)
    net = network()
    net.load_state_dict(torch.load(FOLDER / "weights.pt", weights_only=True))
    model = DistributedDataParallel(net)
    assert saved["ranks"] == 2
    assert WORLD == 4
    for size in (2, 4):
        loader = ordered(DataLoader(numbered(50), size, shuffle=True), model, observe=2)
        loader.load_state_dict(saved)
        assert loader.epoch == 2
        assert loader._observer.state.known.all()
        assert loader.order.tolist() == saved["policy"]["order"].tolist()
        (seen,) = train(model, loader)
        assert {u for steps in of_all(seen) for batch in steps for u in batch} == set(range(50))
        same_everywhere(loader.order.tolist())


def check_every_difference_is_named():
    data, mine = numbered(24), numbered(24 + RANK)
    model = network()

    def attempt(loader):
        return lambda: list(train(loader.of, loader))

    def made(data=data, size=4, net=None, **how):
        net = model if net is None else net
        loader = ordered(DataLoader(data, size, shuffle=True), net, **how)
        loader.of = net
        return loader

    refusal(attempt(made(mine)), "examples: 24 on rank 0, 25 on rank 1", "CDGraB(workers=")
    refusal(attempt(made(size=4 + RANK)), "batch_size: 4 on rank 0, 5 on rank 1")
    refusal(attempt(made(seed=RANK)), "seed: 0 on rank 0, 1 on rank 1")
    refusal(attempt(made(policy=Steering(window=5 + RANK))), "policy: #")
    refusal(attempt(made(net=network(16 + RANK))), "parameters of the model: 163 on rank 0, 173 on rank 1")
    refusal(attempt(made(signals="batch" if RANK else "sketch")), "signals: #")
    loader = made()
    loader._observer.state = Steering().open(loader._observer.state, RANK)
    loader._observer.state = type(loader._observer.state)(**{**vars(loader._observer.state), "epoch": 0})
    refusal(attempt(loader), "order: #", "equal on all ranks")


def check_leaving_an_epoch_alone_is_named():
    model, data = network(), numbered(24)  # no DDP: nobody waits inside of the epoch
    loader = ordered(DataLoader(data, 4, shuffle=True), model, observe=lambda epoch: epoch == 0)

    def ragged(epochs):
        for _ in range(epochs):
            for step, (x, y, _) in enumerate(loader):
                functional.cross_entropy(model(x), y).backward()
                if step == 1 and RANK == 1:
                    break

    refusal(
        lambda: ragged(2), "the end of epoch 0", "steps of this epoch: 3 on rank 0, 2 on rank 1", "same step"
    )
    loader = ordered(DataLoader(data, 4, shuffle=True), model, observe=lambda epoch: epoch == 9)
    refusal(lambda: ragged(2), "the start of epoch 1", "steps of the epoch before: 3 on rank 0, 2 on rank 1")


def check_nobody_hangs_beyond_the_timeout():
    """Under DDP, a rank that leaves early lets the others wait in their gradients: all end, with a name."""
    model = DistributedDataParallel(network())
    loader = ordered(DataLoader(numbered(24), 4, shuffle=True), model)

    def ragged():
        for _ in range(2):
            for step, (x, y, _) in enumerate(loader):
                functional.cross_entropy(model(x), y).backward()
                if step == 0 and RANK == 1:
                    break

    with pytest.raises(RuntimeError, match="the ranks did not meet at the end of epoch 0" if RANK else None):
        ragged()


def steps_of_a_job(after_step=lambda step, parts: None):
    """A job of 3 epochs of 6 steps under DDP that goes on from the newest files that all ranks have."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    loader = ordered(DataLoader(numbered(23 * WORLD), 4, shuffle=True), model)
    newest = max((int(f.stem.split("-")[1]) for f in FOLDER.glob(f"job-*-{RANK}.pt")), default=0)
    newest, seen = min(of_all(newest)), []
    if newest:
        saved = torch.load(FOLDER / f"job-{newest}-{RANK}.pt", weights_only=True)
        for part, name in ((model, "model"), (optimizer, "optimizer"), (loader, "loader")):
            part.load_state_dict(saved[name])
        seen = saved["seen"]
    while loader.epoch < 3:
        for x, y, number in loader:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(number.tolist())
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            after_step(len(seen), {name: part.state_dict() for name, part in parts.items()} | {"seen": seen})
    return seen, [p.tolist() for p in model.parameters()], newest


def check_a_job_whose_rank_is_killed():
    def after_step(step, parts):
        half = FOLDER / f"half-{RANK}"
        torch.save(parts, half)
        half.rename(FOLDER / f"job-{step}-{RANK}.pt")
        if step == 9 and RANK == 1:  # in mid-epoch, the epoch is observed
            os.kill(os.getpid(), signal.SIGKILL)

    steps_of_a_job(after_step)


def check_the_job_goes_on_exactly():
    seen, weights, newest = steps_of_a_job()
    assert newest in (8, 9)
    for file in FOLDER.glob(f"job-*-{RANK}.pt"):
        file.unlink()
    dist.barrier()
    assert steps_of_a_job() == (seen, weights, 0)
    assert len(seen) == 18


def check_an_uninitialised_group_is_named():
    for sampler in (None, DistributedSampler(range(24), WORLD, RANK)):
        model = network()
        loader = ordered(DataLoader(numbered(24), 4, sampler=sampler), model)
        with pytest.raises(ValueError, match="init_process_group"):
            next(iter(loader))
    global late
    late = ordered(DataLoader(numbered(24), 4, shuffle=True), network())
    assert len(late) == 6


def check_a_loader_made_before_the_group_takes_its_share():
    assert len(late) == 6 // WORLD
    assert {u for steps in of_all(next(train(late._model, late))) for b in steps for u in b} == set(range(24))


def main():
    names = sys.argv[2:]
    faulthandler.register(signal.SIGUSR1)  # the loaders' workers inherit it
    if "an_uninitialised_group_is_named" in names:
        check_an_uninitialised_group_is_named()
        print("ok an_uninitialised_group_is_named", flush=True)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=int(os.environ["SECONDS_TO_WAIT"])))
    for name in names:
        if name != "an_uninitialised_group_is_named":
            globals()[f"check_{name}"]()
            print(f"ok {name}", flush=True)
    if HANGING not in names:  # else the group is broken: nothing is left to say good-bye to
        dist.barrier()
    # Not by way of the interpreter: gloo's threads may abort a process whose peer has left already.
    os._exit(0)


if __name__ == "__main__":
    main()
