"""Put `tests/` on the path, so that tests import the helpers of `tests/support` as `support`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Share tests out by file."""
    from support.workers import FileScheduling

    return FileScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts brokers, and let several workers begin with the longest."""
    from support.workers import long_files_first, mark_clusters

    mark_clusters(items)
    if hasattr(config, "workerinput"):
        long_files_first(items, config.option.markexpr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add to a failure what the processes that the test started wrote last."""
    report = yield
    if report.failed:
        for directory in _directories(getattr(item, "funcargs", {})):
            # What has a number for a name is a segment.
            paths = [path for path in sorted(directory.rglob("*.log")) if not path.stem.isdigit()]
            for path in paths[:_LOGS_MAX]:
                lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES_MAX:]
                report.sections.append((f"end of {path.relative_to(directory)}", "\n".join(lines)))
    return report


def _directories(fixtures: dict[str, Any]) -> list[Path]:
    """Return where a test's processes log: its own folder, and that of what a module shares."""
    found = [fixtures.get("tmp_path")]
    for name in ("broker", "cluster"):
        nodes = getattr(fixtures.get(name), "nodes", [fixtures.get(name)])
        found += [getattr(node, "directory", None) for node in nodes]
    own = found[0]
    return [
        each
        for each in found
        if isinstance(each, Path) and (each is own or own is None or own not in each.parents)
    ]
