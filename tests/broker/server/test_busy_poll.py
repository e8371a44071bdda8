"""The event loop polls on while a client writes one record after another, and then sleeps."""

from headrace_broker.server.network.busy_poll import BusyPoll


class Loop:
    """Counts rounds: what is called soon runs in the next one."""

    def __init__(self):
        self.soon = []
        self.rounds = 0

    def call_soon(self, callback):
        self.soon.append(callback)

    def run(self, rounds=1 << 20):
        while self.soon and rounds:
            called, self.soon = self.soon, []
            for callback in called:
                callback()
            self.rounds += 1
            rounds -= 1


def test_a_request_is_followed_by_as_many_rounds_as_are_set():
    loop = Loop()
    BusyPoll(loop, 7).request_taken()
    loop.run()
    assert loop.rounds == 7


def test_a_request_that_comes_while_polling_prolongs_it():
    loop = Loop()
    poll = BusyPoll(loop, 7)
    for _ in range(10):
        poll.request_taken()
        loop.run(5)
    loop.run()
    assert loop.rounds == 10 * 5 + 2


def test_a_commit_prolongs_a_poll_and_begins_none():
    loop = Loop()
    poll = BusyPoll(loop, 7)
    poll.committed()
    assert loop.soon == []
    poll.request_taken()
    loop.run(5)
    poll.committed()
    loop.run()
    assert loop.rounds == 5 + 7


def test_polls_in_vain_become_twice_as_rare_each_time():
    loop = Loop()
    poll = BusyPoll(loop, 1)
    polled_at = []
    for request in range(2000):
        before = loop.rounds
        poll.request_taken()
        loop.run()
        if loop.rounds > before:
            polled_at.append(request)
    assert polled_at == [0, 2, 5, 10, 19, 36, 69, 134, 263, 520, 1033]


def test_zero_rounds_never_poll():
    loop = Loop()
    BusyPoll(loop, 0).request_taken()
    assert loop.soon == []
