"""Mistakes that client ordering is prone to, planted one by one: for each, a fast test must fail."""

QUEUE, FEDERATION, AVAILABILITY, UPDATES = (
    f"tests/clients/test_{name}.py" for name in ("queue", "federation", "availability", "updates")
)
SIMULATE, LOCAL, RESUME, MODELS, STATEFUL = (
    f"tests/federated/test_{name}.py"
    for name in ("simulate", "local_ordering", "resume", "batched_models", "stateful_layers")
)
SAVING, SETUPS = "tests/test_saving.py", "tests/flower/test_setups.py"

MUTATIONS = {
    "whoever was missed loses the first places": (
        "_clients/queue.py",
        [
            (
                "rest = np.concatenate([self.absent, rest[~first[rest]]])",
                "rest = np.concatenate([rest[~first[rest]], self.absent])",
            )
        ],
        f"{QUEUE}::test_an_epoch_holds_everybody_once_whoever_was_missed_or_joined",
    ),
    "a policy is told who should have come": (
        "_clients/queue.py",
        [("self.units[self.state.order] = np.concatenate([self.visited, self.missed])", "pass")],
        f"{QUEUE}::test_the_next_order_follows_from_who_really_came",
    ),
    "rows belong to a place in the order": (
        "_clients/queue.py",
        [("keeps_of(policy) is Keeps.ROWS, policy", "False, policy")],
        f"{QUEUE}::test_a_policy_that_keeps_rows_keeps_them_for_a_client_whenever_it_came",
    ),
    "an order is written into a policy's state": (
        "_clients/queue.py",
        [
            (
                "        self.epoch, self.absent = self.epoch + 1, self.missed\n",
                "        self.epoch, self.absent = self.epoch + 1, self.missed\n"
                "        from dataclasses import replace\n"
                "        self.state = replace(self.state, order=self.state.order.copy())\n",
            )
        ],
        f"{SIMULATE}::test_a_policy_is_shown_no_state_that_it_did_not_make",
    ),
    "who cannot be reached loses the place": (
        "_clients/queue.py",
        [("        self._front = left\n", "        self._front = NOBODY\n")],
        f"{AVAILABILITY}::test_a_thousand_random_settings_visit_exactly_who_can_be_reached",
    ),
    "a few who are left train alone": (
        "_clients/queue.py",
        [("            if enough or (chosen and", "            if (chosen and")],
        f"{QUEUE}::test_rounds_are_full_and_clients_come_equally_often_whoever_is_away",
    ),
    "a few who are left train alone in a federation": (
        "_clients/federation.py",
        [("            if not queue.cut_short(chosen, self.cohort) or (", "            if len(chosen) or (")],
        f"{FEDERATION}::test_a_few_train_alone_only_where_no_more_are_present",
    ),
    "the end of an order that never changes is missed again and again": (
        "_clients/queue.py",
        [("rest = np.roll(rest, -1 - int(np.flatnonzero(rest == self.absent[-1])[0]))", "pass")],
        f"{QUEUE}::test_rounds_are_full_and_clients_come_equally_often_whoever_is_away",
    ),
    "whoever is away is replaced by the first who is there": (
        "_clients/queue.py",
        [("near.pop(int(far.argmin()) if known[own] else 0)", "near.pop(0)")],
        f"{QUEUE}::test_balanced_cohorts_stay_balanced_when_clients_are_away",
    ),
    "whoever is behind many who sleep is not found": (
        "_clients/queue.py",
        [("< enough and self._at < len(self._line):", "< enough and len(up) < enough:")],
        f"{QUEUE}::test_the_first_who_are_there_are_found_however_many_sleep_before_them",
    ),
    "a failing client is asked for ever": (
        "_clients/queue.py",
        [(">= (1 if c in away else attempts)", "> 10**9")],
        f"{QUEUE}::test_a_client_that_keeps_failing_is_missed_after_its_attempts",
    ),
    "newcomers are numbered as they are met": (
        "_clients/federation.py",
        [("- self._numbers.keys(), key=natural)", "- self._numbers.keys())")],
        f"{FEDERATION}::test_names_are_numbered_once_in_natural_order",
    ),
    "a bad update enters the balancing sum": (
        "_clients/updates.py",
        [("        if not np.isfinite(square):\n", "        if False:\n")],
        f"{UPDATES}::test_an_unfit_update_says_why",
    ),
    "two traces are one if they come from one file": (
        "_clients/availability.py",
        [
            ("field(compare=False)", "field()"),
            ("field(init=False, repr=False)", "field(init=False, compare=False)"),
        ],
        f"{AVAILABILITY}::test_traces_are_equal_if_they_hold_the_same_times",
    ),
    "a lane without a client is averaged": (
        "federated/_round_loop.py",
        [
            (
                "shares = np.where(taken, 1.0 if sizes is None else sizes[self.clients], 0.0)",
                "shares = np.where(taken, 1.0 if sizes is None else sizes[self.clients], 1.0)",
            )
        ],
        f"{SIMULATE}::test_clients_of_unequal_size_and_other_settings_equal_the_naive_loop",
    ),
    "the policy sees moves instead of gradients": (
        "federated/_round_loop.py",
        [("self.signals[r][:count].div_(self.step_sizes[r])", "self.signals[r][:count]")],
        f"{SIMULATE}::test_simulate_is_algorithm_2",
    ),
    "a pair that straddles two rounds is lost on the device": (
        "federated/_device_balancing.py",
        [("waiting = len(line) % 2 == 1", "waiting = False")],
        f"{SIMULATE}::test_runs_in_company_and_balanced_as_on_a_device_equal_each_run_alone",
    ),
    "GraB forgets its stale mean on the device": (
        "federated/_device_balancing.py",
        [("self.head[g, 0] = stale * self.step_sizes[g]", "self.head[g, 0] = 0 * stale")],
        f"{SIMULATE}::test_runs_in_company_and_balanced_as_on_a_device_equal_each_run_alone",
    ),
    "gradients of padding enter a short mini-batch": (
        "federated/_batched_models.py",
        [("((losses * real).sum(dim=1) / real.sum(dim=1)).sum()", "losses.mean(dim=1).sum()")],
        f"{SIMULATE}::test_clients_of_unequal_size_and_other_settings_equal_the_naive_loop",
    ),
    "a bias is added before the smallest is pooled": (
        "federated/_batched_models.py",
        [
            (
                "torch.relu(pooled(p, y) + _bias(p, name, x, how))",
                "torch.relu(pooled(p, y)) + _bias(p, name, x, how)",
            )
        ],
        f"{MODELS}::test_stacked_lanes_equal_each_model_by_itself",
    ),
    "a gradient goes back through kernels that are not turned round": (
        "federated/_batched_models.py",
        [("_grouped(images, weight.flip(2, 3).permute", "_grouped(images, weight.permute")],
        f"{MODELS}::test_a_convolution_is_the_same_in_every_way",
    ),
    "images that lie in cuDNN's order are pooled as if they did not": (
        "federated/_batched_models_cuda.py",
        [("        x = x.contiguous()  # cuDNN's", "        # cuDNN's")],
        "tests/federated/test_batched_models_cuda.py::test_kernels_equal_their_twins[small]",
    ),
    "a strided gradient reaches the pixels between": (
        "federated/_batched_models_cuda.py",
        [(" & (i % stride == 0) & (j % stride == 0)", "")],
        "tests/federated/test_batched_models_cuda.py::test_kernels_equal_their_twins[small]",
    ),
    "a kernel adds every difference with one sign": (
        "federated/_device_balancing_cuda.py",
        [("tl.where(small, first - second, second - first)", "first - second")],
        "tests/federated/test_batched_models_cuda.py::test_kernels_equal_their_twins[small]",
    ),
    "a kernel that only the interpreter takes": (
        "federated/_batched_models_cuda.py",
        [
            (
                "for bit in tl.static_range(0, K * K):",
                "for tap in tl.static_range(0, K * K):\n            bit = tap",
            )
        ],
        "tests/federated/test_compiled_kernels.py",
    ),
    "frozen parameters are no part of a lane that is measured": (
        "federated/_evaluate.py",
        [("{**named, **self.constants}", "{**named, **{n: 0 * p for n, p in self.constants.items()}}")],
        f"{SIMULATE}::test_evaluation_is_the_same_by_batched_layers",
    ),
    "a client's mini-batches are cut anew at each visit": (
        "federated/_local_ordering.py",
        [('key_of(seed, 0, "cut")', 'key_of(seed, sum(q.epoch for q in self.queues.values()), "cut")')],
        f"{LOCAL}::test_local_ordering_equals_lists_and_loops",
    ),
    "a run that goes on forgets who was missed": (
        "_clients/queue.py",
        [('saved["units"], saved["missed"], saved["absent"]', 'saved["units"], saved["missed"], NOBODY')],
        f"{QUEUE}::test_a_saved_queue_goes_on_to_the_same_orders",
    ),
    "a checkpoint is anybody's": (
        "federated/_simulate.py",
        [('if saved.get("fingerprint") != self.fingerprint():', "if False:")],
        f"{RESUME}::test_another_runs_checkpoint_is_refused",
    ),
    "a saved state is not checked": (
        "_saving.py",
        [("if _checksum(arrays) != told:", "if False:")],
        f"{SAVING}::test_a_file_whose_parts_do_not_belong_together_is_refused",
    ),
    "a flipped bit is an error of Python's": (
        "_saving.py",
        [("EOFError, RuntimeError, MemoryError", "EOFError, MemoryError")],
        f"{SAVING}::test_a_flipped_bit_anywhere_is_refused_in_words_or_does_not_matter",
    ),
    "a server step moves running statistics": (
        "federated/_round_loop.py",
        [("rows[:, : self.layout.trained] for rows in (self", "rows for rows in (self")],
        f"{STATEFUL}::test_a_server_step_leaves_running_statistics_alone",
    ),
    "a dropout that is called twice draws once": (
        "federated/_stateful_layers.py",
        [("        self.calls += 1\n", "")],
        f"{STATEFUL}::test_a_dropout_that_is_called_twice_draws_twice",
    ),
    "what is computed again draws anew": (
        "federated/_local_training.py",
        [("                forward_is_over(self.dropouts)\n", "")],
        f"{STATEFUL}::test_a_dropout_that_is_computed_again_draws_what_it_drew",
    ),
    "mini-batches of one example are not looked for": (
        "federated/_round_loop.py",
        [('        if mode == "loop":  # elsewhere', "        if False:  # elsewhere")],
        f"{STATEFUL}::test_a_mini_batch_of_one_example_that_batchnorm_cannot_take_is_refused",
    ),
    "a damaged state takes the round before with it": (
        "flower/_memory.py",
        [(" and not self._damaged:", ":")],
        f"{SETUPS}::test_a_second_accident_after_a_damaged_state_leaves_the_round_before",
    ),
    "an update without a signal is kept from a strategy that can use it": (
        "flower/_strategy.py",
        [("if visit.fault and (visit.bad or alike)}", "if visit.fault}")],
        f"{SETUPS}::test_an_update_that_gives_no_signal_still_reaches_a_strategy_that_aggregates_by_itself",
    ),
    "what to expect is said only where an epoch ends by itself": (
        "flower/_strategy.py",
        [("                self._say_what_to_expect(epoch)\n            if chosen", "            if chosen")],
        f"{SETUPS}::test_a_second_epoch_that_is_closed_early_says_what_to_expect_too",
    ),
}
