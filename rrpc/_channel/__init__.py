"""Channels: connections that are made when they are needed, and made again; which of several a call takes."""

from .channel import Channel
from .connection import Connection, Contract
from .ejection import Ejection
from .name_resolver import Resolver, register_resolver
from .subchannel import Backoff

__all__ = ["Backoff", "Channel", "Connection", "Contract", "Ejection", "Resolver", "register_resolver"]
