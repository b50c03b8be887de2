"""The paper's analysis, callable: constants, bounds, step sizes, rates, checks against a run, advice."""

from wellorder.theory.advice import Advice, Choice, advise
from wellorder.theory.assumptions import Constants, constants, least
from wellorder.theory.checks import Check, check_assumption, check_bound, check_drift
from wellorder.theory.estimates import Estimate, estimate
from wellorder.theory.lemmas import check_lemmas
from wellorder.theory.methods import METHODS, Method, method_of
from wellorder.theory.rates import Rate, Row, rate, rate_table
from wellorder.theory.setting import Setting
from wellorder.theory.steps import Tuned, step_size_lemma, tuned_step_size
from wellorder.theory.theorems import Bound, bound, max_step_size

__all__ = [
    "METHODS",
    "Advice",
    "Bound",
    "Check",
    "Choice",
    "Constants",
    "Estimate",
    "Method",
    "Rate",
    "Row",
    "Setting",
    "Tuned",
    "advise",
    "bound",
    "check_assumption",
    "check_bound",
    "check_drift",
    "check_lemmas",
    "constants",
    "estimate",
    "least",
    "max_step_size",
    "method_of",
    "rate",
    "rate_table",
    "step_size_lemma",
    "tuned_step_size",
]
