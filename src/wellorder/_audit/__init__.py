"""How good the order of a loader is: watch it, compare it with a full shuffle, say so in a sentence."""

from wellorder._audit.audit import audit
from wellorder._audit.result import Audit

__all__ = ["Audit", "audit"]
