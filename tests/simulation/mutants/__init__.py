"""Bugs planted on purpose: a simulation that does not find them proves nothing.

A mutant patches the product while it is installed, and says in how many nodes, and within how many
seeds, it must be found.
"""

from simulation.mutants.mutant import Mutant, find
from simulation.mutants.replication import REPLICATION_MUTANTS
from simulation.mutants.storage import STORAGE_MUTANTS

# Planted bugs that the checks do not find yet, by name: each is a check that is too weak.
SURVIVORS = frozenset(
    {"replicas vouch for what is not on their disks", "followers truncate by high watermark"}
)
ALL = (*STORAGE_MUTANTS, *REPLICATION_MUTANTS)
MUTANTS = tuple(mutant for mutant in ALL if mutant.name not in SURVIVORS)

__all__ = ["ALL", "MUTANTS", "SURVIVORS", "Mutant", "find"]
