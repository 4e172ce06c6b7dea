"""Calls with streams of items."""

from .receiving import Pace, received
from .serving import ServedStream, ServedStreams

__all__ = ["Pace", "ServedStream", "ServedStreams", "received"]
