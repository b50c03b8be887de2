"""One flat sketch: piece by piece, row by row, and by its definition."""

import numpy as np
import pytest

from wellorder._kernels.sketch import FlatSketch, fold


@pytest.mark.parametrize(("dim", "width"), [(1, 1), (7, 3), (12, 4), (5, 8), (1000, 64)])
def test_pieces_rows_and_the_definition_agree(dim, width):
    sketch = FlatSketch.draw(dim, width, seed=3)
    rows = np.random.default_rng(0).standard_normal((4, dim))
    by_hand = np.zeros((4, width))
    for i in range(dim):
        by_hand[:, i % width] += sketch.signs[i] * rows[:, i]
    np.testing.assert_allclose(fold(rows, sketch.signs.astype(float), width), by_hand, atol=1e-12)
    for row, expected in zip(rows, by_hand, strict=True):
        for parts in ([row], np.array_split(row, 3)):
            np.testing.assert_allclose(sketch.of(parts), expected, atol=1e-12)


def test_rows_of_torch_are_folded_where_they_lie():
    torch = pytest.importorskip("torch")
    sketch = FlatSketch.draw(10, 4, seed=0)
    rows = torch.randn(3, 10, dtype=torch.float64)
    ours = fold(rows, torch.from_numpy(sketch.signs).to(rows), 4)
    np.testing.assert_allclose(ours.numpy(), fold(rows.numpy(), sketch.signs.astype(float), 4))


def test_inner_products_are_right_on_average():
    rows = np.random.default_rng(1).standard_normal((3, 40)) + 0.5
    truth, found = rows @ rows.T, []
    for seed in range(2000):
        sketch = FlatSketch.draw(40, 8, seed)
        short = fold(rows, sketch.signs.astype(float), 8)
        found.append(short @ short.T)
    noise = np.std(found, axis=0) / np.sqrt(len(found))
    assert (abs(np.mean(found, axis=0) - truth) < 4.5 * noise).all()
