"""Consumer groups of the protocol of KIP-848, pure: decide returns records, replay applies them.

Unlike in a classic group, nothing of a rebalance lives in memory alone: epochs, targets and each
member's partitions are records, and a new coordinator continues where the former one stopped.
"""
