"""Servers: what takes calls, finds their handlers, runs them and answers."""
