"""Tables as tasks: what is read, what is learnt, and what is refused by column and row."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")


from wellorder import RandomReshuffling, Steering  # noqa: E402
from wellorder.experiments import Config, compare, table_task  # noqa: E402
from wellorder.experiments._training import Settings  # noqa: E402

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3)) * [1, 100, 0.01] + [0, 5000, 1]
CLASS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 5050)
QUANTITY = X[:, 0] * 30 + X[:, 2] * 100 + DRAW.normal(size=60)
NAMES = ("a", "b", "c")


def table(**more):
    return pa.table({name: X[:, i] for i, name in enumerate(NAMES)} | more)


def write(path, **more):
    pa.csv.write_csv(table(**more), path)
    return path


def last(task, policy=None, epochs=20):
    policy = RandomReshuffling() if policy is None else policy
    return list(task.train(policy, 0, Settings(task.step_size, epochs)))[-1]


def test_all_three_formats_hold_the_same_task(tmp_path):
    pa.csv.write_csv(table(y=CLASS), tmp_path / "t.csv")
    pa.parquet.write_table(table(y=CLASS), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", X=X, y=CLASS)
    tasks = [table_task(tmp_path / f"t.{suffix}", "y") for suffix in ("csv", "parquet", "npz")]
    for task in tasks:
        assert task.fingerprint() == tasks[0].fingerprint()
        assert (task.n, task.name) == (48, "t")
    assert last(tasks[0], epochs=2)["loss"] == pytest.approx(last(tasks[2], epochs=2)["loss"])


@pytest.mark.parametrize(
    ("label", "model", "told"),
    [
        (CLASS, "linear", "3 classes, linear model"),
        (["low" if c == 0 else "high" for c in CLASS], "mlp", "2 classes, network with 64 hidden units"),
        (CLASS > 0, "linear", "2 classes"),
        (QUANTITY, "linear", "a quantity, linear model"),
        (QUANTITY, "mlp", "a quantity, network"),
    ],
)
def test_classes_and_quantities_are_learnt(tmp_path, label, model, told):
    task = table_task(write(tmp_path / "t.csv", y=label), "y", model=model)
    assert told in task.title
    for policy in (RandomReshuffling(), Steering()):
        end = last(task, policy)
        assert end["loss"] < 0.7
        assert end.get("test_accuracy", 1.0) > 0.7


def test_a_linear_model_of_a_quantity_is_least_squares(tmp_path):
    task = table_task(write(tmp_path / "t.csv", y=QUANTITY), "y")
    x, y = task._split(0)[0].inputs.double().numpy(), task._split(0)[0].labels.double().numpy()
    best = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
    floor = float(best[1][0]) / len(x)
    assert floor < last(task, epochs=60)["loss"] < 1.2 * floor


def test_features_are_standardised_and_a_constant_one_is_nothing(tmp_path):
    task = table_task(write(tmp_path / "t.csv", y=CLASS, same=np.full(60, 7.0)), "y")
    x = task._data[0].inputs
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(0, correction=0), [1, 1, 1, 0], atol=1e-5)


def test_whole_numbers_may_be_asked_to_be_a_quantity(tmp_path):
    path = write(tmp_path / "t.csv", y=CLASS)
    assert "3 classes" in table_task(path, "y").title
    assert "a quantity" in table_task(path, "y", kind="regression").title


HOLES = np.where(np.arange(60) == 16, np.nan, X[:, 0])


@pytest.mark.parametrize(
    ("more", "how", "message"),
    [
        ({"d": HOLES}, {}, r"column 'd' has 1 missing value, the first in row 17 .*--drop d"),
        ({"d": ["Paris"] * 60}, {}, r"column 'd' holds 'Paris' in row 1, which is no number; encode"),
        ({"d": [None, *["Rome"] * 59]}, {}, r"column 'd' has 1 missing value, the first in row 1 "),
        ({"d": ["1"] * 30 + ["2,5"] * 30}, {}, r"column 'd' holds '2,5' in row 31, which is no number"),
        ({"d": np.full(60, np.inf)}, {}, r"column 'd' is infinite in row 1"),
        ({"y": HOLES}, {}, r"label='y' is missing in 1 row, the first is row 17"),
        ({"y": [np.inf, *X[1:, 0]]}, {}, r"label='y' is infinite in row 1; put a finite number there"),
        ({"y": np.zeros(60)}, {}, "same value in every row"),
        ({"y": range(60)}, {"kind": "classification"}, "hardly classes; pass --task regression"),
        ({"y": [f"0,{i}" for i in range(60)]}, {}, "60 values in 60 rows, hardly classes; .* needs numbers"),
        ({"y": ["a", "b"] * 30}, {"kind": "regression"}, "no quantity; .* or pass --task classification"),
        ({}, {"label": "z"}, r"label='z': t.csv has no such column; "),
        ({}, {"drop": ["z"]}, r"drop='z': t.csv has no such column"),
        ({}, {"drop": ["a", "b", "c"]}, "no column beside 'y'"),
        ({}, {"drop": ["y"]}, "drop='y' is the label"),
        ({}, {"kind": "ranking"}, "kind='ranking'"),
        ({}, {"model": "forest"}, "model='forest': pass 'linear' or 'mlp'"),
        ({}, {"test": 0.0}, "test=0.0"),
        ({}, {"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_cannot_be_learnt_from_is_named_by_column_and_row(tmp_path, more, how, message):
    path = write(tmp_path / "t.csv", **{"y": CLASS, **more})
    with pytest.raises(ValueError, match=message):
        table_task(path, how.pop("label", "y"), **how)


def test_decimals_of_a_data_base_are_numbers(tmp_path):
    decimals = [pa.array(np.round(values, 3)).cast(pa.decimal128(9, 3)) for values in (X[:, 0], QUANTITY)]
    pa.parquet.write_table(pa.table(decimals, ["a", "y"]), tmp_path / "t.parquet")
    assert "a quantity" in table_task(tmp_path / "t.parquet", "y").title


def test_a_column_may_be_left_out(tmp_path):
    path = write(tmp_path / "t.csv", y=CLASS, city=["Paris"] * 60)
    task = table_task(path, "y", drop=["city"], batch_size=8)
    assert task._data[0].inputs.shape == (60, 3)
    assert task.command == ("--data", str(path), "--label", "y", "--batch", "8", "--drop", "city")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "cannot be read"),
        ("t.csv", b"a,a\n1,2\n", "two columns have the same name"),
        ("t.csv", b"a,y\n1,2\n", "1 row; pass 20 or more"),
        ("t.csv", b"a,y\n", "0 rows; pass 20 or more"),
        ("t.parquet", b"PAR1 nonsense", "cannot be read"),
        ("t.npz", b"nonsense", "cannot be read"),
        ("t.xlsx", b"", "pass a .csv, a .parquet or an .npz"),
    ],
)
def test_files_that_are_no_table_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        table_task(tmp_path / name, "y")
    with pytest.raises(ValueError, match="there is no such file"):
        table_task(tmp_path / f"missing{name}", "y")


def test_nothing_in_a_file_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("a stranger's code was run",))

    np.savez(tmp_path / "t.npz", X=X, y=np.array([Trap()] * 60, object))
    with pytest.raises(ValueError, match="cannot be read"):
        table_task(tmp_path / "t.npz", "y")


def test_a_table_can_be_compared_and_travels(tmp_path):
    task = table_task(write(tmp_path / "t.csv", y=CLASS), "y")
    done = compare(task, Config(epochs=1, seeds=(0,)))
    assert {"stratified", "features", "Steering"} <= set(done.plan.policies)
    import pickle

    again = pickle.loads(pickle.dumps(task))
    assert again.fingerprint() == task.fingerprint()
