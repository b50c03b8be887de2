"""Mistakes that hooks, sketches and resumed loaders are prone to, planted one by one: the tests must fail."""

BATCHES, LOADER, SKETCH = (f"tests/torch/test_{name}.py" for name in ("batch_record", "loader", "sketch"))
TRAINERS, OBSERVING = "tests/torch/test_trainers.py", "tests/torch/test_observing.py"
EXACT, LOOPS, OBSERVE = (f"tests/torch/test_{name}.py" for name in ("exact", "loops", "observe"))

MUTATIONS = {
    "batches drawn ahead get each other's signals": (
        "torch/_batch_record.py",
        [("record = self.now = owner or record", "self.now = self.latest")],
        f"{BATCHES}::test_batches_drawn_ahead_are_known_by_the_models_input",
    ),
    "a batch is settled before its gradient came": (
        "torch/_batch_record.py",
        [("(everything or not record.may_still_get_a_gradient())", "True")],
        f"{BATCHES}::test_each_batch_gets_its_own_gradient_whenever_backward_comes",
    ),
    "a gradient that comes too late is taken": (
        "torch/_hooks.py",
        [("        if record.closed:\n", "        if False:\n")],
        f"{BATCHES}::test_a_gradient_that_comes_too_late_is_dropped_with_a_warning",
    ),
    "passes to be ignored are counted": (
        "torch/_hooks.py",
        [
            (
                "        if self.records.ignoring:\n            if self.records.latest is not None",
                "        if False:\n            if self.records.latest is not None",
            ),
            ("        if self.records.ignoring:\n            return\n        start", "        start"),
        ],
        f"{BATCHES}::test_ignore_inside_ignore_stays_silent",
    ),
    "passes after the loop was left are counted": (
        "torch/_loader.py",
        [("                    self._records.pause()\n", "                    pass\n")],
        f"{BATCHES}::test_a_loop_that_was_left_hears_no_other_passes",
    ),
    "copies of the model keep listening": (
        "torch/_batch_record.py",
        [
            (
                "    def __deepcopy__(self, memo: Any) -> HookOfACopy:\n        return HookOfACopy()",
                "    def __deepcopy__(self, memo: Any) -> Any:\n        return self",
            )
        ],
        f"{BATCHES}::test_a_model_with_hooks_can_be_saved_and_its_copies_do_not_listen",
    ),
    "layers that no gradient reaches go unnoticed": (
        "torch/_hooks.py",
        [("if record.reached and not self.heard and not record.ignored:", "if False:")],
        f"{BATCHES}::test_gradients_that_no_layer_hears_of_are_refused_with_the_cure",
    ),
    "a batch that comes late takes another's place": (
        "torch/_observing.py",
        [("if steps != sorted(steps):", "if False:")],
        f"{OBSERVING}::test_a_late_batch_finds_its_place",
    ),
    "a batch whose gradient is still to come is overtaken": (
        "torch/_observing.py",
        [(" and self._pending.come_before(self._given_out):", ":")],
        f"{OBSERVING}::test_rows_that_are_shown_beside_the_training_make_the_same_state",
    ),
    "rows that are on their way are written over": (
        "torch/_observing.py",
        [("if give_away or (", "if (")],
        f"{OBSERVING}::test_rows_that_are_shown_beside_the_training_make_the_same_state",
    ),
    "rows on their way are not counted": (
        "torch/_observing.py",
        [("                self._count(each.counts, each.totals, each.finite)\n", "                pass\n")],
        f"{OBSERVING}::test_rows_that_are_shown_beside_the_training_make_the_same_state",
    ),
    "an interrupt loses the state in the making": (
        "torch/_observing.py",
        [
            (
                "            made = self.coming.get()  # an interrupt in here loses nothing\n",
                "            coming, self.coming = self.coming, None\n            made = coming.get()\n",
            )
        ],
        f"{OBSERVING}::test_an_interrupt_while_the_state_is_in_the_making_loses_nothing",
    ),
    "a question flushes rows into the policy": (
        "torch/_observing.py",
        [
            (
                "        finite, not_finite = self._pending.finite()\n",
                "        self.flush()\n        finite, not_finite = self._pending.finite()\n",
            )
        ],
        f"{OBSERVING}::test_a_late_batch_finds_its_place",
    ),
    "a loss scale stays in the signals": (
        "torch/_hooks.py",
        [("return gradient.float() / scaler.scale(", "return gradient.float() + 0 * scaler.scale(")],
        f"{LOADER}::test_a_changing_loss_scale_is_undone",
    ),
    "a module is run again with the buffers it has by then": (
        "torch/_per_example/replay.py",
        [("own = {name: b.clone() for name, b in buffers.items()}", "own = {}")],
        f"{LOOPS}::test_a_loop_that_works_is_never_altered_and_never_warned_of[spectral_norm, exact]",
    ),
    "a micro-batch's row is the parameter's own gradient": (
        "torch/_batch_gradients.py",
        [("values.to(torch.float32, copy=True)", "values.to(torch.float32)")],
        f"{LOOPS}::test_a_second_loaders_batch_among_micro_batches_is_told_apart_by_its_backward_or_warned_of",
    ),
    "another loader's batch is mixed in": (
        "torch/_batch_record.py",
        [("if not self._in_doubt and self._is_foreign(given, record):", "if False:")],
        f"{LOOPS}::test_a_second_loaders_batch_is_not_counted_and_is_warned_of_once",
    ),
    "a compiled graph does not notice that nobody listens": (
        "torch/_hooks.py",
        [
            (
                "        self._switch.on = False\n        if not self.compiled and",
                "        if not self.compiled and",
            )
        ],
        f"{LOOPS}::test_a_compiled_graph_is_whole_in_all_epochs_and_made_twice_at_most",
    ),
    "a model that was never called loses its hooks": (
        "torch/_hooks.py",
        [("if not self.compiled and self._called:\n", "if not self.compiled:\n")],
        f"{OBSERVE}::test_a_run_that_goes_on_in_an_unobserved_epoch_is_heard_in_the_next_observed_one",
    ),
    "a compiled graph's casts are forgotten": (
        "torch/_projection.py",
        [("        seen = seen.to(like.dtype)", "        seen = seen")],
        f"{LOOPS}::test_a_compiled_model_under_autocast_has_the_rows_of_one_that_is_not_compiled",
    ),
    "a layer's second use is taken for its first": (
        "torch/_side_by_side.py",
        [("            uses[part.place] -= 1\n", "")],
        "tests/torch/test_side_by_side.py::test_rows_are_those_of_steps_one_by_one",
    ),
    "who takes a step's place loses its gradient": (
        "torch/_side_by_side.py",
        [("            given, back = given.clone(), back.clone()\n", "            pass\n")],
        "tests/torch/test_side_by_side.py::"
        "test_losses_that_are_summed_before_one_backward_leave_each_step_its_own_row",
    ),
    "inputs of earlier steps stay": (
        "torch/_side_by_side.py",
        [("for rows in (given, back):", "for rows in (back,):")],
        "tests/torch/test_side_by_side.py::test_an_input_that_is_not_finite_spoils_no_later_step",
    ),
    "a short batch has no views": (
        "torch/_batch_record.py",
        [("(record.size < FEW and count == before) or all(", "all(")],
        "tests/torch/test_batch_record.py::"
        "test_two_views_of_each_example_are_known_in_a_short_last_batch_too",
    ),
    "steps mind the uses of steps beside them": (
        "torch/_side_by_side.py",
        [("filled[step * batch : step * batch + x.shape[0]] = x", "filled[: x.shape[0]] = x")],
        "tests/torch/test_side_by_side.py::test_asking_in_between_changes_no_bit",
    ),
    "given rows are lost to a state without them": (
        "torch/_saved_state.py",
        [("    if there != length:\n", "    if there and there != length:\n")],
        f"{OBSERVE}::test_given_rows_are_not_lost_to_a_state_without_them",
    ),
    "observed rows are written over given ones": (
        "policies/_latest_rows.py",
        [("        latest = rows[unit, given:]\n", "        latest = rows[unit]\n")],
        f"{OBSERVE}::test_given_rows_as_long_as_observed_ones_stay_beside_those",
    ),
    "given rows and observed ones count by their size": (
        "policies/_latest_rows.py",
        [("    one_kind = not 0 < given < len(mean)\n", "    one_kind = True\n")],
        "tests/policies/test_latest_rows.py::test_of_rows_given_and_observed_each_kind_counts_as_much",
    ),
    "a unit that was not observed counts as if it had been seen to be zero": (
        "policies/_latest_rows.py",
        [("    return len(row) if known > 0 else (given if known < 0 else 0)\n", "    return len(row)\n")],
        "tests/policies/test_latest_rows.py::test_units_that_were_not_observed_go_by_what_was_given_of_them",
    ),
    "an order is waited for by a join that can be interrupted": (
        "torch/_schedule.py",
        [
            (
                "        while not self._wait(PATIENCE):\n            self._say()\n",
                "        self._thread.join()\n",
            )
        ],
        f"{OBSERVE}::test_after_an_interrupt_at_an_epochs_end_the_loop_may_go_on",
    ),
    "the same examples are dropped in every epoch": (
        "torch/_batching.py",
        [("(epoch * rest + np.arange(rest)) % places", "np.arange(rest)")],
        f"{LOADER}::test_drop_last_starves_nobody",
    ),
    "all ranks get the same batches": (
        "torch/_batching.py",
        [("[self.share.number :: self.share.of]", "[0 :: self.share.of]")],
        "tests/torch/test_shares.py::test_ranks_together_visit_the_global_batches_of_one_process",
    ),
    "policies that keep rows are shown products": (
        "torch/_signal_sources.py",
        [
            (
                "        if keeps_of(policy) is Keeps.ROWS:\n            why",
                "        if not layers and policy is None:\n            why",
            ),
        ],
        f"{LOADER}::test_policies_that_keep_rows_get_micro_batches_where_nothing_can_be_sketched",
    ),
    "a resumed epoch begins anew": (
        "torch/_batching.py",
        [
            (
                "self.batching.batches(self.order, self.epoch, start)",
                "self.batching.batches(self.order, 0)",
            )
        ],
        "tests/torch/test_saved_state.py::test_a_resumed_run_is_bit_identical",
    ),
    "a state of an epoch's last step opens an empty epoch": (
        "torch/_loader.py",
        [("        if self._step >= len(self):", "        if False:")],
        f"{OBSERVE}::test_a_state_of_an_epochs_last_step_goes_on_with_the_next_epoch",
    ),
    "hooks stay on in epochs that are not observed": (
        "torch/_loader.py",
        [("        else:\n            self._source.pause()\n", "        else:\n")],
        f"{OBSERVE}::test_an_epoch_that_is_not_observed_has_no_hook_of_ours",
    ),
    "optimizers call us in epochs that are not observed": (
        "torch/_loop_watch.py",
        [("            self._steps.remove()\n        self._steps = None\n", "            pass\n")],
        f"{OBSERVE}::test_an_epoch_that_is_not_observed_has_no_hook_of_ours",
    ),
    "the background's order is kept when another state is loaded": (
        "torch/_loader.py",
        [("        self._next = None\n        self._iteration += 1\n", "        self._iteration += 1\n")],
        f"{OBSERVE}::test_a_state_loaded_while_the_thread_is_busy_drops_what_it_makes",
    ),
    "an error in the background is lost": (
        "torch/_schedule.py",
        [("        if error is not None:\n            raise error\n", "")],
        f"{OBSERVE}::test_an_error_in_the_background_is_raised_at_the_epochs_end_with_its_cause",
    ),
    "the process waits for the background": (
        "torch/_schedule.py",
        [("daemon=True", "daemon=False")],
        f"{OBSERVE}::test_an_interrupt_never_hangs_on_the_thread[body]",
    ),
    "the thread is there when workers are forked": (
        "torch/_loader.py",
        [("        batches = self._drawn(numbered=False)", "        batches = self._inner")],
        f"{OBSERVE}::test_workers_are_forked_before_the_thread_begins",
    ),
    "an evaluation uses up an epoch's turn": (
        "torch/_loader.py",
        [("self._postponed = not trained", "self._postponed = False")],
        f"{OBSERVE}::test_an_epoch_in_which_nothing_is_trained_leaves_its_turn_to_the_next",
    ),
    "an epoch's turn is lost in a state": (
        "torch/_loader.py",
        [('bool(mapping["postponed"])', "False")],
        f"{OBSERVE}::test_a_state_knows_that_an_epoch_waits_for_its_turn",
    ),
    "a user's schedule is asked again and again": (
        "torch/_loader.py",
        [
            (
                "self._source is not None and self._scheduled",
                "self._source is not None and self._schedule(self.epoch)",
            )
        ],
        f"{OBSERVE}::test_a_function_that_changes_its_mind_is_asked_once_an_epoch",
    ),
    "rows grow younger without being seen": (
        "torch/_loader.py",
        [
            (
                "        if self._observer.learnt:\n            self._seen_in",
                "        if self.observing:\n            self._seen_in",
            )
        ],
        f"{OBSERVE}::test_an_epoch_in_which_nothing_was_seen_makes_no_rows_younger",
    ),
    "the order of a left epoch is not in the report": (
        "torch/_observing.py",
        [("            running.add_all(pending.totals(), pending.counts)\n", "            pass\n")],
        f"{OBSERVE}::test_an_epoch_that_was_left_is_in_the_report",
    ),
    "the mean over the batch is not undone": (
        "torch/_sketch.py",
        [("parts[0].left, batch if self.spec.mean else 1", "parts[0].left, 1")],
        f"{SKETCH}::test_rows_are_the_projected_gradients",
    ),
    "a sketch forgets the bias": (
        "torch/_projection.py",
        [
            (
                "return functional.linear(seen, right[0], constant)",
                "return functional.linear(seen, right[0])",
            )
        ],
        f"{SKETCH}::test_a_pooled_sequence_is_one_position",
    ),
    "an input is held until its gradient comes": (
        "torch/_hooks.py",
        [
            (
                "        self.kept: Any = None\n",
                "        self.kept: Any = None\n        self.first: Any = None\n",
            ),
            ('        "__weakref__", ', '        "__weakref__", "first", '),
            (
                "        record.uses.append(",
                "        use.first = first\n        record.uses.append(",
            ),
        ],
        f"{SKETCH}::test_inputs_are_not_held_for_the_gradient",
    ),
    "stride and dilation change places": (
        "torch/_per_example/convolution.py",
        [
            ("zip(steps[2:], self.dilation, strict=True)", "zip(steps[2:], self.strides, strict=True)"),
            ("zip(steps[2:], self.stride, strict=True)", "zip(steps[2:], self.dilation, strict=True)"),
            ("zip(steps[2:], self.strides, strict=True)", "zip(steps[2:], self.stride, strict=True)"),
        ],
        f"{EXACT}::test_convolutions_of_one_to_three_dimensions",
    ),
    "padding gets a gradient": (
        "torch/_per_example/layers.py",
        [("left = left * (flat != module.padding_idx).unsqueeze(-1)", "left = left * 1")],
        f"{EXACT}::test_embedding",
    ),
    "differences of pairs of an embedding have one sign": (
        "torch/_per_example/factors.py",
        [("left = left * (1 - 2 * (owner % 2)).unsqueeze(2)", "left = left * 1")],
        f"{EXACT}::test_products_are_the_same_whether_rows_are_kept_or_not_and_in_pairs",
    ),
    "Accelerate is not told of the epoch's end": (
        "torch/_frameworks.py",
        [("return bool(this._step >= len(this._batching))", "return False")],
        f"{TRAINERS}::test_accelerate_steps_at_an_epochs_end_and_after_a_break",
    ),
    "skipped batches are skipped twice after a load": (
        "torch/_batching.py",
        [("return self._whole() if skipping_asks() else self._batches", "return self._batches")],
        f"{TRAINERS}::test_first_batches_that_accelerate_skips_after_a_load_are_not_skipped_twice",
    ),
    "a state of an epoch's end is not loaded in Lightning": (
        "lightning/_callback.py",
        [("if len(self._states) == len(self._loaders):", "if False:"), ("elif self._states:", "elif False:")],
        f"{TRAINERS}::test_lightning_trains_as_a_plain_loop_does_and_goes_on_from_its_checkpoints",
    ),
    "a new loader does not take over the order": (
        "lightning/_callback.py",
        [("                _hand_over(old, new)\n", "                pass\n")],
        f"{TRAINERS}::test_loaders_that_lightning_makes_anew_go_on_with_the_order",
    ),
    "the Trainer resumes without the order": (
        "transformers/_trainer.py",
        [("if (checkpoint / STATE).exists():", "if False:")],
        f"{TRAINERS}::test_the_trainer_goes_on_from_its_checkpoints_and_logs_the_order",
    ),
    "workers are forked while another loader's order is in the making": (
        "torch/_loader.py",
        [("            let_threads_end()\n", "            pass\n")],
        "tests/torch/test_observing.py::test_workers_are_forked_when_no_thread_is_underway",
    ),
}
