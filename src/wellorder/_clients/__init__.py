"""Who takes part, and when: the bookkeeping of client ordering that needs no federated framework."""

from wellorder._clients.conductor import Conductor, Visit, under
from wellorder._clients.course import Course, close, observe, open_first
from wellorder._clients.gauge import Gauge
from wellorder._clients.journal import read, write
from wellorder._clients.roster import Roster, give_up, join, settle, turn
from wellorder._clients.tolerance import Tolerance
from wellorder._clients.updates import Signal, Sketch, UnfitError

__all__ = [
    "Conductor",
    "Course",
    "Gauge",
    "Roster",
    "Signal",
    "Sketch",
    "Tolerance",
    "UnfitError",
    "Visit",
    "close",
    "give_up",
    "join",
    "observe",
    "open_first",
    "read",
    "settle",
    "turn",
    "under",
    "write",
]
