"""``wellorder bounds``: the guarantees of all methods side by side, and the paper's Tables 1 and 2."""

from __future__ import annotations

import io
import json
import math
import sys
import unicodedata
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from wellorder._saving import write_bytes
from wellorder.theory import (
    METHODS,
    advise,
    bound,
    constants,
    max_step_size,
    rate,
    rate_table,
    tuned_step_size,
)
from wellorder.theory._setting import check_epochs

Numbers = dict[str, Any]
FORMATS = {".png", ".svg", ".pdf"}
AT_START = "IG, SO, NP: as if the parameters stayed at x₀ (θ = 0); pass --theta"
SPELLED = {
    "ς": "sigma", "σ": "sigma", "φ": "phi", "γ": "gamma", "η": "eta", "θ": "theta", "δ": "delta", "ρ": "rho",
    "ν": "nu", "β": "beta", "Σ": "sum", "Δ": "Delta", "∇": "grad ", "∞": "inf", "√": "sqrt", "‖": "||",
    "≤": "<=", "≥": ">=", "≲": "<~", "·": "*", "×": "x", "⅔": "(2/3)", "⅓": "(1/3)", "²": "^2", "₀": "0",
    "–": "-", "−": "-", "…": "...", "\u0303": "~", "\u0304": "",
}  # fmt: skip
"""For terminals that know ASCII alone."""


def command(
    fl: Annotated[
        bool, typer.Option("--fl", help="Clients (Theorem 2) instead of examples (Theorem 1).")
    ] = False,
    n: Annotated[int, typer.Option(help="N, the number of examples or clients.")] = 1000,
    epochs: Annotated[int, typer.Option(help="Q, the number of epochs.")] = 100,
    dim: Annotated[int, typer.Option(help="d, the number of parameters.")] = 1,
    sigma: Annotated[float, typer.Option(help="ς, how far one unit's gradient is from the mean.")] = 1.0,
    gap: Annotated[float, typer.Option(help="F_0 = f(x_0) - inf f.")] = 1.0,
    smoothness: Annotated[float, typer.Option(help="L, in the 2-norm.")] = 1.0,
    smoothness_2inf: Annotated[
        float | None, typer.Option("--smoothness-2inf", help="L_2∞; sqrt(d)·L unless given.")
    ] = None,
    smoothness_inf: Annotated[
        float | None, typer.Option("--smoothness-inf", help="L_∞; sqrt(d)·L unless given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Failure probability of one epoch; 0.01/epochs unless given.")
    ] = None,
    theta: Annotated[
        float | None, typer.Option(help="θ, how far x moves from x_0; 0 in the rows of one permutation.")
    ] = None,
    passes: Annotated[int, typer.Option(help="Balancing passes of NP and Herding.")] = 10,
    age: Annotated[int, typer.Option(help="Herding's rows are from the last so many epochs.")] = 1,
    cohort: Annotated[
        int | None, typer.Option(help="S, clients of a round, with --fl; 2 unless given.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="K, local steps of a client, with --fl; 5 unless given.")
    ] = None,
    server_step: Annotated[
        float | None, typer.Option(help="η, amplification at the epoch's end, with --fl; 1 unless given.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw bound against epochs: a .png, .svg or .pdf.")
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Tables 1 and 2 alone, for examples and for clients.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Bound the gradient after training, for every method: how small, with which step size, how surely.

    Then the paper's Table 1 (with --fl, Table 2): the rates, their values here, and those of related work.
    The defaults are the size of the paper's Figure 1. Bounds are worst cases over all problems
    with these constants; `wellorder compare` measures.
    """
    if tables:
        if plot or as_json:
            raise typer.BadParameter("--tables prints Tables 1 and 2 alone; leave out --json and --plot")
        for number in (1, 2):
            _print_table(number, {})
        return
    setting: dict[str, Any] = {
        "sigma": sigma, "gap": gap, "smoothness": smoothness, "smoothness_2inf": smoothness_2inf,
        "smoothness_inf": smoothness_inf, "passes": passes, "age": age,
    }  # fmt: skip
    rounds = {"cohort": cohort, "local_steps": local_steps, "server_step": server_step}
    try:
        check_epochs(epochs)
        setting |= {"delta": 0.01 / epochs if delta is None else delta, **_rounds(fl, rounds)}
        advice = advise(n, dim, epochs, clients=fl, theta=theta, **setting)
        setting |= {"dim": dim, "theta": theta or 0.0}
        rows = [_row(name, epochs, n, setting) for name in METHODS if METHODS[name].federated == fl]
        if plot:
            _draw(plot, rows, epochs, n, setting, theta)
    except (ValueError, ArithmeticError) as reason:
        raise typer.BadParameter(str(reason)) from reason
    if as_json:
        related = [asdict(row) for row in rate_table(related=True) if row.source not in ("", "ours")]
        report = {"setting": {"n": n, "epochs": epochs, **setting}, "methods": rows, "advice": advice.text}
        plain = shown("ς") != "ς"
        typer.echo(json.dumps({**report, "related": related}, indent=2, ensure_ascii=plain))
        return
    _print(rows, fl, theta)
    _print_table(2 if fl else 1, {row["method"]: row for row in rows})
    typer.echo(shown(advice.text))
    if plot:
        typer.echo(f"Drawn: {plot}")


def _rounds(fl: bool, given: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in given.items() if value is not None}
    if named and not fl:
        name, value = next(iter(named.items()))
        raise ValueError(f"{name}={value}: only clients have it; add --fl")
    return {"cohort": 2, "local_steps": 5, "server_step": 1.0, **named} if fl else {}


def _row(method: str, epochs: int, n: int, setting: dict[str, Any]) -> Numbers:
    formula = next(row for row in rate_table() if row.method == method)
    row: Numbers = {
        "method": method,
        "label": METHODS[method].label,
        "relation": formula.relation,
        "rate": formula.rate,
    }
    try:
        known = constants(method, n, **setting)
    except ValueError as reason:
        return {**row, "refused": str(reason)}
    step = tuned_step_size(known, epochs)
    found = bound(known, step, epochs)
    return {
        **row,
        "p": "inf" if math.isinf(known.p) else known.p,
        "A": known.A, "B": known.B, "D": known.D, "nu": known.nu, "c1": known.c1, "c2": known.c2,
        "max_step_size": max_step_size(known), "step_size": step, "bound": found.total,
        "terms": {name: getattr(found, name) for name in ("descent", "first_epochs", "local", "order")},
        "probability": found.probability, "expected": found.expected, "rate_value": rate(known, epochs).total,
    }  # fmt: skip


def _print(rows: list[Numbers], fl: bool, theta: float | None) -> None:
    title = f"Upper bounds of min ‖∇f(x_q)‖² (Theorem {2 if fl else 1}), step sizes tuned"
    head = ("method", "bound", "descent", "order", "step size", "at most", "prob.")
    table = Table(*head, title=shown(title), box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        if "refused" in row:
            table.add_row(row["method"], *shown("––––––"))
            continue
        terms = row["terms"]
        rest = terms["order"] + terms["first_epochs"] + terms["local"]
        numbers = (row["bound"], terms["descent"], rest, row["step_size"], row["max_step_size"])
        table.add_row(row["method"], *(f"{x:.3g}" for x in numbers), _surely(row))
    if theta is None:
        table.caption = shown(f"OP, {AT_START}")
    Console().print(table)
    for row in rows:
        if "refused" in row:
            typer.echo(shown(f"– {row['method']}: {row['refused']}"))


def _surely(row: Numbers) -> str:
    return "mean" if row["expected"] else f"{row['probability']:.4g}"


def _print_table(number: int, values: dict[str, Numbers]) -> None:
    """Table 1 or 2: method, relation among permutations, upper bound after tuning, and its value here."""
    label = {1: "tab:SGD", 2: "tab:FL"}[number]
    title = f"Table {number}: upper bounds of min ‖∇f(x_q)‖² after tuning, constants and logarithms left out"
    head = ("method", "relation", "upper bound", *(["here"] if values else []))
    table, notes = Table(*head, title=shown(title), box=box.SIMPLE, padding=(0, 1, 0, 0)), dict[str, str]()
    for row in rate_table(related=True):
        if row.table != label:
            continue
        ours = {"": "", "ours": " (ours)"}
        note = row.note if row.source in ours else f"{row.source}: {row.note}"
        mark = notes.setdefault(note, f" ({len(notes) + 1})") if note else ""
        here = values.get(row.method, {}).get("rate_value") if row.source in ours else None
        cells = (row.method + ours.get(row.source, ""), row.relation, row.rate + mark)
        value = [] if not values else [f"{here:.3g}" if here is not None else "–"]
        table.add_row(*map(shown, (*cells, *value)))
    Console().print(table)
    for note, mark in notes.items():
        typer.echo(shown(f"{mark.strip()} {note}"))


def _draw(
    path: Path, rows: list[Numbers], epochs: int, n: int, setting: dict[str, Any], theta: float | None
) -> None:
    """Bound against epochs, one line a method."""
    if path.suffix not in FORMATS:
        raise ValueError(f"plot={str(path)!r}: end the name in {', '.join(sorted(FORMATS))}")
    if not path.parent.is_dir():
        raise ValueError(f"plot={str(path)!r}: no folder {str(path.parent)!r}; make it first")
    if path.is_dir():
        raise ValueError(f"plot={str(path)!r}: this is a folder; pass the name of a file in it")
    from matplotlib.figure import Figure

    counts = sorted({round(epochs ** (k / 40)) for k in range(41)})
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        if "refused" not in row and not row["method"].endswith("OP"):
            known = constants(row["method"], n, **setting)
            totals = [bound(known, tuned_step_size(known, q), q).total for q in counts]
            axes.loglog(counts, totals, label=row["method"])
    axes.set(
        xlabel="epochs Q", ylabel="bound of min ‖∇f(x_q)‖²", title=f"N = {n}, step size tuned for each Q"
    )
    if theta is None:
        figure.supxlabel(AT_START, fontsize="small")
    axes.legend()
    axes.grid(alpha=0.3)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix[1:], dpi=150)
    _write(path, image.getvalue())


def _write(path: Path, data: bytes) -> None:
    try:
        write_bytes(path, data)
    except OSError as reason:
        raise ValueError(
            f"plot={str(path)!r}: {reason.strerror or reason}; pass a file you may write"
        ) from reason


def shown(text: str) -> str:
    """A text as standard output can show it, so that tables line up there too."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "".join(letter if letter.isascii() else _spelled(letter) for letter in text)
    return text


def _spelled(letter: str) -> str:
    close = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return SPELLED.get(letter, close or "?")
