"""ShardedDataset: each example once an epoch, for any workers and ranks, stopped and resumed anywhere."""

import collections
import copy
import itertools
import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data._utils import worker as torch_worker  # noqa: E402

from wellorder import order_error  # noqa: E402
from wellorder.shards import ShardError, Survey, survey  # noqa: E402
from wellorder.torch import ShardedDataset  # noqa: E402

# Tiny windows make more of the settings that can go wrong; that they order badly is not at issue.
pytestmark = pytest.mark.filterwarnings("ignore:window=.* is too small for shards:UserWarning")


class Made:
    """Shards in memory: example i is (its number, its label); some cannot be read beyond a place."""

    def __init__(self, sizes, kinds=3, broken=None):
        ends = np.cumsum([0, *sizes])
        self.parts = [list(range(ends[i], ends[i + 1])) for i in range(len(sizes))]
        self.kinds, self.broken, self.reads = kinds, broken or {}, collections.Counter()

    def __len__(self):
        return sum(map(len, self.parts))

    def label(self, number):
        return next(i for i, part in enumerate(self.parts) if number in part) % self.kinds

    def read(self, shard):
        self.reads[shard] += 1
        for at, number in enumerate(self.parts[shard]):
            if at == self.broken.get(shard, -1):
                raise OSError("a bad block")
            yield number, shard % self.kinds

    def survey(self, **options):
        sound = Made([len(part) for part in self.parts], self.kinds)
        return survey(range(len(self.parts)), sound.read, xy=just_label, threads=1, **options)

    def dataset(self, **options):
        options.setdefault("survey", self.survey())
        return ShardedDataset(range(len(self.parts)), self.read, **options)


def just_label(example):
    return None, example[1]


class as_worker:  # noqa: N801
    """Within, this process is a DataLoader's worker, as far as data sets can tell."""

    def __init__(self, index, count):
        self.info = (
            torch_worker.WorkerInfo(id=index, num_workers=count, seed=0, dataset=None) if count else None
        )

    def __enter__(self):
        torch_worker._worker_info = self.info

    def __exit__(self, *_):
        torch_worker._worker_info = None


def batches_of(stream, size):
    return iter(lambda: list(itertools.islice(stream, size)), [])


def forked(data):
    """A data set as a worker has it: its own but for what is in shared memory."""
    other = object.__new__(ShardedDataset)
    other.__dict__.update(data.__getstate__())
    return other


def run(data, workers, size, stop=None):
    """What a DataLoader does: workers hold copies of the data set, and give out batches in turn."""
    copies = [forked(data) for _ in range(max(workers, 1))]
    streams = []
    for index, each in enumerate(copies):
        with as_worker(index, workers):
            streams.append(batches_of(iter(each), size))
    out, turn = [], 0
    while streams and (stop is None or len(out) < stop):
        batch = next(streams[turn % len(streams)], None)
        if batch is None:
            streams.pop(turn % len(streams))
            turn %= max(len(streams), 1)
        else:
            out.append(batch)
            turn = turn % len(streams) + 1
    states = []
    for index, each in enumerate(copies):
        with as_worker(index, workers):
            states.append(each.state_dict())
    return out, states


def resume(data, workers, size, states):
    """Go on from the workers' states, as StatefulDataLoader does; the first turn is the caller's to know."""
    copies = [forked(data) for _ in states]
    rest = []
    for index, (each, state) in enumerate(zip(copies, states, strict=True)):
        with as_worker(index, workers):
            each.load_state_dict(state)
            rest.append(list(iter(each)))
    return rest


def numbers(batches):
    return [example[0] for batch in batches for example in batch]


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any)


ANY = st.tuples(
    SIZES, st.integers(0, 4), st.integers(1, 4), st.integers(1, 40), st.integers(1, 5), st.booleans(),
    st.integers(0, 3), st.integers(0, 12), st.sampled_from(["repeat", "drop", "keep"]),
)  # fmt: skip


@settings(max_examples=60)
@given(ANY)
def test_each_example_once_in_any_setting_stopped_and_resumed_anywhere(setting):
    check_setting(*setting)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("WELLORDER_SETTINGS", "400")))  # 10,000 for a release
@given(ANY)
def test_each_example_once_in_many_settings(setting):
    check_setting(*setting)


def check_setting(sizes, workers, ranks, window, size, told, epoch, stop, remainder):
    made = Made(sizes)
    found = made.survey()
    seen, counts = [], set()
    for rank in range(ranks):
        options = dict(survey=found, window=window, batch_size=size if told else 1, remainder=remainder)
        data = made.dataset(rank=rank, ranks=ranks, **options)
        data.set_epoch(epoch)
        whole, _ = run(data, workers, size)
        mine = numbers(whole)
        counts.add(len(mine) if remainder != "keep" and not told else len(whole) if told else 0)
        if told or not workers:
            assert len(mine) == len(data)
            assert len(whole) == -(-len(data) // size)
        data.set_epoch(epoch)
        begun, states = run(data, workers, size, stop)
        rest = [example[0] for part in resume(data, workers, size, states) for example in part]
        assert sorted(numbers(begun) + rest) == sorted(mine)
        if not workers:
            assert numbers(begun) + rest == mine
        data.set_epoch(epoch)  # and by counting batches, where nobody asks the workers
        data.load_state_dict(data.state_dict(batches=len(begun), batch_size=size))
        replayed, _ = run(data, workers, size)
        if told or not workers:
            assert numbers(begun) + numbers(replayed) == mine
        seen += mine
    times = collections.Counter(seen)
    total = len(made)
    if remainder != "keep":
        assert len(counts) == 1  # equal numbers of batches
    if remainder == "drop":
        assert set(times.values()) <= {1}
        assert total - len(seen) < ranks
    else:
        assert sorted(times) == list(range(total))
        assert len(seen) - total < (ranks if remainder == "repeat" else 1)


def test_global_batches_are_far_better_balanced_than_a_shuffles_where_shards_hold_one_label():
    made = Made([50] * 120, kinds=10)
    found, streams = made.survey(), []
    for rank in range(2):
        data = made.dataset(survey=found, window=500, rank=rank, ranks=2, batch_size=5)
        streams.append(numbers(run(data, 2, 5)[0]))
    order = np.array([[a, b] for a, b in zip(*streams, strict=True)]).reshape(-1)
    rows = np.eye(10)[np.arange(6000) // 50 % 10]
    shuffled = np.mean([order_error(rows, np.random.default_rng(i).permutation(6000)) for i in range(5)])
    assert order_error(rows, order) < 0.5 * shuffled
    for own in streams:
        assert order_error(rows[own], np.arange(len(own))) < 0.5 * shuffled


def test_epochs_count_themselves_and_set_epoch_repeats_one():
    made = Made([10] * 12)
    data = made.dataset(window=8)
    first, second, third = ([e[0] for e in data] for _ in range(3))
    assert first != second != third
    data.set_epoch(1)
    assert [e[0] for e in data] == second
    assert data.epoch == 2
    assert [e[0] for e in copy.deepcopy(data)] == third


def test_a_stopped_stream_reads_again_only_the_shards_of_what_was_in_flight():
    made = Made([20] * 50)
    data = made.dataset(window=10)
    begun = [e[0] for e in itertools.islice(iter(data), 700)]
    state = data.state_dict()
    whole_epoch = begun + [e[0] for e in data._stream]
    made.reads.clear()
    data.load_state_dict(state)
    stream = iter(data)
    assert sum(made.reads.values()) <= 10
    assert begun + [e[0] for e in stream] == whole_epoch


def test_a_state_is_safe_to_load_and_small(tmp_path):
    data = Made([20] * 50).dataset(window=64)
    begun = list(itertools.islice(iter(data), 333))
    torch.save(data.state_dict(), tmp_path / "state.pt")
    rest = [e[0] for e in data._stream]
    data.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert data.state_dict()["epoch"] == 0
    assert [e[0] for e in data] == rest
    assert (tmp_path / "state.pt").stat().st_size < 10_000
    assert sorted([e[0] for e in begun] + rest) == list(range(1000))


@pytest.mark.parametrize("failed", ["raise", "skip"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_shard_that_fails_is_named_and_nothing_else_is_lost(failed, ranks):
    made = Made([9] * 8, broken={3: 4})
    seen, lengths = [], set()
    for rank in range(ranks):
        data = made.dataset(window=5, failed=failed, rank=rank, ranks=ranks)
        if failed == "raise":
            if 3 in [piece.shard for piece in data._opened_stream(0, 0, 1, rank, ranks).pieces]:
                with pytest.raises(ShardError, match=r"shard '?3.*OSError: a bad block"):
                    list(data)
            continue
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            mine = [e[0] for e in data]
        lengths.add(len(mine))
        seen += mine
        assert all("shard '3'" in str(each.message) for each in told)
    if failed == "skip":
        assert set(seen) == set(range(72)) - set(made.parts[3][4:])
        assert len(lengths) == 1  # a rank that lost examples gives out as many as the others
        assert ranks > 1 or len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("size", "words"), [(8, "has 8 examples, and the survey counted 9"), (10, "has more")]
)
def test_a_shard_that_changed_since_the_survey_is_named(size, words):
    found = Made([9] * 4).survey()
    changed = Made([9, 9, size, 9])
    with pytest.raises(ShardError, match=f"shard '2': it {words}"):
        list(changed.dataset(survey=found))


def test_a_sample_alone_cannot_be_shared_out_among_ranks_and_workers_take_whole_shards():
    made = Made([9, 5, 7, 3])
    found = made.survey(sample=2)
    assert (found.sizes == -1).all()
    assert sorted(numbers(run(made.dataset(survey=found, window=4), 3, 2)[0])) == list(range(24))
    with pytest.raises(ValueError, match="2 ranks cannot be given equal shares"):
        iter(made.dataset(survey=found, rank=0, ranks=2))
    with pytest.raises(TypeError, match="sizes"):
        len(made.dataset(survey=found))


BAD = [
    (dict(survey=None), "survey=NoneType"),
    (dict(window=0), "window=0"),
    (dict(failed="ignore"), "failed='ignore'"),
    (dict(remainder="pad"), "remainder='pad'"),
    (dict(rank=1), "pass both"),
    (dict(rank=2, ranks=2), "rank=2"),
    (dict(batch_size=0), "batch_size=0"),
    (dict(survey=Made([1, 2]).survey()), "pass the list that was surveyed"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input_is_named_with_its_cure(options, words):
    with pytest.raises(ValueError, match=words):
        Made([3, 4, 5]).dataset(**options)


def test_a_state_of_another_place_or_of_other_data_is_refused():
    made = Made([9] * 4)
    data = made.dataset(window=4)
    next(iter(data))
    state = data.state_dict()
    with pytest.raises(ValueError, match=r"window=4.*window=5"):
        made.dataset(window=5).load_state_dict(state)
    other = made.dataset(window=4, rank=1, ranks=2)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="rank 0 of 1 with 1 workers, and this is rank 1 of 2"):
        iter(other)
    for name, value in (("leaving", torch.tensor([1 << 60])), ("window", torch.tensor([5, 5]))):
        data.load_state_dict({**state, "next": [1, 3], name: value})
        with pytest.raises(ValueError, match="this state"):
            iter(data)
    with pytest.raises(ValueError, match=r"state=.*: pass what a ShardedDataset's state_dict returned"):
        data.load_state_dict({})


def test_a_survey_whose_row_function_was_lost_is_refused(tmp_path):
    made = Made([9] * 4)
    survey(range(4), made.read, row=lambda e: [e[1], 1.0]).save(tmp_path / "survey.npz")
    with pytest.raises(ValueError, match="row=None: the survey was made with a row function"):
        made.dataset(survey=Survey.load(tmp_path / "survey.npz"))
    data = made.dataset(survey=Survey.load(tmp_path / "survey.npz", row=lambda e: [e[1], 1.0]))
    assert sorted(e[0] for e in data) == list(range(36))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_real_loader_gives_each_example_once_and_epochs_differ(workers, persistent):
    if persistent and not workers:
        pytest.skip("nothing to persist")
    made = Made([30] * 10)
    data = made.dataset(window=40, batch_size=8)
    loader = DataLoader(data, batch_size=8, num_workers=workers, persistent_workers=persistent)
    epochs = [torch.cat([x for x, _ in loader]).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(300)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len(loader) == 38
    data.set_epoch(1)
    assert torch.cat([x for x, _ in loader]).tolist() == epochs[1]
    expected = numbers(run_epoch(made, workers, 1))
    assert epochs[1] == expected  # the simulation of the other tests is what torch does


def run_epoch(made, workers, epoch):
    data = made.dataset(window=40, batch_size=8)
    data.set_epoch(epoch)
    return run(data, workers, 8)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_stateful_loader_resumes_in_mid_epoch(workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    made = Made([30] * 10)

    def loader():
        return stateful(made.dataset(window=40, batch_size=8), batch_size=8, num_workers=workers)

    first = loader()
    running = iter(first)
    begun = [next(running)[0].tolist() for _ in range(11)]
    state = first.state_dict()
    rest = [batch[0].tolist() for batch in running]
    second = loader()
    second.load_state_dict(state)
    assert [batch[0].tolist() for batch in second] == rest
    assert sorted(itertools.chain(*begun, *rest)) == list(range(300))
    following = [batch[0].tolist() for batch in second]
    assert sorted(itertools.chain(*following)) == list(range(300))
    assert following == [batch[0].tolist() for batch in first]


@pytest.mark.slow
def test_a_plain_loader_with_workers_refuses_to_guess_and_counts_batches():
    made = Made([30] * 10)
    data = made.dataset(window=40, batch_size=8)
    loader = DataLoader(data, batch_size=8, num_workers=2)
    whole = [x.tolist() for x, _ in loader]
    data.set_epoch(0)
    running = iter(loader)
    for _ in range(7):
        next(running)
    with pytest.raises(ValueError, match=r"StatefulDataLoader.*batches=k"):
        data.state_dict()
    state = data.state_dict(batches=7, batch_size=8)
    del running
    other = made.dataset(window=40, batch_size=8)
    other.load_state_dict(state)
    loader = DataLoader(other, batch_size=8, num_workers=2)
    assert [x.tolist() for x, _ in loader] == whole[7:]
    following = [x.tolist() for x, _ in loader]
    assert sorted(itertools.chain(*following)) == list(range(300))
