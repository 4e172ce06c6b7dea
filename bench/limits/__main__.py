"""``python -m bench.limits NAME SECONDS SIZES``: measure one limit, print its results as JSON."""

import json
import sys

from bench.limits import LIMITS

name, seconds, sizes = sys.argv[1:]
print(json.dumps(LIMITS[name].measure(float(seconds), json.loads(sizes))), flush=True)
