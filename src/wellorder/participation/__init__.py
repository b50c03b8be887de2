"""Who takes part, and when: the bookkeeping of client ordering that needs no federated framework."""

from wellorder.participation.conductor import Conductor, Visit, under
from wellorder.participation.course import Course, close, observe, open_first
from wellorder.participation.gauge import Gauge
from wellorder.participation.journal import read, write
from wellorder.participation.roster import Roster, give_up, join, settle, turn
from wellorder.participation.tolerance import Tolerance
from wellorder.participation.updates import Signal, Sketch, UnfitError

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
