"""Consumer groups and committed offsets as pure state machines.

One `GroupShard` per partition of `__consumer_offsets`. `decide_*` functions look at a shard and a
request and return a `GroupDecision`: records to append, replies to send once those are committed,
timers to set. `replay` applies a record and is the only thing that changes what survives a restart.
Who is waiting in a rebalance is memory only, as in Kafka: after a failover members simply join
again.
"""
