"""What a client library would hide: long polls, byte limits, fetch sessions, batches' own errors.

Requests are encoded by kio, so both the broker's codec and its answers are checked.
"""

import threading
import time
import uuid
from dataclasses import replace
from datetime import timedelta

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch_v11
from kio.schema.fetch.v13 import request as fetch_v13
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.list_offsets.v7 import request as list_offsets
from kio.schema.metadata.v12 import request as metadata
from kio.schema.produce.v9 import request as produce

from support.batches import BatchFields, NewRecord, build_batch
from support.processes import wait_until
from support.wire import RawConnection


def _fetch(topic, offset=0, **changes):
    settings = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 24,
        "partition_max_bytes": 1 << 20,
        "session_id": 0,
        "session_epoch": -1,
        "leader_epoch": -1,
        **changes,
    }
    partition = fetch_v11.FetchPartition(
        partition=0,
        current_leader_epoch=settings["leader_epoch"],
        fetch_offset=offset,
        partition_max_bytes=settings["partition_max_bytes"],
    )
    topics = () if topic is None else (fetch_v11.FetchTopic(topic=topic, partitions=(partition,)),)
    return fetch_v11.FetchRequest(
        replica_id=-1,
        max_wait=timedelta(milliseconds=settings["max_wait"]),
        min_bytes=settings["min_bytes"],
        max_bytes=settings["max_bytes"],
        isolation_level=0,
        session_id=settings["session_id"],
        session_epoch=settings["session_epoch"],
        topics=topics,
        forgotten_topics_data=(),
        rack_id="",
    )


def _produce(topic, batch, acks=-1, partition=0):
    data = produce.PartitionProduceData(index=partition, records=batch)
    topics = (produce.TopicProduceData(name=topic, partition_data=(data,)),)
    return produce.ProduceRequest(acks=acks, timeout=timedelta(seconds=10), topic_data=topics)


def _partition(response):
    (topic,) = response.responses
    (partition,) = getattr(topic, "partitions", None) or topic.partition_responses
    return partition


def _append(connection, topic, *batches):
    for batch in batches:
        partition = _partition(connection.call(_produce(topic, batch)))
        assert partition.error_code is ErrorCode.none, partition
    return partition.base_offset


def test_every_advertised_version_range_contains_apache_kafkas_clients(connection):
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    response = connection.call(request)
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    for api_key, version in {
        0: 9,
        1: 13,
        2: 7,
        3: 12,
        8: 8,
        9: 8,
        10: 4,
        11: 9,
        12: 4,
        14: 5,
    }.items():
        low, high = ranges[api_key]
        assert low <= version <= high, f"API {api_key}"


def test_a_long_poll_waits_for_its_time_when_nothing_comes(connection, new_topic):
    topic = new_topic()
    began = time.monotonic()
    partition = _partition(connection.call(_fetch(topic, max_wait=600)))
    assert 0.5 < time.monotonic() - began < 3
    assert not partition.records
    assert partition.high_watermark == 0


def test_a_long_poll_ends_when_records_come(bootstrap, connection, new_topic):
    topic = new_topic()

    def write():
        time.sleep(0.3)
        with RawConnection(bootstrap) as other:
            _append(other, topic, build_batch([NewRecord(value=b"v")]))

    writer = threading.Thread(target=write)
    writer.start()
    began = time.monotonic()
    partition = _partition(connection.call(_fetch(topic, max_wait=8000)))
    writer.join()
    assert time.monotonic() - began < 4
    assert partition.records
    assert partition.high_watermark == 1


def test_a_long_poll_waits_for_its_minimum_of_bytes(connection, new_topic):
    topic = new_topic()
    _append(connection, topic, build_batch([NewRecord(value=bytes(100))]))
    began = time.monotonic()
    partition = _partition(connection.call(_fetch(topic, max_wait=600, min_bytes=50_000)))
    assert time.monotonic() - began > 0.5
    assert partition.records


def test_limits_of_bytes_hold_but_the_first_batch_always_comes(connection, new_topic):
    topic = new_topic()
    batch = build_batch([NewRecord(value=bytes(1000))])
    _append(connection, topic, *([batch] * 20))
    small = _partition(connection.call(_fetch(topic, partition_max_bytes=10)))
    assert len(small.records) >= len(batch)
    some = _partition(connection.call(_fetch(topic, partition_max_bytes=len(batch) * 5)))
    assert len(batch) * 4 < len(some.records) <= len(batch) * 5
    total = _partition(connection.call(_fetch(topic, max_bytes=len(batch) * 3)))
    assert len(total.records) <= len(batch) * 3


def test_a_fetch_in_the_middle_of_a_batch_returns_the_whole_batch(connection, new_topic):
    topic = new_topic()
    _append(connection, topic, build_batch([NewRecord(value=b"%d" % i) for i in range(10)]))
    partition = _partition(connection.call(_fetch(topic, offset=7)))
    assert int.from_bytes(bytes(partition.records)[:8], "big") == 0


def test_offsets_and_epochs_that_do_not_fit_are_named(connection, new_topic):
    topic = new_topic()
    _append(connection, topic, build_batch([NewRecord(value=b"v")]))

    def error(**changes):
        return _partition(connection.call(_fetch(topic, **changes))).error_code

    assert error(offset=2) is ErrorCode.offset_out_of_range
    assert error(offset=1) is ErrorCode.none
    assert error(leader_epoch=77) is ErrorCode.unknown_leader_epoch
    unknown = _partition(connection.call(_fetch("conformance-nowhere")))
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition


def test_a_fetch_session_sends_only_what_changed(connection, new_topic):
    """KIP-227."""
    first, second = new_topic(), new_topic()
    batch = build_batch([NewRecord(value=b"v")])
    _append(connection, first, batch)
    both = _fetch(first, session_epoch=0)
    both = replace(both, topics=both.topics + _fetch(second).topics)
    full = connection.call(both)
    assert full.error_code is ErrorCode.none
    assert full.session_id > 0
    assert {str(topic.topic) for topic in full.responses} == {first, second}

    moved = _fetch(first, offset=1, session_id=full.session_id, session_epoch=1)
    assert connection.call(moved).responses == ()
    _append(connection, second, batch)
    changed = connection.call(_fetch(None, session_id=full.session_id, session_epoch=2))
    assert [str(topic.topic) for topic in changed.responses] == [second]

    wrong = connection.call(_fetch(None, session_id=full.session_id, session_epoch=9))
    assert wrong.error_code is ErrorCode.invalid_fetch_session_epoch
    unknown = connection.call(_fetch(None, session_id=full.session_id ^ 0x5555, session_epoch=1))
    assert unknown.error_code is ErrorCode.fetch_session_id_not_found


def test_a_topic_id_that_nobody_has_is_unknown(connection, new_topic):
    topic = new_topic()
    wanted = metadata.MetadataRequestTopic(name=topic, topic_id=None)
    asked = metadata.MetadataRequest(
        topics=(wanted,),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    (described,) = connection.call(asked).topics

    def fetch(topic_id):
        partition = fetch_v13.FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=1 << 20
        )
        topics = (fetch_v13.FetchTopic(topic_id=topic_id, partitions=(partition,)),)
        request = fetch_v13.FetchRequest(
            max_wait=timedelta(0),
            min_bytes=0,
            isolation_level=0,
            topics=topics,
            forgotten_topics_data=(),
        )
        return _partition(connection.call(request)).error_code

    assert fetch(described.topic_id) is ErrorCode.none
    assert fetch(uuid.uuid4()) is ErrorCode.unknown_topic_id


def test_offsets_are_listed_raw(connection, new_topic):
    topic = new_topic()

    def offset(timestamp):
        partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = (list_offsets.ListOffsetsTopic(name=topic, partitions=(partition,)),)
        request = list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
        (answered,) = connection.call(request).topics
        (found,) = answered.partitions
        return found.offset

    assert (offset(-1), offset(-2), offset(-3)) == (0, 0, -1)
    _append(connection, topic, build_batch([NewRecord(value=b"v")], BatchFields(base_timestamp=-1)))
    assert (offset(-1), offset(-2), offset(-3)) == (1, 0, 0), "no time is a time, too"
    _append(connection, topic, build_batch([NewRecord(value=b"v")] * 3))
    assert (offset(-1), offset(-2), offset(-3)) == (4, 0, 1)


def _new_producer(connection):
    request = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout=timedelta(minutes=1),
        producer_id=-1,
        producer_epoch=-1,
    )
    for _ in range(50):
        answered = connection.call(request)
        if answered.error_code is not ErrorCode.coordinator_load_in_progress:
            break
        time.sleep(0.1)  # Apache Kafka says so until it has its first block of ids
    assert answered.error_code is ErrorCode.none
    return answered.producer_id, answered.producer_epoch


def _sequenced(producer_id, epoch, sequence, count=1):
    fields = BatchFields(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return build_batch([NewRecord(value=b"%d" % (sequence + i)) for i in range(count)], fields)


def test_a_batch_sent_again_is_answered_with_its_first_offset(connection, new_topic):
    """The last five batches of a producer are remembered, not only the last one."""
    topic = new_topic()
    producer_id, epoch = _new_producer(connection)
    batches = [_sequenced(producer_id, epoch, sequence) for sequence in range(5)]
    offsets = [_append(connection, topic, batch) for batch in batches]
    assert offsets == [0, 1, 2, 3, 4]
    assert [_append(connection, topic, batch) for batch in batches] == offsets
    assert _partition(connection.call(_fetch(topic))).high_watermark == 5


def test_a_gap_in_the_sequence_is_out_of_order(connection, new_topic):
    topic = new_topic()
    producer_id, epoch = _new_producer(connection)
    _append(connection, topic, _sequenced(producer_id, epoch, 0, count=3))
    gap = _partition(connection.call(_produce(topic, _sequenced(producer_id, epoch, 5))))
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    assert _append(connection, topic, _sequenced(producer_id, epoch, 3)) == 3


def test_an_old_producer_epoch_is_fenced(connection, new_topic):
    topic = new_topic()
    producer_id, epoch = _new_producer(connection)
    _append(connection, topic, _sequenced(producer_id, epoch + 1, 0))
    old = _partition(connection.call(_produce(topic, _sequenced(producer_id, epoch, 1))))
    assert old.error_code in (
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
    )


def test_a_sequence_wraps_from_its_maximum_to_zero(connection, new_topic):
    """A partition that knows nothing of a producer takes any first sequence from it.

    Not from the first moment on: an earlier request may have come before its leader led.
    """
    topic = new_topic()
    producer_id, epoch = _new_producer(connection)
    last_two = _produce(topic, _sequenced(producer_id, epoch, 2**31 - 2, count=2))
    wait_until(lambda: _partition(connection.call(last_two)).error_code is ErrorCode.none, 30)
    assert _append(connection, topic, _sequenced(producer_id, epoch, 0)) == 2
