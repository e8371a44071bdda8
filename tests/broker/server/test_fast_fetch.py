"""The usual fetch between replicas: laid out and read in place as the general codec does it."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.protocol.codec import decoder, encode_bytes
from headrace_broker.protocol.errors import DecodeError
from headrace_broker.protocol.fast_fetch import (
    FAST_VERSION,
    Asked,
    Found,
    Request,
    read_answer,
    read_request,
    write_answer,
    write_request,
)
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPIC_IDS = st.sampled_from([UUID(int=n).bytes for n in (7, 8, 9 << 90)])
ASKED = st.builds(Asked, TOPIC_IDS, INT32, INT32, INT64, INT32, INT64, INT32)
REQUESTS = st.builds(
    Request,
    INT32,
    INT32,
    INT32,
    st.integers(1, 2**31 - 1),
    INT32.filter(lambda node: node >= 0),
    INT64,
    st.lists(ASKED, min_size=1, max_size=5),
)
RECORDS = st.sampled_from([b"", b"r", b"r" * 126, b"r" * 127, b"r" * 20_000])
FOUND = st.builds(Found, TOPIC_IDS, INT32, INT64, INT64, RECORDS)


def grouped(items):
    """By topic, in the order in which topics come first."""
    topics = {}
    for item in items:
        topics.setdefault(item.topic_id, []).append(item)
    return topics


def general_request(request, forgotten=()):
    return FetchRequest(
        replica_state=ReplicaState(
            replica_id=request.replica_id, replica_epoch=request.replica_epoch
        ),
        max_wait_ms=request.max_wait_ms,
        min_bytes=1,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            FetchTopic(
                topic_id=UUID(bytes=topic_id),
                partitions=[
                    FetchPartition(
                        partition=asked.partition,
                        current_leader_epoch=asked.leader_epoch,
                        fetch_offset=asked.fetch_offset,
                        last_fetched_epoch=asked.last_fetched_epoch,
                        log_start_offset=asked.log_start_offset,
                        partition_max_bytes=asked.max_bytes,
                    )
                    for asked in partitions
                ],
            )
            for topic_id, partitions in grouped(request.partitions).items()
        ],
        forgotten_topics_data=list(forgotten),
    )


def general_answer(session_id, found):
    topics = []
    for data in found:
        if not topics or topics[-1].topic_id.bytes != data.topic_id:
            topics.append(FetchableTopicResponse(topic_id=UUID(bytes=data.topic_id), partitions=[]))
        topics[-1].partitions.append(
            PartitionData(
                partition_index=data.partition,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
                aborted_transactions=None,
                records=data.records,
            )
        )
    return FetchResponse(session_id=session_id, responses=topics)


@given(request=REQUESTS)
def test_a_request_is_written_and_read_as_the_general_codec_does(request):
    body = write_request(request)
    assert body == encode_bytes(general_request(request), FAST_VERSION)
    back = read_request(memoryview(b"head" + body), 4)
    in_order = [asked for topic in grouped(request.partitions).values() for asked in topic]
    assert back == request._replace(partitions=in_order)


@given(session_id=INT32, found=st.lists(FOUND, max_size=5))
def test_an_answer_is_written_and_read_as_the_general_codec_does(session_id, found):
    body = b"".join(write_answer(session_id, found))
    assert body == encode_bytes(general_answer(session_id, found), FAST_VERSION)
    back = read_answer(memoryview(b"head" + body), 4)
    assert back == (session_id, found)


@given(request=REQUESTS, data=st.data())
def test_whatever_is_read_of_a_changed_request_is_what_the_general_codec_reads(request, data):
    body = bytearray(write_request(request))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(at, len(body))) :]
    back = read_request(memoryview(body), 0)
    if back is not None:
        general, end = decoder(FetchRequest, FAST_VERSION)(memoryview(body), 0)
        assert end == len(body)
        assert general == general_request(back)


@given(session_id=INT32, found=st.lists(FOUND, max_size=3), data=st.data())
def test_whatever_is_read_of_a_changed_answer_is_what_the_general_codec_reads(
    session_id, found, data
):
    body = bytearray(b"".join(write_answer(session_id, found)))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(at, len(body))) :]
    try:
        back = read_answer(memoryview(body), 0)
    except DecodeError:
        back = None
    if back is not None:
        general, end = decoder(FetchResponse, FAST_VERSION)(memoryview(body), 0)
        assert end == len(body)
        assert (general.session_id, general.error_code) == (back[0], 0)
        general_found = [
            Found(
                topic.topic_id.bytes,
                part.partition_index,
                part.high_watermark,
                part.log_start_offset,
                part.records,
            )
            for topic in general.responses
            for part in topic.partitions
        ]
        assert general_found == back[1]


ONE = Request(500, 1, 3, 4, 2, 20, [Asked(UUID(int=7).bytes, 0, 1, 10, 1, 0, 100)])


def test_what_is_not_usual_is_left_to_the_general_codec():
    first = general_request(ONE)
    first.session_epoch = 0
    forgetting = general_request(ONE, [ForgottenTopic(topic_id=UUID(int=7), partitions=[1])])
    consumer = general_request(ONE)
    consumer.replica_state = ReplicaState()
    empty = general_request(ONE)
    empty.topics = []
    for request in (first, forgetting, consumer, empty):
        assert read_request(memoryview(encode_bytes(request, FAST_VERSION)), 0) is None
    found = [Found(UUID(int=7).bytes, 0, 5, 0, b"")]
    failed, parted, led = (general_answer(3, found) for _ in range(3))
    failed.responses[0].partitions[0].error_code = 6
    parted.responses[0].partitions[0].diverging_epoch = EpochEndOffset(epoch=1, end_offset=2)
    led.responses[0].partitions[0].current_leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    lost = FetchResponse(error_code=70)
    for answer in (failed, parted, led, lost):
        assert read_answer(memoryview(encode_bytes(answer, FAST_VERSION)), 0) is None


def test_more_partitions_than_one_byte_counts_are_left_to_the_general_codec():
    asked = ONE.partitions[0]
    many = [asked._replace(partition=number) for number in range(200)]
    assert write_request(ONE._replace(partitions=many)) is None
    found = [Found(UUID(int=7).bytes, number, 5, 0, b"") for number in range(200)]
    assert write_answer(3, found) is None
