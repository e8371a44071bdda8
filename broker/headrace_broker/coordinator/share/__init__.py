"""Share groups (KIP-932), pure: a group's members, their subscriptions and assignments.

A share group is like a consumer group of KIP-848, except that several members may share a
partition: a member gets its assignment at once, without waiting for others. The partitions' leaders
decide what members do with the records (`share_partition`), and the share coordinator keeps that
state (`share_state`).
"""
