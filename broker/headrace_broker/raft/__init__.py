"""The metadata quorum's consensus: KRaft (KIP-595, 630, 853, 996) as a pure state machine.

`node.RaftNode.step(event, now_ms)` returns effects; a driver in `server` performs them. Nothing
here does IO, reads a clock or draws a random number that was not handed in.
"""
