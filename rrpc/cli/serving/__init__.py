"""Parts of rrpc-serve: options, configuration file, logs, metrics, and supervision of its processes."""

__all__: list[str] = []
