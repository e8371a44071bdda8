"""Brokers whose clocks a test sets while they run, by libfaketime (Debian's package of that name).

Only the broker's own process is deceived. It reads its offset from a file at every look at the
time. Without `is_monotonic_faked` the wall clock alone moves, as when somebody sets it or NTP
steps; with it all clocks do, as in a virtual machine that was suspended.
"""

import sysconfig
from pathlib import Path

from support.clusters import ClusterNode
from support.headrace_cluster import HeadraceCluster, HeadraceNode

LIBRARY = Path("/usr/lib") / sysconfig.get_config_var("MULTIARCH") / "faketime/libfaketime.so.1"


def can_set_clocks() -> bool:
    """Whether the library is installed."""
    return LIBRARY.exists()


class ClockedNode(HeadraceNode):
    """A broker with a clock of its own."""

    is_monotonic_faked = False

    @property
    def _file(self) -> Path:
        return self.directory / "clock"

    def set_clock(self, offset_seconds: float) -> None:
        """Let its clock be so far ahead of this machine's (or behind it) from now on."""
        incoming = self._file.with_suffix(".incoming")
        incoming.write_text(f"{offset_seconds:+}\n")
        incoming.rename(self._file)

    def command(self) -> list[str]:
        if not self._file.exists():
            self.set_clock(0)
        return [
            "env",
            f"LD_PRELOAD={LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            # Its mending of timed waits for old C libraries makes them spin with this one.
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
            f"FAKETIME_DONT_FAKE_MONOTONIC={int(not self.is_monotonic_faked)}",
            *super().command(),
        ]


class ClockedCluster(HeadraceCluster):
    """Brokers with a clock each; all are right at first."""

    def _node(self, number: int, directory: Path) -> ClusterNode:
        return ClockedNode(number, directory)


class SuspendableNode(ClockedNode):
    """A broker all of whose clocks jump."""

    is_monotonic_faked = True


class SuspendableCluster(HeadraceCluster):
    """Brokers all of whose clocks jump."""

    def _node(self, number: int, directory: Path) -> ClusterNode:
        return SuspendableNode(number, directory)
