"""Bugs planted on purpose: a simulation that does not find them proves nothing.

A mutant patches the product while it is installed, and says in how many nodes, and within how many
seeds, it must be found.
"""

from simulation.mutants.mutant import Mutant, find
from simulation.mutants.replication import REPLICATION_MUTANTS
from simulation.mutants.storage import STORAGE_MUTANTS

# Planted bugs that are not found within their bound, by name, and why.
SURVIVORS = {
    "a truncation leaves checkpoints above the log's end": (
        "it takes a power cut within the milliseconds between an append after a truncation and its "
        "fsync, that tears it so that its header still reads, before the next checkpoint"
    ),
}
ALL = (*STORAGE_MUTANTS, *REPLICATION_MUTANTS)
MUTANTS = tuple(mutant for mutant in ALL if mutant.name not in SURVIVORS)

__all__ = ["ALL", "MUTANTS", "SURVIVORS", "Mutant", "find"]
