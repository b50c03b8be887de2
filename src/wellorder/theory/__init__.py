"""The paper's analysis, callable: constants, bounds, step sizes, rates, checks against a run, advice."""

from wellorder.theory._advice import Advice, Choice, advise
from wellorder.theory._assumptions import Constants, constants, least
from wellorder.theory._checks import Check, check_assumption, check_bound, check_drift
from wellorder.theory._estimates import Estimate, estimate
from wellorder.theory._lemmas import check_lemmas
from wellorder.theory._methods import METHODS, Method, method_of
from wellorder.theory._rates import Rate, Row, rate, rate_table
from wellorder.theory._setting import Setting
from wellorder.theory._steps import Tuned, step_size_lemma, tuned_step_size
from wellorder.theory._theorems import Bound, bound, max_step_size

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
