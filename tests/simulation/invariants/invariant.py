"""What an invariant is: something that must hold at any moment, or when all is quiet."""

from simulation.cluster import Cluster, Node
from simulation.history import History

Final = dict[tuple[str, int], dict[int, bytes]]
"""What one more consumer read of each partition in the end: offset -> value."""


class Invariant:
    """Looks at the nodes from outside; a violation goes to the history.

    `STEPS_BETWEEN_CHECKS` callbacks lie between two looks at most, so that what it remembers of the
    one before is the state that the code left.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        self.cluster = cluster
        self.history = history

    def check_process(self, node: Node) -> None:
        """Check a node whose process runs, if only just."""

    def check_node(self, node: Node) -> None:
        """Check a node that serves."""

    def check(self) -> None:
        """Check what several nodes say."""

    def at_the_end(self, final: Final) -> None:
        """Check what the nodes hold when all is quiet."""
