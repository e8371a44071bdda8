"""The share coordinator (KIP-932), pure: the state of share groups' partitions.

One `ShareStateShard` per partition of `__share_group_state`. `decide_*` functions read a shard and
return records and an answer; only `replay` changes state that survives a restart.
"""
