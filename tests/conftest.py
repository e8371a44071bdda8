"""Put `tests/` on the path, so that tests import the helpers of `tests/support` as `support`."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes says something about the machine only; the seed of a failure is printed.
settings.register_profile(
    "headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")
