"""Put `tests/` on the path, so that tests import the helpers of `tests/support` as `support`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes says something about the machine only; the seed of a failure is printed.
settings.register_profile(
    "headrace", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")

_LOG_LINES_MAX = 30
_LOGS_MAX = 12


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add to a failure what the processes that the test started wrote last."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None:
        # What has a number for a name is a segment.
        paths = [path for path in sorted(directory.rglob("*.log")) if not path.stem.isdigit()]
        for path in paths[:_LOGS_MAX]:
            lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES_MAX:]
            report.sections.append((f"end of {path.relative_to(directory)}", "\n".join(lines)))
    return report
