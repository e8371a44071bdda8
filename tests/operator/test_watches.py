"""How long the operator is ready to wait for an API server that does not answer."""

from itertools import islice

from headrace_operator.kubernetes.api.watches import Backoffs


def test_attempts_to_watch_never_end_and_are_seconds_apart():
    backoffs = Backoffs()
    for _ in range(2):  # each failure starts over
        waits = list(islice(backoffs, 1000))
        assert len(waits) == 1000
        assert waits[0] <= 1
        assert max(waits) <= 5
