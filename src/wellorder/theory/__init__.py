"""The paper's analysis, callable: constants, bounds, step sizes, rates, checks against a run, advice."""

from wellorder.theory._advice import Advice, Choice, advise
from wellorder.theory._bounds import (
    Bound,
    Tuned,
    bound,
    max_step_size,
    step_size_lemma,
    tuned_step_size,
)
from wellorder.theory._checks import Check, check_assumption, check_bound, check_drift, check_order_errors
from wellorder.theory._constants import METHODS, Constants, Method, constants, least, method_of
from wellorder.theory._estimates import Estimate, estimate
from wellorder.theory._lemmas import check_lemmas
from wellorder.theory._setting import Setting
from wellorder.theory._tables import Rate, TableRow, rate, rate_table

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
    "Setting",
    "TableRow",
    "Tuned",
    "advise",
    "bound",
    "check_assumption",
    "check_bound",
    "check_drift",
    "check_lemmas",
    "check_order_errors",
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
