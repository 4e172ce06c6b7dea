"""How hypothesis makes examples: the same ones in every run, so that a change alone decides what fails; or, in
`make fuzz`, many random ones, RRPC_FUZZ times as many as usual."""

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("RRPC_FUZZ", "0"))


def examples(usual: int) -> int:
    """How many a test looks at."""
    return usual * max(1, TIMES)


# A busy machine is no reason to fail, hence no deadline. What an earlier run found is not looked at: no database.
settings.register_profile(
    "rrpc",
    derandomize=TIMES == 0,
    database=None,
    deadline=None,
    max_examples=examples(100),
    print_blob=TIMES > 0,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rrpc")
