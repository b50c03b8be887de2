"""The ``wellorder`` command: one file per subcommand, registered here."""

from typing import Annotated

import typer

from wellorder import __version__
from wellorder._cli import audit, bounds, compare, listing, reproduce

app = typer.Typer(
    name="wellorder",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("compare", epilog=compare.EXAMPLES)(compare.command)
app.command("audit")(audit.command)
app.add_typer(reproduce.app, name="reproduce")
app.command("list")(listing.command)
app.command("bounds")(bounds.command)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wellorder {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version.")
    ] = False,
) -> None:
    """Better orders than shuffle=True: compare them, audit yours, reproduce the paper, read the bounds."""
