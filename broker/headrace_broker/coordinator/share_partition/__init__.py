"""A partition as a share group reads it (KIP-932), pure: which member has which records.

It also counts the deliveries. The partition's leader owns one `SharePartition` for each group. It
changes in place, because every share fetch and every acknowledgement goes through it.
"""
