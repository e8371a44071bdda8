"""Replication of data partitions: who is in sync, what is committed, where logs part.

Pure: no IO, no clock, no randomness. State changes in place, because this is on the path of every
append and every follower's fetch.
"""
