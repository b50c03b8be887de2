"""``wellorder list``: the policies, what each needs, and the tasks to compare them on."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import typer
from rich.table import Table

from wellorder._cli.display import console
from wellorder.experiments._known_rows import KNOWN
from wellorder.experiments._tasks import TASKS
from wellorder.policies import REGISTRY


def command(as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """List the policies (name, short name, what it must be shown, one line about it) and the tasks."""
    policies = [_row(entry.name, entry.short, entry.needs.value, entry.policy) for entry in REGISTRY]
    policies += [
        _row(name, name, f"{' and '.join(kind.asks)} before training", kind) for name, kind in KNOWN.items()
    ]
    tasks = [{"task": name, "what": about} for name, (_, about) in TASKS.items()]
    if as_json:
        typer.echo(json.dumps({"policies": policies, "tasks": tasks}, indent=2, ensure_ascii=False))
        return
    screen = console()
    screen.print(_table(policies, "policy", "short", "needs", "what it does"))
    screen.print(_table(tasks, "task", "what it is"))
    screen.print("Your own: wellorder compare mytask.py:task, or --data table.csv --label y.", soft_wrap=True)


def _row(name: str, short: str, needs: str, policy: type[Any]) -> dict[str, str]:
    what = (inspect.getdoc(policy) or "").split("\n")[0].replace("``", "")
    return {"policy": name, "short": short, "needs": needs, "what": what}


def _table(rows: list[dict[str, str]], *heads: str) -> Table:
    table = Table(*heads)
    for row in rows:
        table.add_row(*row.values())
    return table
