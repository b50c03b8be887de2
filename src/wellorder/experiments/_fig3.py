"""Figure 3: as Figure 2, with ResNet-10 (`wellorder.experiments._fig2` runs and draws both)."""

from __future__ import annotations

from typing import Any

from wellorder.experiments import _fig2 as fig2


def config(**changes: Any) -> fig2.Config:
    """The paper's settings for ResNet-10.

    >>> round(config().gamma, 3)
    0.316
    """
    return fig2.Config(**{"model": "resnet10", **changes})


def quick(**changes: Any) -> fig2.Config:
    """The small form of `fig2.quick`, on images that a CPU can take; fewer rounds, as ResNet-10 is large."""
    return fig2.quick("resnet10", **{"rounds": 40, "seeds": 1, "train_sample": 500, **changes})
