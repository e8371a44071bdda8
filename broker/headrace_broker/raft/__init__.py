"""The metadata quorum's consensus: KRaft (KIP-595, 630, 853, 996) as a pure state machine.

`node.RaftNode.step(event, now_ms)` returns effects; a driver in `server` carries them out. Nothing
here does IO or reads a clock, and random numbers are passed in.
"""
