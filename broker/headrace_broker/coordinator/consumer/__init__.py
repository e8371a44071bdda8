"""Consumer groups of the protocol of KIP-848, pure: decide returns records, replay applies them.

Unlike a classic group nothing of a rebalance lives in memory alone: epochs, targets and what each
member owns are records, and a coordinator that takes over goes on where the former one stopped.
"""
