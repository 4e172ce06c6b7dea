"""``python -m tests.faults --cases 2000 --seed 1``; see ``--help``."""

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # the modules of the tests import each other by name

from faults.runner import main

if __name__ == "__main__":
    sys.exit(main())
