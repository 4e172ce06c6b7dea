"""The parts of rrpc-call: values from and to JSON, and what a server offers."""
