"""What a foreign object has learnt: every kind of value comes back, and nothing else is touched."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")
from wellorder._saving import load_state, save_state
from wellorder.flower._memory import recall, remembered, snapshot


class Layer:
    def __init__(self):
        self.rate, self.norm, self.seen, self.current_arrays = 0.1, 1.0, [], None
        self.vector = self.moments = self.pair = self.scalar = None
        self.function = print


def test_all_that_was_learnt_comes_back(tmp_path):
    layer, again = Layer(), Layer()
    before = snapshot(layer)
    layer.norm, layer.current_arrays = float("inf"), object()
    layer.seen.append(float("nan"))
    layer.vector = [np.float32(2.0), np.arange(3)]
    layer.moments = {"a/b": np.ones((2, 2), np.float32), "vector": np.zeros(0)}
    layer.pair = (np.array([True]),)
    layer.scalar = np.float32(0.5)
    save_state(tmp_path / "s", remembered(layer, before))
    learnt = load_state(tmp_path / "s")
    assert repr(learnt["plain"]) == "{'norm': inf, 'seen': [nan]}"
    again.rate = 0.2  # a setting that was changed on purpose
    recall(again, learnt)
    assert (again.rate, again.norm, again.current_arrays) == (0.2, float("inf"), None)
    assert np.isnan(again.seen).tolist() == [True]
    np.testing.assert_array_equal(again.vector[1], [0, 1, 2])
    assert again.vector[0] == 2.0
    assert list(again.moments) == ["a/b", "vector"]
    assert again.moments["a/b"].dtype == np.float32
    assert again.pair[0].tolist() == [True]
    assert again.scalar == 0.5


@pytest.mark.parametrize("value", [{1}, object(), {3: 4}, [np.ones(1), "a"]])
def test_other_values_are_refused_once_they_change(value):
    layer = Layer()
    layer.notes = value
    remembered(layer, snapshot(layer))
    before = snapshot(layer)
    layer.notes = {2}
    with pytest.raises(ValueError, match=r"Layer\.notes has become a set.*leave out state"):
        remembered(layer, before)
