"""Objectives with cheap per-unit gradients."""

from wellorder.problems.logistic import Logistic, logistic
from wellorder.problems.problem import Problem, gradient, loop_steps, start_of, steps
from wellorder.problems.quadratics import Quadratics, quadratics

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
