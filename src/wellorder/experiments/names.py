"""Policies by name: what users type, and what they probably meant."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Any

import wellorder
from wellorder import policies
from wellorder.order import Policy

SHORT = {
    "RR": "RandomReshuffling",
    "SO": "ShuffleOnce",
    "IG": "IncrementalGradient",
    "NP": "NicePermutation",
    "AP": "Arbitrary",
}
RULES = ("Deterministic", "Walk")


def policy_of(text: str) -> Policy[Any]:
    """Make the policy that ``text`` names; its hyper-parameters may follow in brackets.

    >>> policy_of("RR"), policy_of("pairgrab"), policy_of("GraB(reorders=2)")
    (RandomReshuffling(), PairGraB(rule=Deterministic()), GraB(rule=Deterministic(), reorders=2))
    >>> policy_of("PairGrab2")
    Traceback (most recent call last):
    ValueError: policy 'PairGrab2' is unknown; did you mean PairGraB? `wellorder list` shows all
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        return _make(node)  # type: ignore[no-any-return]
    except SyntaxError:
        raise ValueError(f"policy {text!r} cannot be read; write a name, or Name(parameter=value)") from None
    except TypeError as error:
        raise ValueError(f"policy {text!r}: {error}") from None


def named_policies(texts: Sequence[str]) -> dict[str, Policy[Any]]:
    """Map labels to policies; a text may carry its label in front, as ``mine=PairGraB``.

    >>> list(named_policies(["RR", "mine=GraB(reorders=2)"]))
    ['RR', 'mine']
    """
    found: dict[str, Policy[Any]] = {}
    for text in texts:
        label, equals, rule = text.partition("=")
        if not equals or not label.strip().replace("-", "").replace(" ", "").isalnum():
            label, rule = text, text
        if label.strip() in found:
            raise ValueError(f"policy {label.strip()!r} was given twice; label one of them, as other={rule}")
        found[label.strip()] = policy_of(rule)
    return found


def meant(word: str, known: Sequence[str]) -> str:
    """Say which of the known words ``word`` resembles, or list them.

    >>> meant("digit", ["digits", "quadratics"])
    'did you mean digits?'
    """
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1)
    return f"did you mean {lowered[close[0]]}?" if close else f"choose from {', '.join(known)}"


def _make(node: ast.expr) -> Any:
    """A known name, called with plain values or known names."""
    if isinstance(node, ast.Name):
        return _known(node.id)()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {str(word.arg): _value(word.value) for word in node.keywords}
        return _known(node.func.id)(*map(_value, node.args), **named)
    raise SyntaxError


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _make(node)


def _known(word: str) -> Any:
    if word in RULES:
        return getattr(wellorder, word)
    names = {name.lower(): name for name in policies.__all__}
    name = names.get(SHORT.get(word.upper(), word).lower())
    if name is None:
        raise ValueError(
            f"policy {word!r} is unknown; {meant(word, policies.__all__)} `wellorder list` shows all"
        )
    return getattr(policies, name)
