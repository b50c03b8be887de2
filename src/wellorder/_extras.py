"""What a part needs beyond the core: a missing package is named together with the extra that has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed_by(part: str, *extras: str) -> Iterator[None]:
    """Import what ``part`` needs inside; if a package is missing, the error names the extras to install.

    >>> with needed_by("wellorder.experiments", "experiments"):
    ...     import no_such_package
    Traceback (most recent call last):
    ModuleNotFoundError: wellorder.experiments needs no_such_package: pip install 'wellorder[experiments]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "wellorder") or "pip install" in str(error):
            raise  # a mistake of ours, or named already
        cure = f"pip install 'wellorder[{','.join(extras)}]'"
        raise ModuleNotFoundError(f"{part} needs {missing}: {cure}", name=error.name) from error
