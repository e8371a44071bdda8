"""Consumer groups and committed offsets as pure state machines.

One `GroupShard` per partition of `__consumer_offsets`. `decide_*` functions read a shard and a
request and return a `GroupDecision`: records to append, replies to send once those are committed,
timers to set. `replay` applies a record; nothing else changes state that survives a restart. Which
members wait in a rebalance is kept in memory only, as in Kafka: after a failover, members simply
join again.
"""
