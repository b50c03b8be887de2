"""Objectives with cheap per-unit gradients."""

from wellorder.problems._logistic import Logistic, logistic
from wellorder.problems._problem import Problem, gradient, loop_steps, start_of, steps
from wellorder.problems._quadratics import Quadratics, quadratics

__all__ = [
    "Logistic",
    "Problem",
    "Quadratics",
    "gradient",
    "logistic",
    "loop_steps",
    "quadratics",
    "start_of",
    "steps",
]
