"""Faults at each step of the protocol, between real processes. See docs/reliability.md."""
