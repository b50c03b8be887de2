"""Policies by name: what users type, and what they probably meant."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import wellorder
from wellorder._order import Policy
from wellorder.experiments._known_rows import KNOWN
from wellorder.policies import REGISTRY, entry_named

AP = "AP([[0, 1, 2], [2, 1, 0]])"
RULES = ("Deterministic", "Walk")
MOST_SEEDS = 10_000
"""More seeds than this are a slip of the keyboard."""


def policy_of(text: str) -> Policy[Any]:
    """Make the policy that ``text`` names; its hyper-parameters may follow in brackets.

    >>> policy_of("RR"), policy_of("pairgrab"), policy_of("GraB(reorders=2)")
    (RandomReshuffling(), PairGraB(rule=Deterministic(), reorders=1), GraB(rule=Deterministic(), reorders=2))
    >>> policy_of("PairGrab2")
    Traceback (most recent call last):
    ValueError: policy 'PairGrab2' is unknown; did you mean PairGraB? `wellorder list` shows all
    """
    try:
        node = ast.parse(text.strip().replace("\0", "?"), mode="eval").body
        made = _make(node)
    except (SyntaxError, RecursionError, MemoryError):  # the parser's answers to deep nesting
        shown = text if len(text) < 100 else f"{text[:60]} …"
        raise ValueError(f"policy {shown!r} cannot be read; write a name, or Name(parameter=value)") from None
    except TypeError as error:
        cure = f"; write its orders, one for each epoch, as {AP}" if "'orders'" in str(error) else ""
        raise ValueError(f"policy {text!r}: {error}{cure}") from None
    if type(made).__name__ in RULES:
        raise ValueError(
            f"policy {text!r} is a sign rule; write a policy that takes it, as GraB(rule={text})"
        )
    policy: Policy[Any] = made
    return policy


def named_policies(texts: Sequence[str]) -> dict[str, Policy[Any]]:
    """Map labels to policies; a text may carry its label in front, as ``mine=PairGraB``.

    >>> list(named_policies(["RR", "mine=GraB(reorders=2)"]))
    ['RR', 'mine']
    """
    found: dict[str, Policy[Any]] = {}
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"policies={texts!r}: pass a list of names, such as ['RR', 'GraB']")
    for text in texts:
        label, equals, rule = text.partition("=")
        if not equals or not label.strip() or "(" in label:
            label, rule = text, text
        if label.strip() in found:
            raise ValueError(f"policy {label.strip()!r} was given twice; label one of them, as other={rule}")
        found[label.strip()] = policy_of(rule)
    return found


def check_policies(named: Mapping[str, Policy[Any]], n: int) -> None:
    """Refuse, by label, a policy that cannot order ``n`` units.

    >>> check_policies(named_policies(["Greedy(max_units=5)"]), 10)
    Traceback (most recent call last):
    ValueError: policy Greedy(max_units=5): n=10: ...
    """
    for label, policy in named.items():
        try:
            policy.init(n)
        except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"policy {label}: {reason}") from error


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
        named: dict[str, Any] = {}
        for word in node.keywords:
            if word.arg is None:
                raise SyntaxError
            if word.arg in named:
                raise ValueError(f"policy {ast.unparse(node)!r}: {word.arg} was given twice; leave one out")
            named[word.arg] = _value(word.value)
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
    if word.lower() in KNOWN:
        return KNOWN[word.lower()]
    entry = entry_named(word)
    if entry is None:
        known = [*(entry.name for entry in REGISTRY), *KNOWN]
        raise ValueError(f"policy {word!r} is unknown; {meant(word, known)} `wellorder list` shows all")
    return entry.policy
