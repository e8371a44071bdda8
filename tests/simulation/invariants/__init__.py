"""What must hold. A new invariant is one file here and one line below.

It looks at the nodes from outside, after every few callbacks and when all is quiet; what clients
saw is judged by `simulation.history`, and by the workloads themselves.
"""

import simulation.invariants.admissions
import simulation.invariants.burials
import simulation.invariants.controllers
import simulation.invariants.coordinating
import simulation.invariants.decisions
import simulation.invariants.deletions
import simulation.invariants.elections
import simulation.invariants.following
import simulation.invariants.on_disk
import simulation.invariants.passes
import simulation.invariants.rot
import simulation.invariants.share_books  # noqa: F401 - their observers register themselves
from simulation.cluster import Cluster
from simulation.history import History
from simulation.invariants.calm import Calm
from simulation.invariants.changes import Changes
from simulation.invariants.coordinators import Coordinators
from simulation.invariants.dead_letters import DeadLetters
from simulation.invariants.disks import Disks
from simulation.invariants.durability import Durability
from simulation.invariants.epochs import Epochs
from simulation.invariants.invariant import Final, Invariant
from simulation.invariants.metadata import Metadata
from simulation.invariants.partitions import Partitions
from simulation.invariants.quorum import Quorum
from simulation.invariants.replication import Replication
from simulation.invariants.retention import Retention
from simulation.invariants.shares import Shares
from simulation.invariants.transactions import Transactions
from simulation.invariants.waiting import Waiting

INVARIANTS: tuple[type[Invariant], ...] = (
    Quorum,
    Metadata,
    Partitions,
    Replication,
    Epochs,
    Retention,
    Durability,
    Coordinators,
    Disks,
    Transactions,
    Shares,
    DeadLetters,
    Changes,
    Calm,
    Waiting,
)

__all__ = ["INVARIANTS", "Invariant", "Invariants"]


class Invariants:
    """All of them, for one run."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._invariants = [invariant(cluster, history) for invariant in INVARIANTS]

    def check(self) -> None:
        """Check what must hold at any moment."""
        for node in self._cluster.nodes:
            if node.broker is None:
                continue
            is_ready = node.is_ready
            for invariant in self._invariants:
                invariant.check_process(node)
                if is_ready:
                    invariant.check_node(node)
        for invariant in self._invariants:
            invariant.check()

    def at_the_end(self, final: Final) -> None:
        """Check what the nodes hold when all is quiet."""
        for invariant in self._invariants:
            invariant.at_the_end(final)
