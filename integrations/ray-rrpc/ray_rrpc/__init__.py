"""Ray over rrpc: arrays from actor to actor by ``register``, services as Ray actors by ``serve``."""

from .replicas import Replicas, serve
from .transport import FetchFailed, Held, RrpcTransport, register, target

__all__ = ["FetchFailed", "Held", "Replicas", "RrpcTransport", "register", "serve", "target"]
