"""Put `tests/` on the path, so that tests import the helpers of `tests/support` as `support`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
