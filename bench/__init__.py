"""rrpc's benchmark: every peer and the machine's own limits, side by side in one run."""
