"""Share groups (KIP-932), pure: who is in a group, what it subscribes to, what it shall read.

Like a consumer group of KIP-848, but that a partition may be several members': what a member shall
have it has at once, and nobody waits for anybody. What the members do with the records is decided
at the partitions' leaders (`share_partition`) and kept by the share coordinator (`share_state`).
"""
