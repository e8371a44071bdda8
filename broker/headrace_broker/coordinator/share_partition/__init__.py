"""A partition as a share group reads it (KIP-932), pure: who has which records, and how often.

The partition's leader owns one `SharePartition` for each group. It changes in place: it is on the
path of every share fetch and every acknowledgement.
"""
