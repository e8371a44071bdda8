"""Clocks that jump under three brokers: nothing is lost or doubled, nobody is fenced for it.

Waits, sessions and elections count monotonic time, so a step of the wall clock is no event for
them; it shows in the timestamps that brokers give, and in what retention keeps, alone.
"""

import itertools
import os
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from faults.clocks import ClockedCluster, SuspendableCluster, can_set_clocks
from faults.workload import Workload, create_topic
from support.members import Member, start_member
from support.processes import wait_until
from support.streams import FAST_PRODUCER

_SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "15"))
_IS_LONG = _SECONDS > 60
_MINUTE, _HOUR = 60, 3600
_SESSION_MS = 6000
_PARTITIONS = 3
_EARLIEST = {"auto.offset.reset": "earliest"}
_NEVER = str((1 << 63) - 1)
# Far more than a loaded machine is late, and far less than the clocks jump.
_LATE_SECONDS_MAX = 10
_PATIENT = {
    "broker.session.timeout.ms": f"{_LATE_SECONDS_MAX}000",
    "controller.quorum.fetch.timeout.ms": f"{_LATE_SECONDS_MAX}000",
    # What is too old by the wall clock is looked for during every jump.
    "log.retention.check.interval.ms": "1000",
}
_ALONE_SECONDS_MAX = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180 + 3 * _SECONDS),
    pytest.mark.skipif(not can_set_clocks(), reason="setting clocks needs Debian's libfaketime"),
]


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    with ClockedCluster(tmp_path_factory.mktemp("clocks"), 3, _PATIENT) as running:
        yield running


@pytest.fixture
def cluster(shared_cluster):
    """The module's cluster, whole and with clocks that are right."""
    for node in shared_cluster.nodes:
        node.set_clock(0)
    shared_cluster.make_whole()
    return shared_cluster


def _disturbances(cluster):
    """Return how many elections and fencings the brokers logged."""
    logs = [(node.directory / "broker.log").read_text() for node in cluster.nodes]
    texts = ("became the active controller", "broker fenced")
    return sum(log.count(f'event="{text}"') for log in logs for text in texts)


def _jump(nodes, seconds):
    for node in nodes:
        node.set_clock(seconds)


_JUMPS = [
    ("leader", 2 * _HOUR),
    ("controller", -5 * _HOUR),
    # More than producer.id.expiration.ms: all writers look silent while they write.
    ("all", 50 * _HOUR),
]
if _IS_LONG:
    _JUMPS = [
        (who, sign * size)
        for who, sign, size in itertools.product(
            ("leader", "controller", "follower", "all"),
            (1, -1),
            (_MINUTE, 40 * _MINUTE, 5 * _HOUR, 50 * _HOUR),
        )
    ]


def _chosen(cluster, topic, who):
    if who == "all":
        return cluster.nodes
    if who == "controller":
        return [cluster.active_controller()]
    leader = cluster.leader(topic)
    return [leader] if who == "leader" else cluster.others(leader)[:1]


@pytest.mark.parametrize(("who", "seconds"), _JUMPS)
def test_a_jump_of_the_wall_clock_is_no_event(cluster, topic, who, seconds):
    """There and back, with writers, an assigned reader and a group that go on all the time."""
    create_topic(cluster, topic, _PARTITIONS, message_timestamp_after_max_ms=_NEVER)
    before = _disturbances(cluster)
    state = cluster.partitions(topic)
    members = []
    try:
        with Workload(cluster, topic) as workload:
            # A client counts its session by itself: a machine may be late within it.
            patient = {"session.timeout.ms": _LATE_SECONDS_MAX * 1000}
            members += [Member(cluster.bootstrap, topic, topic, **patient) for _ in range(2)]
            wait_until(lambda: all(member.owned for member in members), 40, "both members' share")
            rebalances = [member.rebalances for member in members]
            nodes = _chosen(cluster, topic, who)
            began = time.monotonic()
            for offset in (seconds, 0):
                _jump(nodes, offset)
                # Longer than any session here lasts.
                time.sleep(_LATE_SECONDS_MAX + 0.5)
                workload.progress(20)
            assert workload.longest_gap(began) < _LATE_SECONDS_MAX
            assert workload.failures == []
            assert _disturbances(cluster) == before
            assert cluster.partitions(topic) == state
            workload.assert_nothing_is_lost()
            history = workload.history()
            count = sum(map(len, history.final.values()))
            wait_until(lambda: sum(len(member.read) for member in members) >= count, 30, "the end")
            assert [member.rebalances for member in members] == rebalances
            read = members[0].read + members[1].read
            assert set(read.values()) == {1}
            assert len(read) == count
    finally:
        for member in members:
            member.stop()


def test_after_a_jump_back_dead_brokers_and_dead_members_are_still_noticed(
    cluster, topic, tmp_path
):
    """What waited for the wall clock would now wait for five hours."""
    create_topic(cluster, topic, _PARTITIONS, message_timestamp_after_max_ms=_NEVER)
    create_topic(cluster, f"{topic}-group", _PARTITIONS)
    where = (cluster.bootstrap, topic, f"{topic}-group")
    survivor = Member(*where)
    log = tmp_path / "member.log"
    killed = start_member(log, *where, session_ms=_SESSION_MS)
    try:
        wait_until(lambda: "assigned" in log.read_text(), 40, "the process's share")
        wait_until(lambda: 0 < len(survivor.owned) < _PARTITIONS, 40, "the survivor's share")
        with Workload(cluster, topic) as workload:
            _jump(cluster.nodes, -5 * _HOUR)
            workload.progress(20)
            killed.kill()
            wait_until(
                lambda: len(survivor.owned) == _PARTITIONS,
                3 * _SESSION_MS / 1000,
                "the dead member's partitions",
            )
            victim = cluster.leader(topic)
            began = time.monotonic()
            victim.kill()
            workload.progress()
            assert workload.longest_gap(began) < 5
            victim.start()
            cluster.wait_complete()
            cluster.wait_in_sync(topic)
            victim = cluster.leader(topic)
            began = time.monotonic()
            victim.pause()
            try:
                workload.progress()
                assert workload.longest_gap(began) < _ALONE_SECONDS_MAX
            finally:
                victim.resume()
            cluster.wait_in_sync(topic)
            workload.assert_nothing_is_lost()
    finally:
        killed.kill()
        survivor.stop()


def _append(cluster, topic, count):
    producer = Producer({**FAST_PRODUCER, "bootstrap.servers": cluster.bootstrap})
    errors = []
    for _ in range(count):
        producer.produce(
            topic, b"x", partition=0, on_delivery=lambda error, _: errors.append(error)
        )
        producer.flush(10)
    return errors


def _stamps(cluster, topic, count):
    """Offset and timestamp of `count` records from the start of partition 0."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "stamps", **_EARLIEST})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        messages = consumer.consume(count, 1)
        found += [(m.offset(), m.timestamp()[1]) for m in messages if m.error() is None]
    consumer.close()
    return found


def test_searches_by_time_find_the_first_record_at_or_after_it_over_jumps(cluster, topic):
    """LogAppendTime shows the leader's clock; it goes up by an hour, and back by two."""
    create_topic(
        cluster,
        topic,
        1,
        message_timestamp_type="LogAppendTime",
        # Records are a batch each, and every one of them gets an entry in the time index.
        index_interval_bytes="1",
    )
    leader = cluster.leader(topic)
    for offset in (0, _HOUR, -_HOUR, 0):
        leader.set_clock(offset)
        assert _append(cluster, topic, 5) == [None] * 5
    stamps = _stamps(cluster, topic, 20)
    assert [offset for offset, _ in stamps] == list(range(20))
    now_ms = time.time() * 1000
    middles = [round((stamps[start + 2][1] - now_ms) / 3_600_000) for start in (0, 5, 10, 15)]
    assert middles == [0, 1, -1, 0], "the jumps were real"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "search"})
    try:
        for _, wanted in stamps:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, wanted)], timeout=10)
            assert found.offset == next(offset for offset, stamp in stamps if stamp >= wanted)
    finally:
        consumer.close()


def test_a_clock_far_behind_refuses_the_future_and_takes_it_again_once_it_is_right(cluster, topic):
    """message.timestamp.after.max.ms, an hour by default as in Kafka: an error, and no loss."""
    create_topic(cluster, topic, 1)
    _jump(cluster.nodes, -5 * _HOUR)
    (error,) = _append(cluster, topic, 1)
    assert error.code() == KafkaError.INVALID_TIMESTAMP
    _jump(cluster.nodes, 0)
    assert _append(cluster, topic, 3) == [None] * 3
    assert [offset for offset, _ in _stamps(cluster, topic, 3)] == [0, 1, 2]


def test_retention_takes_a_jump_for_the_time_and_leaves_what_is_younger(tmp_path, topic):
    """Two days ahead: what may be an hour old goes, what may be a week old stays."""
    properties = {"log.retention.check.interval.ms": "500"}
    with ClockedCluster(tmp_path, 3, properties) as cluster:
        create_topic(cluster, f"{topic}-hour", 1, retention_ms=str(_HOUR * 1000))
        create_topic(cluster, f"{topic}-week", 1)
        for kind in ("hour", "week"):
            assert _append(cluster, f"{topic}-{kind}", 5) == [None] * 5
        _jump(cluster.nodes, 2 * 24 * _HOUR)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends"})

        def ends(kind):
            place = TopicPartition(f"{topic}-{kind}", 0)
            return consumer.get_watermark_offsets(place, timeout=10)

        try:
            wait_until(lambda: ends("hour") == (5, 5), 20, "retention")
            assert ends("week") == (0, 5)
        finally:
            consumer.close()
        # Back again: nothing more is deleted, and offsets go on.
        _jump(cluster.nodes, 0)
        assert _append(cluster, f"{topic}-hour", 5) == [None] * 5
        time.sleep(1.5)
        assert _stamps(cluster, f"{topic}-hour", 5)[0][0] == 5


@pytest.mark.parametrize("who", ["leader", "all"] if _IS_LONG else ["all"])
def test_brokers_that_sleep_for_an_hour_lose_nothing(tmp_path, topic, who):
    """All clocks jump, as in machines that were suspended: every deadline has passed at once."""
    with SuspendableCluster(tmp_path) as cluster:
        create_topic(cluster, topic, _PARTITIONS, message_timestamp_after_max_ms=_NEVER)
        with Workload(cluster, topic) as workload:
            began = time.monotonic()
            _jump(_chosen(cluster, topic, who), _HOUR)
            time.sleep(2)
            workload.progress()
            assert workload.longest_gap(began) < 10
            cluster.wait_complete()
            cluster.wait_in_sync(topic)
            workload.assert_nothing_is_lost()
