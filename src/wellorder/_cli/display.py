"""What the commands show: clean tables, refusals, and nothing else."""

from __future__ import annotations

import codecs
import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from wellorder.experiments._pool import JobError
from wellorder.experiments._progress import plain_console

IN_ASCII = {
    "‖": "||", "∇": "grad ", "∞": "inf", "θ": "theta", "γ": "gamma", "ς": "sigma", "σ": "sigma", "φ": "phi",
    "η": "eta", "δ": "delta", "ν": "nu", "\N{COMBINING MACRON}": "", "²": "^2", "₀": "0", "√": "sqrt ",
    "≤": "<=", "≥": ">=", "·": "*", "×": "x", "−": "-", "–": "-", "•": "*", "…": "...", "’": "'",
    "±": "+-", "Σ": "sum ",
}  # fmt: skip


def write_legibly() -> None:
    """Let standard output and error say in ASCII what their encoding lacks, instead of failing."""

    def spelled(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(IN_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end

    codecs.register_error("wellorder-legible", spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="wellorder-legible")


@contextmanager
def refusing(
    interrupted: str = "finished seeds are kept, and --resume finishes the rest",
) -> Iterator[None]:
    """Turn a ValueError or a missing extra into words and exit code 2, a failure into 1, Ctrl-C into 130."""
    try:
        yield
    except (ValueError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and "pip install" not in str(error):
            raise  # a mistake of ours
        complain(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        complain(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None
    except (JobError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        complain(f"{error}; free some space; {interrupted}" if full else str(error))
        raise typer.Exit(1) from None


def complain(message: str) -> None:
    """Say what is wrong, on standard error."""
    plain_console(stderr=True).print(Text.assemble(("Error:", "bold red"), f" {message}"), soft_wrap=True)


def ratio(value: float) -> str:
    """A ratio as readers like it."""
    return "–" if np.isnan(value) else f"{value:.2f}"


def console() -> Console:
    """Standard output, wide enough for tables where it is no terminal."""
    return plain_console(width=None if sys.stdout.isatty() else 110)
