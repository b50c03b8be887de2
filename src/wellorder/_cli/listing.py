"""``wellorder list``: the policies, what each needs, and what it costs."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer
from rich.table import Table

from wellorder._cli.display import console
from wellorder.policies import REGISTRY


def command(as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """List the policies: name, what it must be shown, and one line about it."""
    rows = [
        {
            "policy": entry.name,
            "short": entry.short,
            "needs": entry.needs.value,
            "what": (inspect.getdoc(entry.policy) or "").split("\n")[0],
        }
        for entry in REGISTRY
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table("policy", "short", "needs", "what it does")
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
