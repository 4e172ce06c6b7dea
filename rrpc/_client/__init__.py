"""Clients: channels, stubs, blocking calls and futures."""
