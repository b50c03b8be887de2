"""Commands that are killed again and again: at a file-system event, or at a random moment.

``python killed_commands.py FOLDER KILLS [COMMAND]``. The parent imports everything and forks; a child runs
the command on what the one before it left, and is killed. Prints, for each command, the kills and whether its
end was that of an undisturbed run. Imports stand in functions, since worker processes import this file again.
"""

import os
import random
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

EVENTS = ("fsync", "replace", "rename", "open", "unlink", "mkdir")


@dataclass(frozen=True)
class Command:
    words: str
    table: str
    """The file that must be the same in the end, byte for byte."""
    resumes: bool
    """Whether it goes on with ``--resume``; what does not begins anew, and shows all of its files or none."""

    def run(self, folder):
        """Run the command in this process, on what is there."""
        from wellorder.__main__ import main

        out = folder / "run"
        begun = self.resumes and (out / "config.json").exists()
        sys.argv = ["wellorder", *self.words.split(), "--json", "--out", str(out)]
        sys.argv += ["--resume"] if begun else []
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise

    def end(self, folder):
        """What a run has left: its table, and the names of its files."""
        out = folder / "run"
        table = (out / self.table).read_bytes() if (out / self.table).exists() else b""
        return table, sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.name != ".lock")


COMMANDS = {
    "compare --jobs 2": Command(
        "compare --task quadratics --policy RR --policy GraB --epochs 3 --seeds 2 --jobs 2", "table.csv", True
    ),
    "reproduce fig1": Command("reproduce fig1 --n 20 --epochs 3 --seeds 2", "fig1.csv", False),
    "reproduce fig2": Command(
        "reproduce fig2 --quick --rounds 6 --clients 10 --seeds 1 --policy RR --policy PairGraB",
        "table.csv",
        True,
    ),
}


def fall_at(event, events=EVENTS):
    """Let this process be killed at its ``event``-th call of these; returns how many are left to it."""
    left = [event]

    def counted(call):
        def do(*args, **kwargs):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return do

    for name in events:
        setattr(os, name, counted(getattr(os, name)))
    return left


@contextmanager
def without_a_voice():
    """Let nothing come out of this process."""
    sys.stdout.flush()
    usual, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(usual, 1)
        os.close(usual)


def child(work):
    """Do ``work`` in a forked child; how it ended, and when."""
    begin = time.perf_counter()
    born = os.fork()
    if not born:
        status = 1
        try:
            with without_a_voice():
                work()
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(born, 0)[1], time.perf_counter() - begin


def measured(command, folder):
    """Run a command undisturbed; its end, its file-system events, and its seconds."""
    folder.mkdir()
    told = folder.parent / "events"

    def work():
        left = fall_at(10**9)
        command.run(folder)
        told.write_text(str(10**9 - left[0]))

    status, seconds = child(work)
    if status:
        raise SystemExit(f"{command.words}: an undisturbed run failed")
    return command.end(folder), int(told.read_text()), seconds


def killed(command, folder, draw, events, seconds):
    """Let a child run the command, and fall; whether it fell before the end."""

    def work():
        if draw.random() < 0.6:
            fall_at(draw.randrange(1, events + 1))
        else:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, seconds))
        command.run(folder)

    status, _ = child(work)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"{command.words}: a run that was taken up again failed")
    return os.WIFSIGNALED(status)


def main(where, wanted, *names):
    """Kill every command, or those named, ``wanted`` times."""
    import torch

    torch.set_num_threads(1)
    for name in names or COMMANDS:
        command = COMMANDS[name]
        with without_a_voice():  # so that everything is imported and compiled before the forks
            command.run(where / f"{name} first")
        end, events, seconds = measured(command, where / f"{name} whole")
        draw, kills, same = random.Random(name), 0, True
        folder = where / name
        while kills < wanted:
            folder.mkdir(exist_ok=True)
            draw.random()
            if killed(command, folder, draw, events, seconds):
                kills += 1
                same &= command.resumes or command.end(folder) in ((b"", []), end)
                if not kills % 10:
                    print(f"{name}: {kills} kills so far", file=sys.stderr, flush=True)
            else:  # it came through: its end is compared, and another begins
                same &= command.end(folder) == end
                shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        same &= not child(partial(command.run, folder))[0]
        same &= command.end(folder) == end
        left = [path.name for path in folder.rglob(".unfinished-*")]
        end_of_it = "the same end" if same else "ANOTHER END"
        print(f"{name}: {kills} kills, {end_of_it}, {len(left)} leftovers", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
