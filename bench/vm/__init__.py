"""Ours beside perftest, in a virtual machine; tools/vm/bench.sh runs it."""
