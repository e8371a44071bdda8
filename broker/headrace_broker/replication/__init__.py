"""Replication of data partitions: in-sync sets, commits, and log divergence.

Pure: no IO, no clock, no randomness. State changes in place, because every append and every
follower's fetch goes through here.
"""
