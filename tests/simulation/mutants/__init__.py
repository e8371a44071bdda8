"""Bugs planted on purpose: a simulation that does not find them proves nothing.

A mutant patches the product while it is installed, and says in how many nodes, and within how many
seeds, it must be found.
"""

from simulation.mutants.admissions import ADMISSION_MUTANTS
from simulation.mutants.forgetting import FORGETTING_MUTANTS
from simulation.mutants.groups import GROUP_MUTANTS
from simulation.mutants.mutant import Mutant, find
from simulation.mutants.overlooked import OVERLOOKED_MUTANTS
from simulation.mutants.rebalances import REBALANCE_MUTANTS
from simulation.mutants.replication import REPLICATION_MUTANTS
from simulation.mutants.rules import RULES
from simulation.mutants.shares import SHARE_MUTANTS
from simulation.mutants.storage import STORAGE_MUTANTS
from simulation.mutants.transactions import TRANSACTION_MUTANTS
from simulation.mutants.unforeseen import UNFORESEEN_MUTANTS
from simulation.mutants.unplanned import UNPLANNED_MUTANTS
from simulation.mutants.untried import UNTRIED_MUTANTS

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
    *UNTRIED_MUTANTS,
    *UNPLANNED_MUTANTS,
    *FORGETTING_MUTANTS,
    *REBALANCE_MUTANTS,
)

#: Which seed found a planted bug when each was searched for through 8 to 20 seeds, from the first.
FOUND_AT = {
    "nothing is recovered after a kill": 2,
    "a leader epoch that a power cut changed is believed": 8000287,
    "an append is not fsynced": 1,
    "directories are not fsynced": 1,
    "a recreated partition inherits checkpoints": 8,
    "producer state is lost at a restart": 1,
    "retries are not recognised": 1,
    "committed offsets are not loaded": 3,
    "records are acknowledged before the in-sync set has them": 1,
    "replicas vouch for what is not on their disks": 14,
    "followers truncate by high watermark": 117,
    "a follower's log may part from the leader's": 8,
    "anybody alive becomes leader": 3,
    "votes are not remembered": 8,
    "a second vote in an epoch is granted": 1,
    "votes go to logs that lack committed records": 8,
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
    "the first marker completes a transaction": 22,
    "a marker that was not written counts as written": 3,
    "no partition asks whether a transaction is open": 3,
    "readers of what is committed read up to the high watermark": 3,
    "the last stable offset forgets markers that are not committed": 3,
    "the aborted transactions of the next segments are left out": 3,
    "a snapshot of producers forgets open transactions": 22,
    "a marker that is there already is written again": 20,
    "a transaction's offsets are readable at once": 20,
    "a transaction's offsets stay after its abort": 20,
    "a transaction ends with the cluster's version, not its client's": 6005,
    "markers are sent with the cluster's version, not their transaction's": 6000,
    "below version 2 a transaction that takes too long leaves its epoch": 6404,
    "an acknowledgement of a share group is answered before it is durable": 3005,
    "a record that is rejected is no dead letter": 7012,
    "the dead letter that does not fit any more is left out": 7012,
    "a renewed lock ends when it would have": 3022,
    "a member may acknowledge what another one holds": 3032,
    "a released record is archived": 3003,
    "the limit of deliveries is not looked at": 3036,
    "a delivery that was given back does not count": 3003,
    "delivery counts are not kept over a leader's end": 3003,
    "delivery counts are not written": 3003,
    "the start offset passes records that are in flight": 3003,
    "a new leader begins where the group begins": 3003,
    "share state is answered before it is committed": 3032,
    "a new share coordinator loads nothing": 3003,
    "a snapshot of share state forgets what was before": 3003,
    "no lock of a share group ever times out": 3032,
    "a delivery under way is counted in what is written": 3044,
    "a new leader serves above its recovered high watermark": 700016,
    "share state takes a write of a former state epoch": 5008,
    "share state begins anew with a former state epoch": 5008,
    "a former leader of a share partition is not fenced": 5026,
    "a group that asks for state again begins it anew": 5053,
    "what is done with may be undone by a write that comes late": 5008,
    "the high watermark ignores the in-sync set asked for": 3000409,
    "a fetch is believed with the broker epoch of a former process": 3000302,
    "a former process of a leader is believed": 3000302,
    "a former coordinator's marker is taken": 3000300,
    "DeleteRecords is answered before it is durable": 3000354,
    "acks=all is taken below min.insync.replicas": 3000300,
    "who is behind stays in sync": 3000301,
    "acks=1 is acknowledged before it is durable": 3000309,
    "an acknowledgement does not wait for the last record": 3000301,
    "the end that is named is the log's": 3000302,
    "a new leader names an end that went back": 3000315,
    "only a producer's newest batch is known": 3000300,
    "compaction takes the newest record away": 3000305,
    "retention knows no time": 3000306,
    "a broker's former process keeps its session": 3000302,
    "a broker serves before it has read its registration": 3000302,
    "a member of a former generation keeps its place": 3000302,
    "a new producer epoch leaves the batches of the former one": 4000005,
    "a group that leaves the classic protocol forgets who has what": 5000095,
    "a group that goes back to the classic protocol begins at generation 0": 5000002,
    "a committed in-sync set leaves the one asked for pending": 2,
    "an older image takes the place of an AlterPartition's answer": 31,
    "a leader alone knows the in-sync set that it was answered": 1,
    "an in-sync set is given up when its answer is lost": 5100000,
    "a follower keeps what its leader deleted": 7,
    "a follower keeps the epoch that it led without a record": 8,
    "followers are not told of a commit": 1,
    "who waits for exactly what is committed waits on": 1,
    "an older last epoch does not diverge": 8,
    "logs keep the settings that they were opened with": 6000000,
    "a leader keeps the minimum of in-sync replicas that it began with": 6000000,
    "a setting that comes with a change of one partition is that one's alone": 6400595,
    "an fsync that ends tells nobody": 1,
    "a truncation leaves the producers of what it cut": 3,
    "a truncation leaves the recovery point above the end": 4,
    "a truncation leaves the compacted offset above the end": 51,
    "snapshots of producers above a truncation stay": 918393,
    "a truncation leaves checkpoints above it": 14,
    "a start forgets which records were deleted": 24,
    "a new leader epoch leaves one that wrote nothing": 12,
    "a truncation keeps the epoch that begins at the end": 3,
    "a marker at the high watermark counts as committed": 22,
    "a rebalance keeps its generation": 6,
    "blocks of producer ids overlap": 1005,
    "records are deleted above the high watermark": 6000001,
    "a recreated topic goes on with the folder of the former one": 41,
    "requests behind those that lacked replicas are told of a gap": 7000313,
    "a producer that is new to a leader begins anywhere": 7000330,
    "a checkpoint leaves out a log start before the segments below are gone": 8002889,
    "an end of an older client is taken for the one that moved the epoch": 8000015,
    "a move between directories forgets producers": 8500002,
    "a move between directories does not copy what comes last": 8500001,
    "a torn tail is kept": 8500003,
    "a truncation leaves checkpoints above the log's end": 8500016,
    "an older in-sync set takes a newer one's place": 8500003,
    "segments are not fsynced": 8500001,
    "leader epochs are not fsynced with their batches": 8500001,
    "producers' snapshots are not fsynced": 8500001,
    "an fsync leaves out the segment that ends where it begins": 8500001,
    "checkpoints are renamed before they are durable": 8500001,
    "leader epochs are cut without fsync": 8500001,
    "a truncation is not fsynced": 8500001,
    "a torn tail that was cut may come back": 8500004,
    "new segments of the metadata log have names that no fsync covers": 8500000,
    "a start keeps leader epochs above a torn tail": 8500001,
    "a truncation leaves the high watermark": 8500001,
    "a follower's leader epoch is not checked": 8500001,
    "clients' leader epochs are not checked": 8500001,
    "what waits is acknowledged when leadership is lost": 8500002,
    "a follower fetches on before its fsync": 8500001,
    "a log that is longer than the leader's does not diverge": 8500000,
    "a follower keeps what lies above the end of the leader's epoch": 8500000,
    "requests sent before a leader led are told of a gap": 8500003,
    "a new leader does not note where its epoch began": 8500000,
    "an unclean restart stays in sync": 8500000,
    "an unclean restart stays eligible": 8500000,
    "whoever left the in-sync set below the minimum is not eligible": 8500000,
    "a broker that was fenced stays a leader": 8500001,
    "a leader commits what a former epoch's had replicated": 8500000,
    "commits are acknowledged before they are replicated": 8500000,
    "a coordinator serves what it read before that is committed": 8500000,
    "the epoch stays when a transaction takes too long": 8500000,
    "the epoch stays at a transaction's end": 8500000,
    "a new leader takes every marker in its log for committed": 8500011,
    "a former leader's announcement is followed": 9000000,
    "a commit of somebody who is no member is taken": 9000004,
    "AlterPartition believes a former registration": 9000000,
    "AlterPartition takes fenced replicas in": 9000406,
    "a new producer epoch may begin anywhere": 9000000,
    "a producer id goes on when its epochs are exhausted": 9000002,
    "a marker of a former epoch is taken": 9000004,
    "a fetch session keeps what is forgotten": 9000005,
    "a checkpoint is believed without its checksum": 9000001,
    "a transaction's offsets are lost with its coordinator": 9000005,
    "an answer does not wait for what was decided before it": 9000000,
    "a group's memory goes on after an append that was refused": 9000002,
    "a member of a consumer group commits with a former epoch": 9000005,
    "a follower without the leader's epoch keeps nothing below it": 9000007,
    "a partition is given before its owner gave it up": 9000005,
    "a member of a consumer group need not say what it gave up": 9000005,
    "who is left in a group that goes back need not join again": 9000001,
    "a record that was delivered too often is no dead letter": 9000007,
    "a record is archived before its dead letter is written": 9000007,
    "the start offset passes dead letters that are not written": 9000007,
    "all dead letters count as written with the first": 9000007,
    "a dead letter is done with before its leader's followers have it": 9000007,
    "an attempt that failed is not made again": 9000054,
    "share state is deleted up to its newest snapshot": 9000001,
    "the index of aborted transactions is not truncated": 9000005,
    "a truncation leaves the index of what it cut": 9000000,
    "a member of a former generation hears its assignment": 9000030,
    "a removed replica goes on in its leader epoch": 9000023,
    "a reassignment is over when one of the new replicas is in sync": 9000008,
    "a replica that was moved away goes on": 9000023,
    "a refused commit of a transaction stays pending": 9000014,
    "a static member's former process is not fenced": 9000004,
    "a stopped process vouches for logs that it never opened": 9000004,
    "a fenced producer's marker is written": 9000010,
    "an fsync vouches for what was appended after a truncation": 9500023,
    "a former producer epoch writes": 9500003,
    "compaction goes above the last stable offset": 9500000,
    "a follower says what it has before its fsync, for another partition": 9500005,
    "a transaction commits offsets whatever the generation": 9700004,
    "a dead letter is written before it is durable that nobody gets the record": 9710055,
    "tombstones and markers go while a replica is away": 9710060,
    "a process leads what its predecessor led": 9500001,
    "what marks a finished move is not fsynced": 10000000,
    "a marker goes while its transaction has records": 10000039,
    "a metadata snapshot is renamed before it is durable": 10000000,
    "a member of a consumer group stays with a former epoch": 10000002,
    "who was a member reads a consumer group's offsets": 10000002,
    "each partition that joins a transaction begins its time anew": 10000000,
    "a metadata snapshot forgets which producer ids are given away": 9500002,
    "what did not fit into a follower's answer is forgotten": 9500016,
    "a topic made again inherits its predecessor's committed offsets": 9500001,
    "votes of a former ballot count": 10000002,
    "a fetch whose log parts from the leader's counts": 10000000,
    "the quorum's leader counts itself before its fsync": 10000000,
    "a controller decides before it knows what was decided before it": 10000000,
    "a refusal does not wait for what it rests on": 10000000,
    "an in-sync set is given up when newer metadata is on its way": 10000004,
    "a follower's progress never goes back": 10000022,
    "the mark of a clean end stays": 10000000,
    "that the mark of a clean end is gone is not fsynced": 10000000,
    "a new coordinator waits for no member that died": 10000000,
    "a marker is answered before it is committed": 10000000,
    "a transaction's offsets are answered before its marker is committed": 10000015,
    "a transaction's offset takes the place of a later commit": 11000006,
    "a repeated end ends the next transaction": 11000001,
    "a compacted segment that a kill left beside its sources is removed": 11000163,
    "a late acknowledgement is answered before its record is durably done with": 11300924,
    "a replica that may be in a failed directory is created anew": 12000674,
    "a group with members is deleted": 13000007,
    "an offset that a member uses is deleted": 13000014,
    "the end of a group of the consumer protocol takes its offsets along": 13000001,
    "a committed offset stays when it is deleted beside others": 13000014,
    "an offset's own time never ends": 13000037,
    "a deleted group leaves its offsets": 13000014,
    "a deletion leaves the last offset": 13000002,
    "a classic group's end takes its offsets along": 13000001,
    "an offset expires before its time": 13000045,
    "an offset that a classic member uses expires": 13000254,
    "offsets that a group in the middle of a rebalance uses expire": 13001719,
    "a deletion leaves what an open transaction commits": 13000036,
    "a member leaves and the others go on without its share": 13000005,
    "a session ends and the others go on without the member": 13000005,
    "who never asks for its assignment is waited for": 13000003,
    "who does not join again is waited for": 13000003,
    "who does not join again stays a member": 13000006,
    "no session begins with a generation": 13000010,
    "a heartbeat does not extend the session": 13000005,
    "who has its id alone is waited for": 13000003,
    "a new member that disappears stays": 13000009,
    "an empty group's generation is not kept": 13000003,
    "an assignment is not kept": 13000003,
    "anybody assigns": 13000005,
    "a static member's new place is not kept": 13000007,
    "nobody waits for a revocation after a coordinator's end": 13000015,
    "empty segments stay behind the hole that a power cut left in a compacted log": 13000319,
    "an offset that a member of a consumer group uses expires": 13002096,
}

#: No seed finds these, or too few do: docs/simulation.md says why. The unit test that does.
KILLED_BY = {
    "a former process counts after its successor": (
        "tests/broker/replication/test_leader_state.py::"
        "test_a_former_process_of_a_follower_no_longer_counts"
    ),
    "an answer to a former leader epoch changes the in-sync set": (
        "tests/broker/server/test_replication_by_hand.py::"
        "test_an_in_sync_set_of_a_former_leader_epoch_is_not_this_ones"
    ),
    "a follower takes what a leader of a former epoch answered": (
        "tests/broker/server/test_replica_fetcher.py::"
        "test_what_a_leader_of_a_former_epoch_answered_is_not_taken"
    ),
    "a follower's log starts above its high watermark": (
        "tests/broker/server/test_replica_fetcher.py::"
        "test_a_log_does_not_begin_above_what_is_known_to_be_committed"
    ),
    "recovery takes the batch that the recovery point divides for whole": (
        "tests/broker/log/test_recovery.py::"
        "test_a_batch_that_goes_on_above_the_recovery_point_is_checked"
    ),
    "share state is deleted for a snapshot that is not committed": (
        "tests/broker/server/test_share_state_shard.py::"
        "test_nothing_is_deleted_for_a_snapshot_that_may_yet_be_lost"
    ),
    "a dead letter that is refused counts as written": (
        "tests/broker/server/test_dead_letter_writer.py::"
        "test_a_letter_that_its_leader_refuses_is_written_again"
    ),
    "a copy in another directory keeps what its log cut": (
        "tests/broker/log/test_future_log.py::test_a_truncation_is_followed"
    ),
    "a pass that a truncation overtook takes its segments' place": (
        "tests/broker/log/test_compaction.py::"
        "test_a_pass_over_what_is_no_longer_the_log_is_given_up"
    ),
    "a pass deletes tombstones though a replica has fallen out meanwhile": (
        "tests/broker/server/test_log_manager.py::"
        "test_a_tombstone_stays_for_a_replica_that_is_behind_since_the_pass_began"
    ),
    "what a failed write of share state had is not written again": (
        "tests/broker/coordinator/share/test_share_partition_edges.py::"
        "test_what_a_failed_write_leaves_is_written_in_one_batch_with_what_came_after_it"
    ),
    "who waited for an offset's fsync reports what came after it": (
        "tests/broker/server/test_replica_fetcher.py::"
        "test_an_offset_is_reported_only_when_it_is_on_disk_whoever_waited_for_an_earlier_one"
    ),
    "an fsync of the metadata log vouches for what followed a truncation": (
        "tests/broker/raft/test_log_index.py::"
        "test_an_fsync_that_began_before_a_truncation_covers_only_what_was_left"
    ),
    "a controller goes on with what it decided when it led before": (
        "tests/broker/server/test_admin_controller.py::"
        "test_a_controller_that_leads_again_knows_what_was_decided_meanwhile"
    ),
    "lost entries of aborted transactions are not made again": (
        "tests/broker/log/test_transaction_index.py::"
        "test_a_damaged_index_is_made_again_from_the_whole_log"
    ),
    "a transaction's offsets are written out of turn": (
        "tests/broker/coordinator/test_group_driver.py::"
        "test_commits_are_in_the_log_in_the_order_in_which_they_were_taken"
    ),
    "one log directory's clean end vouches for the others": (
        "tests/broker/log/test_log_directories.py::"
        "test_the_shutdown_was_clean_only_if_every_directory_says_so"
    ),
    "an older client's marker leaves what may begin the next transaction": (
        "tests/broker/server/test_transactional_produce.py::"
        "test_a_marker_takes_back_what_its_own_transaction_asked"
    ),
    "a log start that a kill brought back is without its leader epochs": (
        "tests/broker/log/test_recovery.py::"
        "test_leader_epochs_are_known_from_a_log_start_that_a_kill_brought_back"
    ),
    "a hole between two segments is left after a power cut": (
        "tests/broker/log/test_recovery.py::"
        "test_segments_after_one_that_lost_whole_batches_are_removed"
    ),
}

__all__ = ["FOUND_AT", "KILLED_BY", "MUTANTS", "Mutant", "find"]
