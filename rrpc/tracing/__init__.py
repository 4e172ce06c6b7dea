"""Collection and display of traces (``with rrpc.trace() as trace:``): where calls spend their time."""

from .client_recorder import Recording, record
from .trace import Trace
from .traced_call import PHASES, Phase, Place, TracedCall

__all__ = ["PHASES", "Phase", "Place", "Recording", "Trace", "TracedCall", "record"]
