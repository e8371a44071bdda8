"""What consumer groups (KIP-848) and share groups (KIP-932) have in common, pure.

The topics that a group sees and the hash of them, assignments as values, regular expressions of
topic names, and the assignors that the coordinator itself runs.
"""
