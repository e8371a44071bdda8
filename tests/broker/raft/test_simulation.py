"""Seeds of the simulated quorum: faults first, then everything must converge.

RAFT_SEEDS=5000 runs so many, RAFT_FIRST=17 begins there: RAFT_FIRST=17 RAFT_SEEDS=1 replays one.
"""

import os
from collections import Counter

from support.raft_faults import run_seed

FIRST = int(os.environ.get("RAFT_FIRST", "1"))
SEEDS = int(os.environ.get("RAFT_SEEDS", "50"))


def test_no_invariant_breaks_and_every_seed_converges(capsys):
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + SEEDS):
        seen.update(run_seed(seed).seen)
    with capsys.disabled():
        print(  # noqa: T201 - the seeds must be seen
            f"\nraft seeds {FIRST} to {FIRST + SEEDS - 1}: {dict(sorted(seen.items()))}"
        )
    if SEEDS >= 50:
        # A simulation that never meets the hard cases proves nothing about them.
        for effect in ("BecameLeader", "TruncateLog", "InstallSnapshot", "VotersChanged"):
            assert seen[effect] > 10, (effect, seen)


def test_the_same_seed_gives_the_same_trace():
    assert run_seed(7).trace_hash == run_seed(7).trace_hash
