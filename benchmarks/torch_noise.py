"""How much of the batches' noise an order takes off: where its rows were seen, and as training moves on.

``python benchmarks/torch_noise.py SETTING… DATA [--examples 4000] [--epochs 12] [--seeds 2]``: settings and
DATA as for ``torch_benefit.py``. A network is trained for some epochs in reshuffled orders; then all examples
show their rows, and it is trained for one epoch more, steered by them and, from the same weights, reshuffled.
Noise is a batch's gradient less that of all examples, summed over some batches in a row. Told is its mean
square by reshuffling's: in each quarter of the epoch as it is trained, and over an epoch in which the weights
stay where the rows were seen ("still"). JSON.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from torch_benefit import SETTINGS, Training, chosen, data_of, rows_shown, say
from torch_models import LabelledData

from wellorder import RandomReshuffling, Steering
from wellorder.torch import ordered

IN_A_ROW = (1, 2, 4, 8)
"""So many batches are summed."""
Noise = npt.NDArray[np.float32]


def gradient(training: Training, model: nn.Module, x: Tensor, y: Tensor) -> Noise:
    """All parameters' gradient of a loss, left in them, too."""
    model.zero_grad()
    training.loss(model, x, y).backward()
    return np.concatenate([p.grad.flatten().numpy() for p in model.parameters() if p.grad is not None])


def noise_along(training: Training, data: LabelledData, order: npt.NDArray[Any], *, still: bool) -> Noise:
    """What each batch's gradient strays from that of all examples, at the weights of its own step."""
    model, recipe = copy.deepcopy(training.model), training.setting.recipe
    optimizer = type(training.optimizer)(model.parameters())
    optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))
    found: list[Noise] = []
    for at in range(0, len(order) // recipe.batch * recipe.batch, recipe.batch):
        if not (still and found):
            whole = gradient(training, model, data.x, data.y)
        units = torch.from_numpy(order[at : at + recipe.batch].astype(np.int64))
        found.append(gradient(training, model, data.x[units], data.y[units]) - whole)
        if not still:
            optimizer.step()
    return np.array(found)


def squares(noise: Noise, in_a_row: int, parts: int) -> npt.NDArray[np.float64]:
    """Mean square of sums of some batches, in each part of the epoch."""
    count = len(noise) // in_a_row
    sums = noise[: count * in_a_row].reshape(count, in_a_row, -1).sum(axis=1)
    each = np.square(sums, dtype=np.float64).sum(axis=1)
    return np.array([part.mean() for part in np.array_split(each, parts)])


def measure(options: argparse.Namespace, name: str) -> None:
    setting = chosen(options, name)
    data = data_of(options, setting)
    told: dict[str, list[npt.NDArray[np.float64]]] = {}
    for seed in range(options.seeds):
        training = Training(setting, data, "RR", seed)
        for _ in range(options.epochs):
            training.epoch()
        model = copy.deepcopy(training.model)
        shown = ordered(data.loader(setting.recipe.batch), model, observe="always")
        rows = rows_shown(training, model, shown)
        steered = Steering().init(len(data.x), seed=seed, rows=rows).order
        plain = RandomReshuffling().init(len(data.x), seed=seed).order
        for kind, parts in (("still", 1), ("trained", 4)):
            along = [noise_along(training, data, order, still=kind == "still") for order in (steered, plain)]
            for in_a_row in IN_A_ROW:
                ours, usual = squares(along[0], in_a_row, parts), squares(along[1], in_a_row, 1)
                told.setdefault(f"{kind}, {in_a_row} in a row", []).append(ours / usual)
    shown = {kind: np.mean(found, axis=0).round(3).tolist() for kind, found in told.items()}
    say(setting=name, seeds=options.seeds, steps=len(data.x) // setting.recipe.batch, **shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="+", choices=list(SETTINGS), metavar="SETTING")
    parser.add_argument("data")
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=12, help="before the one that is looked at")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--own-files", action="store_true", help="files of the same format, not the official")
    parser.set_defaults(device="cpu", looked_at=None, orders=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.settings:
        measure(options, name)


if __name__ == "__main__":
    main()
