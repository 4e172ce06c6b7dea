"""The services that every server has: ``rrpc.Health``, ``rrpc.Reflection`` and ``rrpc.Stats``."""
