"""``python -m tests.faults --cases 2000 --seed 1``; see ``--help``."""

import sys
from pathlib import Path

# The modules of the tests import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from faults.runner import main

if __name__ == "__main__":
    sys.exit(main())
