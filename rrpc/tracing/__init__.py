"""Where the time of calls went: what ``with rrpc.trace() as trace:`` collects, and how it is shown."""

from .model import PHASES, Phase, Place, TracedCall
from .record import Recording, record
from .trace import Trace

__all__ = ["PHASES", "Phase", "Place", "Recording", "Trace", "TracedCall", "record"]
