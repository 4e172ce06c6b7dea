"""Two machines that call each other. Run by tests/vm/guest; one process at each end: Python is slow to start there.

two_hosts.py serve    listens until its machine is gone
two_hosts.py call     holds traces to what is true of two clocks, then has the server's machine vanish
"""

import sys

import lost_peer
import traced_over_hosts

TRACED = "verbs://10.7.0.1:7473"
LOST = ["verbs://10.7.0.1:7471", "verbs://10.7.1.1:7471"]

if __name__ == "__main__":
    match sys.argv[1]:
        case "serve":
            traced = traced_over_hosts.serve(TRACED)
            lost_peer.serve(LOST)
        case "call":
            traced_over_hosts.trace(TRACED)
            lost_peer.lose('echo "vm: kill the server"', LOST)
