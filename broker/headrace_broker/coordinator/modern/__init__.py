"""What consumer groups (KIP-848) and share groups (KIP-932) have in common, pure.

They are the topics that a group sees and their hash, assignments as values, regular expressions of
topic names, and the assignors that run on the coordinator.
"""
