"""The mistakes of the field, planted one by one: for each, the tests must fail."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MUTATIONS = {
    "negative group not reversed": (
        "_kernels/reorder.py",
        [
            ("left, right = 0, len(order) - 1", "left, right = 0, len(order) - np.sum(signs < 0)"),
            ("right -= 1", "right += 1"),
        ],
        ["tests/policies/test_transcriptions.py", "tests/kernels/test_reorder.py"],
    ),
    "the workers' sum begins anew in every block": (
        "policies/_cdgrab.py",
        [("balance_pairs(rows, NO_VECTOR, state.total,", "balance_pairs(rows, NO_VECTOR, NO_VECTOR,")],
        ["tests/policies/test_cdgrab.py"],
    ),
    "mean of already-centred vectors": (
        "policies/_grab.py",
        [
            (
                "summed = add_rows(block, state.summed)",
                "summed = add_rows(block - state.stale if len(state.stale) else block, state.summed)",
            )
        ],
        ["tests/policies/test_transcriptions.py"],
    ),
    "seed + epoch": (
        "_order.py",
        [("SeedSequence(seed, spawn_key=(epoch, ", "SeedSequence(seed + epoch, spawn_key=(")],
        ["tests/test_contract.py", "tests/test_order.py"],
    ),
    "a kept view of the caller's buffer": (
        "_kernels/balance.py",
        [("last: Vector = block[-1].astype(np.float64)", "last: Vector = block[-1]")],
        ["tests/test_contract.py"],
    ),
    "a kept view of the caller's rows": (
        "policies/_rows.py",
        [
            (
                "    rows[steps] = block\n",
                "    rows = block if len(block) == len(rows) else rows\n    rows[steps] = block\n",
            )
        ],
        ["tests/test_contract.py"],
    ),
    "ties resolved the other way": (
        "_kernels/balance.py",
        [("(1 if v < threshold else -1)", "(1 if v <= threshold else -1)")],
        ["tests/policies/test_transcriptions.py", "tests/kernels/test_balance.py"],
    ),
    "ties resolved the other way, in products": (
        "_kernels/balance.py",
        [("sign = 1 if v < thresholds[t] else -1", "sign = 1 if v <= thresholds[t] else -1")],
        ["tests/kernels/test_balance.py"],
    ),
    "a unit dropped when n is odd": (
        "policies/_pairgrab.py",
        [
            (
                "order = place(order, state.signs)",
                "order = place(order, state.signs)[: len(state.order) // 2 * 2]",
            )
        ],
        ["tests/test_contract.py"],
    ),
    "PairGraB pairs reset at a block boundary": (
        "policies/_pairgrab.py",
        [
            ("pending = last_row(block) if lone else NO_VECTOR", "pending = NO_VECTOR"),
            ("waiting=int(partners[-1]) if lone else -1", "waiting=-1"),
        ],
        ["tests/test_contract.py"],
    ),
    "the sum takes the vector that was not centred": (
        "_kernels/balance.py",
        [
            (
                "x = s[k] + weight * (np.float64(last[k]) - center[k])",
                "x = s[k] + weight * np.float64(last[k])",
            )
        ],
        ["tests/policies/test_transcriptions.py"],
    ),
    "the same where rows are kept": (
        "_kernels/balance.py",
        [
            (
                "x = s[k] + weight * (np.float64(last[k]) - mean[k])",
                "x = s[k] + weight * np.float64(last[k])",
            )
        ],
        ["tests/policies/test_latest_rows.py::test_herding_is_basic_br_repeated_from_a_fresh_shuffle"],
    ),
    "one candidate in four is not looked at": (
        "_kernels/steer.py",
        [("((a, x), (b, y), (c, z), (d, w))", "((a, x), (b, y), (c, z))")],
        ["tests/policies/test_latest_rows.py::test_steering_is_its_transcription_in_lists"],
    ),
    "long rows are not paid for by short ones": (
        "_kernels/steer.py",
        [("lengths[0] * (np.sqrt(length) - lengths[1])", "lengths[0] * np.sqrt(length)")],
        ["tests/policies/test_latest_rows.py::test_steering_is_its_transcription_in_lists"],
    ),
    "what came too long at an epoch's end is forgotten": (
        "_kernels/steer.py",
        [
            (
                "        out[i] = held[at]\n        excess[0] += np.float64(beside[at])\n",
                "        out[i] = held[at]\n",
            )
        ],
        ["tests/policies/test_latest_rows.py::test_steering_is_its_transcription_in_lists"],
    ),
    "seeds need not agree in sign for a verdict": (
        "report/_verdict.py",
        [
            (
                "if max((differences > 0).sum(), (differences < 0).sum()) < agreeing * len(differences):",
                "if len(differences) < agreeing:",
            )
        ],
        ["tests/report/test_verdict.py::test_seeds_must_agree_in_sign"],
    ),
    "a lone row is kept unseen": (
        "_kernels/balance.py",
        [("    if not np.isfinite(square):\n", "    if False:\n")],
        [
            "tests/kernels/test_balance.py::test_the_row_that_cannot_be_balanced_is_named_and_nothing_is_kept_of_it"
        ],
    ),
    "GraB's walk is counted by steps": (
        "policies/_grab.py",
        [("state.epoch, state.observed, len(steps))", "state.epoch, state.seen, len(steps))")],
        [
            "tests/policies/test_policies.py::test_the_walk_draws_for_units_that_are_observed_and_for_no_others"
        ],
    ),
    "PairGraB's walk is counted by steps": (
        "policies/_pairgrab.py",
        [("state.epoch, state.observed // 2,", "state.epoch, state.seen // 2,")],
        [
            "tests/policies/test_policies.py::test_the_walk_draws_for_units_that_are_observed_and_for_no_others"
        ],
    ),
    "a file is renamed before it is on the disk": (
        "_saving.py",
        [("        _flush(beside)\n", "")],
        ["tests/test_saving.py::test_a_file_and_its_folder_are_flushed_before_anybody_relies_on_them"],
    ),
    "a rename is not on the disk": (
        "_saving.py",
        [("        _flush(path.parent)\n", "")],
        ["tests/test_saving.py::test_a_file_and_its_folder_are_flushed_before_anybody_relies_on_them"],
    ),
    "nothing is flushed": (
        "_saving.py",
        [("        os.fsync(handle)\n", "        pass\n")],
        ["tests/test_saving.py::test_a_file_and_its_folder_are_flushed_before_anybody_relies_on_them"],
    ),
    "an error leaves its half of a file": (
        "_saving.py",
        [("        beside.unlink(missing_ok=True)\n", "")],
        ["tests/test_saving.py::test_the_old_file_stays_until_the_new_one_is_whole"],
    ),
    "a killed writer's half of a file stays": (
        "_saving.py",
        [("    sweep(path)\n    try:", "    try:")],
        [
            "tests/test_saving.py::test_what_a_killed_writer_left_is_swept_by_the_next_reader_and_nothing_else_is"
        ],
    ),
    "a killed run's leftovers stay in its folder": (
        "experiments/_folder.py",
        [
            (
                'for leftover in [*path.glob(TEMPORARY + "*"), *(path / "cells").glob(TEMPORARY + "*")]:',
                "for leftover in ():",
            )
        ],
        ["tests/experiments/test_folder.py::test_leftover_folders_of_a_killed_run_are_swept"],
    ),
    "a killed run's folders stay beside it": (
        "experiments/_folder.py",
        [("                _sweep(entry)\n", "                pass\n")],
        ["tests/experiments/test_folder.py::test_files_appear_all_at_once_wherever_the_process_is_killed"],
    ),
}


def planned(part):
    """The mistakes of one part of the tests: what is edited, and the tests that must notice."""
    spec = importlib.util.spec_from_file_location(part, Path(__file__).parent / part / "planted_mistakes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {mistake: (file, edits, [test]) for mistake, (file, edits, test) in module.MUTATIONS.items()}


PLANNED = {"core": MUTATIONS} | {part: planned(part) for part in ("federated", "shards", "theory", "torch")}


def some(mutations):
    """The mistakes to plant: all, or those of ``WELLORDER_MISTAKES=i/k``, every k-th from the i-th on."""
    at, of = map(int, os.environ.get("WELLORDER_MISTAKES", "0/1").split("/"))
    return list(mutations)[at::of]


def planted(tmp_path, file, edits):
    """A copy of the package with the mistake in it."""
    shutil.copytree(
        ROOT / "src" / "wellorder", tmp_path / "wellorder", ignore=shutil.ignore_patterns("__pycache__")
    )
    source = tmp_path / "wellorder" / file
    source.write_text(edited(file, edits))


def edited(file, edits):
    """A file of the package with a mistake in it, whose text must stand there, once."""
    text = (ROOT / "src" / "wellorder" / file).read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{file} holds {old!r} {text.count(old)} times: update the mutation"
        text = text.replace(old, new)
    return text


def run_tests(tmp_path, tests):
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    # Compiled kernels meet a NaN in silence, interpreted ones do not.
    command += ["-W", "ignore::RuntimeWarning"]
    return subprocess.run(
        [*command, *tests], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("part", PLANNED)
def test_every_mistake_can_still_be_planted(part):
    for file, edits, _ in PLANNED[part].values():
        edited(file, edits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "mistake"), [(part, mistake) for part in PLANNED for mistake in some(PLANNED[part])]
)
def test_a_planted_mistake_makes_a_test_fail(part, mistake, tmp_path):
    """Each of the tests by itself."""
    file, edits, tests = PLANNED[part][mistake]
    planted(tmp_path, file, edits)
    for test in tests:
        result = run_tests(tmp_path, [test])
        assert result.returncode == 1, f"{test} did not notice: {mistake}\n{result.stdout[-2000:]}"
        assert "FAILED" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in PLANNED if some(PLANNED[part])])
def test_without_a_mistake_the_same_tests_pass(part, tmp_path):
    planted(tmp_path, "_order.py", [])
    tests = sorted({test for mistake in some(PLANNED[part]) for test in PLANNED[part][mistake][2]})
    result = run_tests(tmp_path, tests)
    assert result.returncode == 0, result.stdout[-2000:]
