"""``wellorder audit``: watch a loader, and say how good its shuffle is."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from wellorder import audit
from wellorder._cli.display import console, refusing
from wellorder._notebook import picture_file
from wellorder.experiments._named_object import made_object, named_object

EXAMPLE = "train.py:loader"


def command(
    loader: Annotated[
        str,
        typer.Argument(metavar="FILE.py:NAME", help="Where the loader is."),
    ],
    epochs: Annotated[
        int | None, typer.Option(help="Epochs to watch; each reads the data once.", show_default="2")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(help="Measure after every so many examples.", show_default="the loader's batches"),
    ] = None,
    most: Annotated[int, typer.Option(help="Stop an epoch after so many examples.")] = 1_000_000,
    set_epoch: Annotated[
        bool, typer.Option("--set-epoch", help="Call set_epoch before each epoch, as training should.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw how far the order strays: a .png, .pdf or .svg.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, and nothing else.")
    ] = False,
) -> None:
    """Say how the order of a loader compares with a full shuffle of the same examples.

    FILE.py:NAME (or MODULE:NAME) is where the loader is: anything that gives batches, or a function of no
    arguments that makes one. For example: wellorder audit train.py:loader --epochs 3 --plot shuffle.png

    It is iterated as training would do it; nothing is trained, and random states are put back.

    Exit codes: 0 done, 1 writing failed, 2 bad input, 130 interrupted.
    """
    with refusing("nothing was written"):
        if plot is not None:
            picture_file("--plot", plot)
        named = named_object(loader, EXAMPLE)
        found = made_object(named, loader, "a loader", _is_loader)
        again = callable(named) and hasattr(found, "__next__")  # it makes iterators, each good for one epoch
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="audit: ")  # the result says it, too
            result = audit(
                named if again else found,
                epochs=epochs,
                every=every,
                most=most,
                before_epoch=_setter(found) if set_epoch else None,
            )
        if plot is not None:
            from wellorder.report._pictures import save_picture  # slow to import

            save_picture(cast(Any, result.plot().figure), plot)
    if as_json:
        typer.echo(result.to_json())
        return
    screen = console()
    screen.print(result.sentence, style="bold", soft_wrap=True)
    for finding in result.findings:
        screen.print(f"• {finding}", soft_wrap=True)
    if plot is not None:
        screen.print(f"\nPicture: {plot}", soft_wrap=True)


def _is_loader(found: Any) -> bool:
    return hasattr(found, "__iter__") or hasattr(found, "__getitem__")


def _setter(loader: Any) -> Any:
    """The ``set_epoch`` of a loader, its sampler or its data."""
    for owner in (loader, *(getattr(loader, n, None) for n in ("sampler", "batch_sampler", "dataset"))):
        if hasattr(owner, "set_epoch"):
            return owner.set_epoch
    raise ValueError("--set-epoch: neither the loader nor its sampler or data have set_epoch; leave it out")
