"""What rrpc-serve is made of: its options and configuration file, logs, metrics, and how it is kept running."""

__all__: list[str] = []
