"""A rank's share of every global batch: sizes as DistributedSampler has them, orders as one process has."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from wellorder import CDGraB, RandomReshuffling
from wellorder.torch import ordered
from wellorder.torch._batching import Batching
from wellorder.torch._distributed import Share

CASES = [
    (n, size, ranks, loader_drops, sampler_drops)
    for n, size, ranks in [(24, 3, 2), (25, 3, 2), (23, 4, 3), (7, 4, 2), (101, 8, 4), (5, 1, 4), (3, 2, 4)]
    for loader_drops in (False, True)
    for sampler_drops in (False, True)
]


def plain(n, size, ranks, rank, loader_drops, sampler_drops, *, seed=0):
    """A loader over numbers, and its sampler."""
    data = TensorDataset(torch.arange(n))
    sampler = DistributedSampler(data, ranks, rank, drop_last=sampler_drops, seed=seed)
    return DataLoader(data, size, sampler=sampler, drop_last=loader_drops)


def drawn(loader):
    """An epoch's batches as lists."""
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize(("n", "size", "ranks", "loader_drops", "sampler_drops"), CASES)
def test_batches_have_the_sizes_that_a_distributed_sampler_gives(n, size, ranks, loader_drops, sampler_drops):
    for rank in range(ranks):
        given = plain(n, size, ranks, rank, loader_drops, sampler_drops)
        sizes = [len(batch) for batch in drawn(given)]
        if not sizes:
            with pytest.raises(ValueError, match=f"leaves nothing of {n} examples on each of {ranks} ranks"):
                ordered(given, policy=RandomReshuffling())
            return
        ours = ordered(given, policy=RandomReshuffling())
        assert len(ours) == len(given)
        assert len(ours.sampler) == sum(sizes)
        for _ in range(2):
            assert [len(batch) for batch in drawn(ours)] == sizes


@pytest.mark.parametrize(("n", "size", "ranks", "loader_drops", "sampler_drops"), CASES)
def test_ranks_together_visit_the_global_batches_of_one_process(n, size, ranks, loader_drops, sampler_drops):
    given = [plain(n, size, ranks, rank, loader_drops, sampler_drops) for rank in range(ranks)]
    if not sum(len(loader) for loader in given):
        return
    rows = np.random.default_rng(0).normal(size=(n, 3))
    loaders = [ordered(loader, rows=rows, seed=4) for loader in given]
    alone = ordered(DataLoader(TensorDataset(torch.arange(n)), size * ranks, shuffle=True), rows=rows, seed=4)
    left_out = np.zeros(n, int)
    for _ in range(3):
        order = alone.order.tolist()
        assert all(loader.order.tolist() == order for loader in loaders)
        single, parts = drawn(alone), [drawn(loader) for loader in loaders]
        visited = [u for steps in zip(*parts, strict=True) for turn in steps for u in turn]
        if len(visited) >= n:  # nothing left out: all once, the first once more so that it comes out even
            for at, steps in enumerate(zip(*parts, strict=True)):
                whole = [0] * sum(map(len, steps))
                for rank, part in enumerate(steps):
                    whole[rank::ranks] = part
                own = single[at] if at < len(single) else []
                assert whole[: len(own)] == own
                assert set(whole[len(own) :]) <= set(order[: ranks * size])
            assert sorted(set(visited)) == list(range(n))
        else:
            assert len(set(visited)) == len(visited)
            left_out[list(set(range(n)) - set(visited))] += 1
    assert left_out.max() - left_out.min() <= 1  # all are left out in turn


@pytest.mark.parametrize("drop_last", [False, True])
def test_own_data_stay_on_their_rank(drop_last):
    n, size, ranks = 10, 4, 3
    each = [Batching(n, size, drop_last, share=Share(rank, ranks, own=True)) for rank in range(ranks)]
    assert {batching.units for batching in each} == {ranks * n}
    order = CDGraB(ranks).init(ranks * n, seed=1).order
    for epoch in range(3):
        parts = [list(batching.batches(order, epoch)) for batching in each]
        for rank, part in enumerate(parts):
            owners = each[rank].owners(epoch)
            visited = [owners[example] for batch in part for example in batch]
            places = each[rank].of_all(order, epoch)[rank::ranks].tolist()
            assert visited == places
            assert {u % ranks for u in visited} == {rank}
            assert len(set(visited)) == (8 if drop_last else 10)


def test_micro_batches_are_shared_whole():
    n, size, ranks = 22, 4, 4
    each = [Batching(n, size, grouped=True, seed=2, share=Share(rank, ranks)) for rank in range(ranks)]
    assert [len(batching) for batching in each] == [2] * 4
    assert each[0].units == 6
    order = np.random.default_rng(0).permutation(6)
    turns = [list(batching.batches(order, 0)) for batching in each]
    members = [tuple(batch) for at in range(2) for rank in range(ranks) for batch in [turns[rank][at]]]
    assert sorted(example for batch in members[:6] for example in batch) == list(range(n))
    assert members[6:] == members[:2]  # to come out even
    assert [batching.padded for batching in each] == [0, 0, 1, 1]


def test_rows_that_are_given_need_no_process_group():
    loader = ordered(plain(12, 2, 3, 1, False, False), rows=np.eye(12))
    assert not torch.distributed.is_initialized()
    drawn(loader)
    assert (loader.sampler.rank, loader.sampler.num_replicas, loader.sampler.total_size) == (1, 3, 12)
    loader.sampler.set_epoch(7)  # as loops with a DistributedSampler do
    assert loader.epoch == loader.sampler.epoch == 1
    assert "ranks        1 of 3, 0.0 MiB sent" in str(loader.report())
    assert loader.metrics()["order/sent_bytes"] == 0


def test_signals_of_many_ranks_need_a_process_group(monkeypatch):
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"shares the data among 3 processes.*init_process_group"):
        drawn(ordered(plain(12, 2, 3, 1, False, False), model))
    whole = ordered(DataLoader(TensorDataset(torch.arange(4)), 2), model)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"WORLD_SIZE=2.*not initialised.*init_process_group"):
        drawn(whole)


def test_what_ranks_cannot_share_is_refused():
    with pytest.raises(ValueError, match='signals="exact" gives no rows that 2 ranks'):
        ordered(plain(8, 2, 2, 0, False, False), torch.nn.Linear(1, 1), signals="exact")
    data = TensorDataset(torch.arange(8))
    other = DistributedSampler(TensorDataset(torch.arange(6)), 2, 0)
    with pytest.raises(ValueError, match="DistributedSampler chooses the examples itself"):
        ordered(DataLoader(data, 2, sampler=other), policy=RandomReshuffling())


def test_a_state_goes_on_where_global_batches_are_the_same():
    rows = np.random.default_rng(1).normal(size=(48, 3))
    two = [ordered(plain(48, 6, 2, rank, False, False), rows=rows) for rank in range(2)]
    drawn(two[0])
    taken = iter(two[0])
    next(taken), next(taken)
    state = two[0].state_dict()
    rest = [batch[0].tolist() for batch in taken]
    four = [ordered(plain(48, 3, 4, rank, False, False), rows=rows) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(state)
        assert loader.epoch == 1
    parts = [drawn(loader) for loader in four]
    ours = [[u for pair in zip(parts[0][at], parts[2][at], strict=True) for u in pair] for at in range(2)]
    assert ours == rest
    other = ordered(plain(48, 5, 3, 0, False, False), rows=rows)
    other.load_state_dict(state)  # no batch ends where one ended before: the epoch begins anew
    assert other.epoch == 1
    assert len(drawn(other)) == 4
    with pytest.raises(ValueError, match="batch_size"):
        ordered(plain(48, 5, 2, 0, False, False), rows=rows).load_state_dict(state)
