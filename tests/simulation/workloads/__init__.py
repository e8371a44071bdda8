"""What clients do. A new workload is one file here and one line below.

Its `Workload` says in which share of the seeds it runs and starts its clients, each in a process
of its own (`Scenario.client`); they go on until `Scenario.is_over`, then finish what they began:
a healed cluster must let them. What they see goes into `History`, or into an invariant of theirs
(`simulation.invariants`).
"""

from simulation.workloads.churn import CHURN
from simulation.workloads.consumers import CONSUMERS
from simulation.workloads.damage import DAMAGE
from simulation.workloads.directories import DIRECTORIES
from simulation.workloads.ends import ENDS
from simulation.workloads.features import FEATURES
from simulation.workloads.forgetting import FORGETTING
from simulation.workloads.former_processes import FORMER_PROCESSES
from simulation.workloads.members import MEMBERS, STATIC_MEMBERS
from simulation.workloads.mixed import MIXED
from simulation.workloads.modern import MODERNS
from simulation.workloads.operators import REASSIGNMENTS, VOTERS
from simulation.workloads.producers import PRODUCERS
from simulation.workloads.settings import SETTINGS
from simulation.workloads.share import SHARE
from simulation.workloads.strangers import STRANGERS
from simulation.workloads.toss import SLOW_TOSS, TOSS
from simulation.workloads.transactions import TRANSACTIONS
from simulation.workloads.trims import TRIMS
from simulation.workloads.workload import Workload

WORKLOADS: tuple[Workload, ...] = (
    PRODUCERS,
    CONSUMERS,
    MEMBERS,
    CHURN,
    REASSIGNMENTS,
    VOTERS,
    TRIMS,
    TRANSACTIONS,
    SHARE,
    MODERNS,
    FEATURES,
    STATIC_MEMBERS,
    DIRECTORIES,
    TOSS,
    DAMAGE,
    ENDS,
    FORMER_PROCESSES,
    MIXED,
    SETTINGS,
    STRANGERS,
    SLOW_TOSS,
    FORGETTING,
)

__all__ = ["WORKLOADS", "Workload"]
