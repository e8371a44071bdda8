"""The share coordinator (KIP-932), pure: what share groups have done with their partitions.

One `ShareStateShard` per partition of `__share_group_state`. `decide_*` functions look at a shard
and return records and an answer; `replay` alone changes what survives a restart.
"""
