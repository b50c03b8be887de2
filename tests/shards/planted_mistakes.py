"""Mistakes that surveys, shard streams and audits are prone to, planted one by one: the tests must fail."""

SURVEY, ORDER, WINDOW = (f"tests/shards/test_{name}.py" for name in ("survey", "order", "window"))
STEER, FORMATS = "tests/kernels/test_steer.py", "tests/shards/test_formats.py"
SHARDED, AUDIT = "tests/torch/test_sharded.py", "tests/audit/test_audit.py"

MUTATIONS = {
    "small shards count like large ones": (
        "shards/_order.py",
        [(" * weights[:, None].astype(np.float32)", "")],
        f"{ORDER}::test_the_next_shard_is_the_one_that_turns_the_sum_back",
    ),
    "the next shard is the one that keeps the sum shortest": (
        "shards/_order.py",
        [("        along *= scales[left[at]]\n", "        along += np.float32(0.5) * np.dot(row, row)\n")],
        f"{ORDER}::test_the_next_shard_is_the_one_that_turns_the_sum_back",
    ),
    "every epoch has the same order of shards": (
        "shards/_order.py",
        [('whole_number("epoch", epoch, least=0), "shards")', '0, "shards")')],
        f"{ORDER}::test_orders_are_fresh_and_functions_of_seed_and_epoch",
    ),
    "what is cut off one share is lost": (
        "shards/_shares.py",
        [("                over.append(rest)\n", "                pass\n")],
        f"{ORDER}::test_shares_cover_every_example_once",
    ),
    "the mean of all is the mean of the shards": (
        "shards/_survey.py",
        [("weights @ rows.astype(np.float64) / weights.sum()", "rows.mean(axis=0, dtype=np.float64)")],
        f"{SURVEY}::test_shard_means_are_the_means_of_the_rows_that_the_survey_makes",
    ),
    "rows of a stream are not centred as the survey's are": (
        "shards/_features.py",
        [("(sides[i, j] - center[j]) * scale[j]", "sides[i, j] * scale[j]")],
        f"{SURVEY}::test_shard_means_are_the_means_of_the_rows_that_the_survey_makes",
    ),
    "a list of other shards passes for the one surveyed": (
        "shards/_survey.py",
        [("if len(ours) == len(marks) and (ours == marks).all():", "if len(ours) == len(marks):")],
        f"{SURVEY}::test_other_shards_or_settings_than_those_of_the_file_are_named",
    ),
    "an interrupted survey forgets the labels that it met": (
        "shards/_survey.py",
        [("            self._labels.update(labels)\n        self.sizes", "        self.sizes")],
        f"{SURVEY}::test_an_interrupted_survey_goes_on_and_says_the_same",
    ),
    "the spread of rows is that of their lengths": (
        "shards/_survey.py",
        [("max(0.0, square - float(mean @ mean))", "square")],
        f"{WINDOW}::test_the_spread_is_the_rows_variance",
    ),
    "a state forgets what has left the window": (
        "shards/_stream.py",
        [("np.array(self._leaving[given_out:], np.int64)", "np.zeros(0, np.int64)")],
        f"{SHARDED}::test_each_example_once_in_any_setting_stopped_and_resumed_anywhere",
    ),
    "a state forgets the window's sum": (
        "shards/_stream.py",
        [("carry_on(total * buffer.unit, draws)", "carry_on(0 * total, draws)")],
        f"{SHARDED}::test_a_stopped_stream_reads_again_only_the_shards_of_what_was_in_flight",
    ),
    "what was read before an error is lost": (
        "shards/_stream.py",
        [
            (
                "            if block:\n                yield (at",
                "            if block and not error:\n                yield (at",
            )
        ],
        f"{SHARDED}::test_a_shard_that_fails_is_named_and_nothing_else_is_lost",
    ),
    "what has left the window counts as given out": (
        "shards/_stream.py",
        [("self._given - length_hint(self._left)", "self._given")],
        f"{SHARDED}::test_each_example_once_in_any_setting_stopped_and_resumed_anywhere",
    ),
    "a block meets another block's part of the sum": (
        "_kernels/steer.py",
        [("near[places[b] * width :]", "near[places[a] * width :]")],
        f"{STEER}::test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists",
    ),
    "blocks are not centred": (
        "_kernels/steer.py",
        [("along = (product - shared + beside[at] * long)", "along = (product + beside[at] * long)")],
        f"{STEER}::test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists",
    ),
    "the mean stays in a sum of blocks": (
        "_kernels/steer.py",
        [("    return _less(1.0, mean, total, near)\n", "    return _less(0.0, mean, total, near)\n")],
        f"{STEER}::test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists",
    ),
    "a block is as long as what is in it": (
        "_kernels/steer.py",
        [("    length = square\n", "    length = 0.0\n"), ("b * (b - 2.0 * mean[k])", "b * b")],
        f"{STEER}::test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists",
    ),
    "a block that moves up keeps the other's label": (
        "_kernels/steer.py",
        [("            places[at] = places[filled - 1]\n", "")],
        f"{STEER}::test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists",
    ),
    "a window of blocks forgets between two calls what their mean has to do with the sum": (
        "_kernels/steer.py",
        [
            (
                "square += mean[k] * mean[k]\n    shared = np.float32(0.0) if places is None else "
                "_less(0.0, mean, total, near)",
                "square += mean[k] * mean[k]\n    shared = np.float32(0.0)",
            )
        ],
        f"{STEER}::test_blocks_are_steered_as_rows_with_all_their_zeros_are_in_lists",
    ),
    "an input that is not finite passes": (
        "shards/_features.py",
        [("            if not good:\n", "            if False:\n")],
        f"{SURVEY}::test_an_input_that_is_not_finite_is_named_by_its_place_in_the_stream",
    ),
    "an unknown label's row is that of the first": (
        "shards/_features.py",
        [("        if places[i] >= 0:\n", "        if True:\n")],
        f"{SURVEY}::test_a_label_that_the_survey_did_not_meet_has_a_row_of_zeros",
    ),
    "some rows of a table bring the first ones' columns": (
        "shards/_reading.py",
        [
            (
                "rows.columns = part.columns",
                "rows.columns = {k: v[: len(rows)] for k, v in self.columns.items()}",
            )
        ],
        f"{FORMATS}::test_rows_made_of_columns_are_those_made_of_examples",
    ),
    "one example that waits keeps its whole row group in memory": (
        "shards/_reading.py",
        [("copy(values[start:stop])", "values[start:stop]")],
        f"{FORMATS}::test_an_example_that_waits_does_not_keep_its_whole_row_group",
    ),
    "a shard that lost examples goes unnoticed": (
        "shards/_stream.py",
        [("        if here < stop:\n", "        if False:\n")],
        f"{SHARDED}::test_a_shard_that_changed_since_the_survey_is_named",
    ),
    "epochs do not count themselves": (
        "torch/_sharded.py",
        [("self._shared[NEXT, worker] = epoch + 1", "self._shared[NEXT, worker] = epoch")],
        f"{SHARDED}::test_epochs_count_themselves_and_set_epoch_repeats_one",
    ),
    "an audit compares an order with itself": (
        "_audit/judging.py",
        [("for order in (None, *drawn))", "for order in (None, *map(np.sort, drawn)))")],
        f"{AUDIT}::test_the_ratio_of_an_order_is_that_of_order_errors",
    ),
    "an audit calls two epochs the same by their examples alone": (
        "_audit/audit.py",
        [("np.array_equal(marks[0], other)", "np.array_equal(np.sort(marks[0]), np.sort(other))")],
        f"{AUDIT}::test_a_fresh_shuffle_of_every_epoch_is_told_as_one_with_nothing_to_find",
    ),
    "an audit splits off the shards' means weighed by shards": (
        "_audit/judging.py",
        [("(sums / counts[:, None])[places]", "(sums / counts.mean())[places]")],
        f"{AUDIT}::test_shards_split_the_error_in_two",
    ),
    "an audit moves the global random states": (
        "_audit/watching.py",
        [("        random.setstate(python)\n", "        pass\n")],
        f"{AUDIT}::test_global_random_states_are_put_back",
    ),
}
