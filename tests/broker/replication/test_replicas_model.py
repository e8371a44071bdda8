"""Random lives of one replicated partition: what was acknowledged stays, whatever happens."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace_broker.replication import leader
from support import replicas as model
from support.replicas import LAG_MS, NODES, Replicas

_STEPS = (
    ("append", 6),
    ("fetch", 12),
    ("learn", 6),
    ("answer", 4),
    ("shrink", 2),
    ("time", 3),
    ("crash", 1),
    ("restart", 2),
    ("prefer", 1),
)


def _step(cluster, name, node, rng):
    if name == "fetch":
        cluster.fetch(node, rng.randint(0, 4))
    elif name == "answer":
        cluster.answer(node, is_told=rng.random() < 0.7)
    elif name == "time":
        cluster.now_ms += rng.randint(1, LAG_MS)
    elif name == "restart":
        cluster.restart(node, rng.randint(0, 5))
    else:
        getattr(cluster, name)(node)
    cluster.check()


def _live(seed, steps=400, min_isr=2):
    """One life; returns the cluster, healed."""
    rng = random.Random(seed)
    cluster = Replicas(min_isr)
    names = [name for name, weight in _STEPS for _ in range(weight)]
    for _ in range(steps):
        _step(cluster, rng.choice(names), rng.choice(NODES), rng)
    return cluster


def _heal(cluster):
    for node in NODES:
        cluster.restart(node, 0)
    for _ in range(12):
        for node in NODES:
            cluster.learn(node)
            cluster.append(node)
            cluster.fetch(node, 10_000)
            cluster.answer(node, is_told=True)
            cluster.check()
    for node in NODES:
        cluster.fetch(node, 10_000)
        cluster.check()


class Life(RuleBasedStateMachine):
    """Hypothesis chooses the steps, and shrinks a failure to the few that matter."""

    def __init__(self):
        super().__init__()
        self.cluster = Replicas()

    @rule(
        name=st.sampled_from([name for name, _ in _STEPS]),
        node=st.sampled_from(NODES),
        seed=st.integers(0, 7),
    )
    def step(self, name, node, seed):
        _step(self.cluster, name, node, random.Random(seed))

    @invariant()
    def holds(self):
        self.cluster.check()


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestLife = Life.TestCase


def test_what_is_committed_is_never_lost_moved_or_read_too_early():
    for seed in range(120):
        try:
            _live(seed, min_isr=1 + seed % 3)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_healed_partition_has_one_log_and_takes_records_again():
    for seed in range(60):
        cluster = _live(seed)
        before = len(cluster.committed)
        _heal(cluster)
        logs = [replica.log for replica in cluster.replicas.values()]
        assert logs[0] == logs[1] == logs[2], f"seed {seed}"
        assert set(cluster.metadata.isr) == set(NODES), f"seed {seed}"
        assert len(cluster.committed) > before, f"seed {seed}"


def _finds_a_violation():
    for seed in range(300):
        try:
            _live(seed)
        except AssertionError:
            return True
    return False


def _never_diverging(*_):
    return None


def _commit_what_the_leader_has(_, leader_end):
    return leader_end


def _without_the_pending(state):
    return frozenset(state.isr)


def _join_at_once(state, node, *_):
    return node not in state.isr and state.pending is None


@pytest.mark.parametrize(
    ("target", "name", "mutant"),
    [
        (model, "diverging_epoch", _never_diverging),
        (leader.LeaderState, "committed_end", _commit_what_the_leader_has),
        (leader.LeaderState, "maximal_isr", property(_without_the_pending)),
        (leader.LeaderState, "may_join", _join_at_once),
    ],
    ids=["no divergence", "ack before the ISR", "not maximal", "join at once"],
)
def test_the_model_notices_a_planted_bug(monkeypatch, target, name, mutant):
    monkeypatch.setattr(target, name, mutant)
    assert _finds_a_violation()
