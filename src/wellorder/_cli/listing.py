"""``wellorder list``: the policies, what each needs, and what it costs."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from wellorder import policies


def command(as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """List the policies: name, what it must be shown, and one line about it."""
    rows = []
    for name in policies.__all__:
        policy = getattr(policies, name)
        rows.append(
            {
                "policy": name,
                "needs": policy.needs.value,
                "what": (inspect.getdoc(policy) or "").split("\n")[0],
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table("policy", "needs", "what it does")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
