"""Signs that training goes on without being heard: parameters that get gradients, optimizers that step."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

UNHEARD = (
    "gradients came to the model's parameters, but no layer was heard: the model was compiled before, its "
    "layers were replaced, or their weights are used outside of them. Call ordered(...) on the model that is "
    "trained, after its layers are final and before torch.compile; call the layers themselves; or use "
    'signals="batch"'
)
NEVER = (
    "an epoch was trained and no example of it was observed: another copy of the model is trained than the "
    "one given to ordered(...), or its layers were replaced since. The order learns nothing; call "
    "ordered(...) on the model that is trained"
)


class Reached:
    """Notes whether a gradient came to any of a model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.deaf, self.seen = 0, False
        self._handles = [p.register_hook(self._note) for p in model.parameters() if p.requires_grad]

    def _note(self, _: Tensor) -> None:
        self.seen = self.seen or not self.deaf

    def remove(self) -> None:
        """Look no further."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Steps:
    """Counts the steps of all optimizers."""

    def __init__(self) -> None:
        self.count = 0
        own = weakref.ref(self)

        def stepped(*_: Any) -> None:
            steps = own()
            if steps is not None:
                steps.count += 1

        handle = register_optimizer_step_post_hook(stepped)
        self.remove = weakref.finalize(self, handle.remove)
