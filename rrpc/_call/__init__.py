"""One call, without a thread, an event loop or a socket: its course, context, metadata of its outcome, and retries."""
