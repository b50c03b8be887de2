"""Promises made too freely, planted one by one: without a safeguard, a fast test must fail."""

CHECKS, CONSTANTS, BOUNDS = (f"theory/_{name}.py" for name in ("checks", "constants", "bounds"))
TESTS, TABLE = (
    "tests/theory/test_checks.py::test",
    "tests/theory/test_promises.py::test_every_policy_and_method",
)

MUTATIONS = {
    "drift of a short last round": (
        CHECKS,
        [("    check_rounds(s)\n    clients = federated(run)", "    clients = federated(run)")],
        f"{TESTS}_the_drift_of_a_short_last_round_is_promised_nothing",
    ),
    "another policy's row is promised": (
        CHECKS,
        [("elif not general and row.name != covering:", "elif False:")],
        f"{TESTS}_another_policys_row_is_a_comparison",
    ),
    "a mean over runs is promised to one": (
        CHECKS,
        [("    if row.expected:\n", "    if False:\n")],
        f"{TABLE}_says_whether_it_is_promised_and_why_not",
    ),
    "one order for all epochs is taken on trust": (
        CHECKS,
        [("    elif row.one and not kept:", "    elif False:")],
        f"{TESTS}_one_order_that_changed_is_promised_nothing",
    ),
    "any sign rule is promised the walk's": (
        CHECKS,
        [
            (
                '        return [f"rule={rule!r} has no proof: the lemmas are about Walk(c)"]',
                "        return []",
            )
        ],
        f"{TESTS}_balancing_is_promised_something_only_with_a_walk_that_suffices",
    ),
    "any c is promised": (
        CHECKS,
        [("    if s.sigma + behind <= row.length(s) * (1 + ROUNDING):", "    if True:")],
        f"{TESTS}_balancing_is_promised_something_only_with_a_walk_that_suffices",
    ),
    "signals from along the way count as if seen at the start": (
        CHECKS,
        [("    if s.sigma + behind <= row", "    if s.sigma <= row")],
        f"{TESTS}_a_walk_for_the_start_alone_is_not_enough_for_signals_from_along_the_way",
    ),
    "clients' local steps do not lengthen their signals": (
        CONSTANTS,
        [
            (
                "return math.sqrt(s.c / s.walk(pairs=self.pairs)) / times",
                "return math.sqrt(s.c / s.walk(pairs=self.pairs)) / (2 if self.pairs else 1)",
            )
        ],
        f"{TESTS}_clients_whose_walk_ignores_their_local_steps_are_promised_nothing",
    ),
    "a proximal run is promised the theorem": (
        CHECKS,
        [("    if run.proximal:\n", "    if False:\n")],
        f"{TESTS}_a_proximal_run_is_not_promised_what_it_breaks",
    ),
    "a proximal run is promised a relation between epochs": (
        CHECKS,
        [("    if (any(known.A) or any(known.B)) and run.proximal:", "    if False:")],
        f"{TESTS}_a_proximal_run_is_not_promised_what_it_breaks",
    ),
    "the assumption is promised at any step size": (
        CHECKS,
        [("        reasons += _step_size(run, known)\n", "        pass\n")],
        f"{TESTS}_a_promise_ends_at_the_largest_step_size",
    ),
    "the assumption is promised somewhat above the limit": (
        CHECKS,
        [
            (
                "if run.step_size <= largest(known) * (1 + ROUNDING):",
                "if run.step_size <= 1.1 * largest(known):",
            )
        ],
        f"{TESTS}_a_promise_ends_at_the_largest_step_size",
    ),
    "drift is promised somewhat above the limit": (
        CHECKS,
        [("> 1 / 32 * (1 + ROUNDING)", "> 1.1 / 32")],
        f"{TESTS}_a_promise_ends_at_the_largest_step_size",
    ),
    "the theorem is promised somewhat above the limit": (
        BOUNDS,
        [("if step_size > most * (1 + 1e-12):", "if step_size > 1.1 * most:")],
        f"{TESTS}_a_promise_ends_at_the_largest_step_size",
    ),
    "estimates count as exact": (
        CHECKS,
        [("    reasons = _outside(run) + _guessed(found, gap=gap)", "    reasons = _outside(run)")],
        f"{TESTS}_a_quadratic_without_a_minimum_is_promised_no_bound",
    ),
    "estimates count as exact in the drift": (
        CHECKS,
        [("    reasons = _outside(run) + _guessed(found, gap=False)", "    reasons = _outside(run)")],
        f"{TESTS}_a_problem_whose_constants_are_guessed_is_promised_nothing",
    ),
    "claims are believed": (
        CHECKS,
        [("        reasons += _claimed(known, row, Setting(run.problem.n, **facts), gap=gap)\n", "")],
        f"{TESTS}_constants_that_claim_less_than_the_run_shows_are_no_promise",
    ),
    "forged constants are believed": (
        CHECKS,
        [("    if _bare(known) not in (_bare(proved), _bare(proved.tight())):", "    if False:")],
        f"{TESTS}_constants_that_claim_less_than_the_run_shows_are_no_promise",
    ),
    "constants of another shape": (
        CHECKS,
        [("    if theirs != mine:", "    if False:")],
        f"{TESTS}_constants_of_another_shape_are_refused",
    ),
    "local orders and absent clients are promised": (
        CHECKS,
        [
            (
                'reasons = [f"{what}: the theorems do not know it" for what in run.extras]',
                "reasons: list[str] = []",
            )
        ],
        f"{TESTS}_local_orders_are_not_in_the_theorems",
    ),
    "orders that are no permutations are promised": (
        CHECKS,
        [("    if not all(is_permutation(order, run.problem.n) for order in run.orders):", "    if False:")],
        f"{TESTS}_orders_that_are_no_permutations_are_promised_nothing",
    ),
    "pairs of an odd number": (
        CONSTANTS,
        [("    return n is None or n // cast(int, cohort) % 2 == 0", "    return True")],
        f"{TESTS}_an_odd_number_of_units_leaves_pairs_with_the_bound_of_any_order",
    ),
    "workers in rounds of another size": (
        CONSTANTS,
        [('if places is not None and getattr(policy, "workers", places) != places:', "if False:")],
        f"{TABLE}_says_whether_it_is_promised_and_why_not",
    ),
    "orders that were reordered several times": (
        CONSTANTS,
        [('    if not name or getattr(policy, "reorders", 1) != 1:', "    if not name:")],
        f"{TABLE}_says_whether_it_is_promised_and_why_not",
    ),
    "a subclass with a verb of its own": (
        CONSTANTS,
        [("    if changed:\n", "    if False:\n")],
        "tests/theory/test_constants.py",
    ),
}
