"""Bugs planted on purpose: a simulation that does not find them proves nothing.

A mutant patches the product while it is installed, and says in how many nodes, and within how many
seeds, it must be found.
"""

from simulation.mutants.admissions import ADMISSION_MUTANTS
from simulation.mutants.groups import GROUP_MUTANTS
from simulation.mutants.mutant import Mutant, find
from simulation.mutants.overlooked import OVERLOOKED_MUTANTS
from simulation.mutants.replication import REPLICATION_MUTANTS
from simulation.mutants.rules import RULES
from simulation.mutants.shares import SHARE_MUTANTS
from simulation.mutants.storage import STORAGE_MUTANTS
from simulation.mutants.transactions import TRANSACTION_MUTANTS
from simulation.mutants.unforeseen import UNFORESEEN_MUTANTS

MUTANTS = (
    *STORAGE_MUTANTS,
    *REPLICATION_MUTANTS,
    *RULES,
    *TRANSACTION_MUTANTS,
    *SHARE_MUTANTS,
    *GROUP_MUTANTS,
    *UNFORESEEN_MUTANTS,
    *ADMISSION_MUTANTS,
    *OVERLOOKED_MUTANTS,
)

#: Which seed found a planted bug when each was searched for through 8 to 20 seeds, from the first.
FOUND_AT = {
    "nothing is recovered after a kill": 2,
    "an append is not fsynced": 1,
    "directories are not fsynced": 1,
    "a recreated partition inherits checkpoints": 8,
    "producer state is lost at a restart": 1,
    "retries are not recognised": 1,
    "committed offsets are not loaded": 3,
    "records are acknowledged before the in-sync set has them": 1,
    "replicas vouch for what is not on their disks": 14,
    "followers truncate by high watermark": 4,
    "a follower's log may part from the leader's": 8,
    "anybody alive becomes leader": 3,
    "votes are not remembered": 8,
    "a second vote in an epoch is granted": 1,
    "votes go to logs that lack committed records": 5,
    "metadata is committed without a majority": 1,
    "a snapshot is published before the node has caught up": 8,
    "strays keep their names": 15,
    "metadata is acknowledged before fsync": 8,
    "records are committed below min.insync.replicas": 13,
    "a follower joins without what the leader's epoch began with": 10,
    "a follower joins without what is committed": 2,
    "a follower's high watermark goes beyond its log": 6,
    "AlterPartition is decided without looking at epochs": 3,
    "a voter fetches on before its fsync": 1,
    "votes are not fsynced": 2,
    "a commit of a former generation is taken": 35,
    "retention deletes above the high watermark": 1,
    "retention keeps too little": 1,
    "a truncation leaves leader epochs above it": 3,
    "markers are sent before the decision is committed": 3,
    "a coordinator that takes over sends no markers": 3,
    "a fenced epoch ends a transaction": 4,
    "a fenced epoch adds partitions": 3,
    "no transaction ever takes too long": 4,
    "expiry forgets open transactions": 4,
    "the first marker completes a transaction": 20,
    "a marker that was not written counts as written": 3,
    "no partition asks whether a transaction is open": 3,
    "readers of what is committed read up to the high watermark": 3,
    "the last stable offset forgets markers that are not committed": 3,
    "the aborted transactions of the next segments are left out": 3,
    "a snapshot of producers forgets open transactions": 11,
    "a marker that is there already is written again": 11,
    "a transaction's offsets are readable at once": 11,
    "a transaction's offsets stay after its abort": 11,
    "a transaction ends with the cluster's version, not its client's": 6005,
    "markers are sent with the cluster's version, not their transaction's": 6000,
    "an end of an older client is taken for the one that moved the epoch": 6032,
    "below version 2 a transaction that takes too long leaves its epoch": 6027,
    "an acknowledgement of a share group is answered before it is durable": 3003,
    "a record that is rejected is no dead letter": 7012,
    "the dead letter that does not fit any more is left out": 7012,
    "a renewed lock ends when it would have": 3003,
    "a member may acknowledge what another one holds": 3032,
    "a released record is archived": 3003,
    "the limit of deliveries is not looked at": 3036,
    "a delivery that was given back does not count": 3003,
    "delivery counts are not kept over a leader's end": 3003,
    "delivery counts are not written": 3003,
    "the start offset passes records that are in flight": 3003,
    "a new leader begins where the group begins": 3003,
    "share state is answered before it is committed": 3003,
    "a new share coordinator loads nothing": 3003,
    "a snapshot of share state forgets what was before": 3003,
    "no lock of a share group ever times out": 3005,
    "a delivery under way is counted in what is written": 3040,
    "a new leader serves above its recovered high watermark": 700014,
    "share state takes a write of a former state epoch": 5008,
    "share state begins anew with a former state epoch": 5008,
    "a former leader of a share partition is not fenced": 5012,
    "a group that asks for state again begins it anew": 5012,
    "what is done with may be undone by a write that comes late": 5008,
    "the high watermark ignores the in-sync set asked for": 3000409,
    "a fetch is believed with the broker epoch of a former process": 3000301,
    "a former process of a leader is believed": 3000302,
    "a former coordinator's marker is taken": 3000300,
    "DeleteRecords is answered before it is durable": 3000354,
    "acks=all is taken below min.insync.replicas": 3000300,
    "who is behind stays in sync": 3000301,
    "acks=1 is acknowledged before it is durable": 3000309,
    "an acknowledgement does not wait for the last record": 3000301,
    "the end that is named is the log's": 3000302,
    "a new leader names an end that went back": 3000302,
    "only a producer's newest batch is known": 3000300,
    "compaction takes the newest record away": 3000305,
    "retention knows no time": 3000306,
    "a broker's former process keeps its session": 3000302,
    "a broker serves before it has read its registration": 3000302,
    "a member of a former generation keeps its place": 3000302,
    "a new producer epoch leaves the batches of the former one": 4000005,
    "a group that leaves the classic protocol forgets who has what": 5000002,
    "a group that goes back to the classic protocol begins at generation 0": 5000002,
}

__all__ = ["FOUND_AT", "MUTANTS", "Mutant", "find"]
