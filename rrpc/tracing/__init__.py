"""Collection and display of traces (``with rrpc.trace() as trace:``): where calls spend their time."""

from .model import PHASES, Phase, Place, TracedCall
from .record import Recording, record
from .trace import Trace

__all__ = ["PHASES", "Phase", "Place", "Recording", "Trace", "TracedCall", "record"]
