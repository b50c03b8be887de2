"""The ``wellorder`` command: one file per subcommand, registered here."""

import typer

from wellorder._cli import bounds, compare, listing, reproduce

app = typer.Typer(
    name="wellorder",
    help="Better orders than shuffle=True: compare them, reproduce the paper, read the bounds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("compare")(compare.command)
app.add_typer(reproduce.app, name="reproduce")
app.command("list")(listing.command)
app.command("bounds")(bounds.command)


@app.callback()
def _root() -> None:
    """Keep subcommands even while there is only one."""
