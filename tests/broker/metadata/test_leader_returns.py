"""Brokers that come back lead again soon, and not again and again."""

from headrace_broker.metadata.brokers.liveness import decide_fence_broker
from headrace_broker.metadata.elections import decide_preferred_leaders
from headrace_broker.metadata.leader_returns import LeaderReturns
from headrace_broker.metadata.records import PartitionChangeRecord
from headrace_broker.protocol.types import NodeId
from support.metadata import POLICY, creatable, create, decide_unfence, image_with_brokers, replayed

DELAY_MS, INTERVAL_MS = 1000, 60_000


def _returns():
    return LeaderReturns(delay_ms=DELAY_MS, interval_ms=INTERVAL_MS)


def _image():
    return create(image_with_brokers(3), creatable("t", assignments=[[1, 2], [2, 3], [3, 1]]))[0]


def _gone(image, node):
    decision = decide_fence_broker(image, NodeId(node), POLICY)
    return replayed(image, list(decision.records))


def _back(image, node, *, in_sync=True):
    epoch = image.brokers[node].epoch
    decision = decide_unfence(image, NodeId(node), epoch, POLICY)
    image = replayed(image, list(decision.records))
    if not in_sync:
        return image
    topic = image.topics["t"]
    return replayed(
        image,
        [
            PartitionChangeRecord(
                topic_id=topic.topic_id, partition_id=index, isr=list(partition.replicas)
            )
            for index, partition in topic.partitions.items()
            if node in partition.replicas
        ],
    )


def test_a_broker_that_is_back_and_in_sync_leads_again_after_the_delay():
    returns, image = _returns(), _image()
    returns.observe(image, 0)
    image = _gone(image, 1)
    returns.observe(image, 5000)
    assert not returns.due(image, 9999)
    image = _back(image, 1)
    returns.observe(image, 10_000)
    assert not returns.due(image, 10_900)
    assert returns.due(image, 11_000) == {1}
    decision = decide_preferred_leaders(image, POLICY, among={NodeId(1)})
    assert decision.response == 1
    image = replayed(image, list(decision.records))
    assert image.partition("t", 0).leader == 1
    assert not returns.due(image, 11_100)
    assert not returns.due(image, 50_000)


def test_it_is_waited_for_until_it_is_in_sync_but_not_for_ever():
    returns = _returns()
    returns.observe(_image(), 0)
    returns.observe(_gone(_image(), 1), 1000)
    image = _back(_gone(_image(), 1), 1, in_sync=False)
    returns.observe(image, 2000)
    assert returns.due(image, 30_000) == {1}
    assert not decide_preferred_leaders(image, POLICY, among={NodeId(1)}).records
    returns.due(image, 2000 + DELAY_MS + INTERVAL_MS + 1)
    assert not returns.due(image, 2000 + DELAY_MS + INTERVAL_MS + 2)


def test_each_return_within_the_interval_waits_twice_as_long():
    returns, image = _returns(), _image()
    returns.observe(image, 0)
    now_ms, waits = 0, []
    for _ in range(5):
        now_ms += 100
        image = _gone(image, 1)
        returns.observe(image, now_ms)
        now_ms += 100
        image = _back(image, 1)
        returns.observe(image, now_ms)
        waits.append(
            next(wait for wait in range(0, INTERVAL_MS, 500) if returns.due(image, now_ms + wait))
        )
    assert waits == [1000, 2000, 4000, 8000, 16_000]
    now_ms += 10 * INTERVAL_MS
    returns.observe(_gone(image, 1), now_ms)
    returns.observe(image, now_ms + 1)
    assert returns.due(image, now_ms + 1 + DELAY_MS) == {1}


def test_others_leaders_are_left_alone():
    image = _back(_gone(_back(_gone(_image(), 1), 1), 2), 2)
    assert decide_preferred_leaders(image, POLICY).response == 1
    assert decide_preferred_leaders(image, POLICY, among={NodeId(2)}).response == 1
    assert decide_preferred_leaders(image, POLICY, among={NodeId(3)}).response == 0


def test_a_new_controller_starts_over():
    returns, image = _returns(), _image()
    returns.observe(image, 0)
    image = _back(_gone(image, 1), 1)
    returns.begin()
    returns.observe(image, 500)
    assert returns.due(image, 500 + DELAY_MS) == {1}
