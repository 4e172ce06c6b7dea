"""``python -m bench.peers NAME MODE``: a peer's server; prints its address, ends with its parent."""

import os
import sys
import threading
from typing import cast

from bench.peers import PEERS
from bench.peers.base import Mode


def end_with_parent() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)


def main() -> None:
    name, mode = sys.argv[1:]
    threading.Thread(target=end_with_parent, daemon=True).start()
    PEERS[name].serve(cast(Mode, mode), lambda address: print("ready", address, flush=True))
    os._exit(0)  # the interpreter's own exit would trip over the thread that reads stdin


main()
