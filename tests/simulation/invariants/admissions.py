"""What a broker takes, repeats, serves and lets go, judged by its rule, stated a second time.

As in `invariants.decisions`: whoever forgets the rule is found at the first request that it would
have refused, whether or not a record is lost by it.
"""

from collections import deque
from itertools import pairwise
from typing import Any

from headrace_broker.coordinator import membership
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.producer_state import ProducerStates
from headrace_broker.protocol.batch import check_batch, iterate_batches, iterate_records
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.server.api import broker_heartbeat, list_offsets
from headrace_broker.server.fetch.fetch_sessions import FetchSessions
from headrace_broker.server.fetch.replica_sessions import ReplicaFetch, ReplicaSession
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver
from simulation.history import History
from simulation.invariants.logs import data_of
from simulation.observing import observer

_ALL = -1
_LATEST = -1
_COMMITTED_ONLY = 1
_BATCHES_KEPT = 5
_Batch = tuple[int, int, int, int]
"""Of a producer: its id, epoch, first sequence, last offset delta."""

# ---- partitions


@observer(Partition, "append")
def _append(
    history: History,
    original: Any,
    partition: Partition,
    records: Any,
    acks: int,
    *rest: Any,
    **named: Any,
) -> Any:
    """With acks=all nothing is taken where too few replicas are in sync, or by no leader."""
    leading = partition.leading
    info = original(partition, records, acks, *rest, **named)
    if leading is None:
        history.violate("appended-by-no-leader", f"{partition.topic}-{partition.index}")
    elif acks == _ALL and len(leading.isr) < leading.min_in_sync_replicas:
        history.violate(
            "appended-below-min-isr",
            f"{partition.topic}-{partition.index}: {leading.isr} are in sync, "
            f"{leading.min_in_sync_replicas} must be",
        )
    return info


@observer(Partition, "shrink_isr")
def _shrink_isr(history: History, original: Any, partition: Partition) -> None:
    """Who is behind for too long is asked out of the in-sync set (`replica.lag.time.max.ms`)."""
    original(partition)
    leading, host = partition.leading, partition.host
    if leading is None or leading.pending is not None:
        return
    end, now_ms = partition.log.log_end_offset, host.now_ms()
    for node_id, progress in leading.followers.items():
        late_ms = now_ms - progress.caught_up_ms
        if (
            node_id in leading.isr
            and progress.fetch_offset < end
            and late_ms > host.lag_time_max_ms
        ):
            history.violate(
                "laggard-stays",
                f"{partition.topic}-{partition.index}: broker {node_id} is behind for {late_ms} ms",
            )


@observer(list_offsets, "_look_up")
def _look_up(
    history: History, original: Any, partition: Partition, asked: Any, isolation: int, answer: Any
) -> None:
    """No lookup names what its asker cannot read (KIP-98), or could read before (KIP-207)."""
    original(partition, asked, isolation, answer)
    log, end = partition.log, partition.high_watermark
    if isolation == _COMMITTED_ONLY:
        end = min(end, log.last_stable_offset)
    found = answer.offset
    is_sound = (
        found == end if asked.timestamp == _LATEST else found <= max(end, log.log_start_offset)
    )
    leading = partition.leading
    if asked.timestamp == _LATEST and leading is not None:
        is_sound &= partition.high_watermark >= leading.epoch_start_offset
    if not is_sound:
        history.violate(
            "list-offsets",
            f"{partition.topic}-{partition.index} at {asked.timestamp}: {found}, readable to {end}",
        )


@observer(SharePartitionDriver, "fetch")
def _share_fetch(
    history: History, original: Any, driver: SharePartitionDriver, *arguments: Any
) -> Any:
    """No member of a share group gets what is not committed."""
    records, acquired = original(driver, *arguments)
    end = driver.partition.high_watermark
    if acquired and acquired[-1].last >= end:
        history.violate("delivered-uncommitted", f"{acquired[-1]} at a high watermark of {end}")
    return records, acquired


@observer(Partition, "when_committed")
def _when_committed(
    history: History, original: Any, partition: Partition, offset: int, acknowledge: Any
) -> None:
    """With acks=all nothing is acknowledged above the high watermark."""

    def acknowledged(error: Any) -> None:
        if error is None and partition.high_watermark < offset:
            history.violate(
                "acknowledged-too-early",
                f"{partition.topic}-{partition.index}: {offset} at {partition.high_watermark}",
            )
        acknowledge(error)

    original(partition, offset, acknowledged)


@observer(Partition, "when_durable")
def _when_durable(
    history: History, original: Any, partition: Partition, offset: int, acknowledge: Any
) -> None:
    """With acks=1 nothing is acknowledged above what is on the leader's disk (flush.messages)."""

    def acknowledged(error: Any) -> None:
        if error is None and partition.durable_end < offset:
            history.violate(
                "acknowledged-too-early",
                f"{partition.topic}-{partition.index}: {offset} at {partition.durable_end}",
            )
        acknowledge(error)

    original(partition, offset, acknowledged)


@observer(PartitionLog, "apply_retention")
def _apply_retention(history: History, original: Any, log: PartitionLog, now_ms: int) -> Any:
    """What need not be kept any more goes (retention.ms, retention.bytes, DeleteRecords).

    Nothing else does.
    """
    oldest, config = log.segments.first, log.config
    following = log.segments.after(oldest)
    goes = False
    if following is not None and following.base_offset <= log.high_watermark:
        excess = log.size_bytes - config.retention_bytes
        is_old = 0 <= config.retention_ms < now_ms - oldest.largest_timestamp
        is_too_much = config.retention_bytes >= 0 and excess >= oldest.size > 0
        is_below = following.base_offset <= log.log_start_offset
        goes = is_below or (config.deletes and (is_old or is_too_much))
    segments = {int(each.base_offset): (each.size, each.max_timestamp) for each in log.segments}
    log_start = log.log_start_offset
    try:
        freed = original(log, now_ms)
    finally:
        # Judged at once: a truncation that follows may leave less than retention.bytes.
        start, by_size = log.segments.first.base_offset, 0
        gone = [at for at in segments if at < start]
        if config.deletes and config.retention_bytes >= 0:
            # One pass may go on by time where size stops, as Kafka's does (`deleteOldSegments`):
            # an old batch that was sent late lies above younger ones. Less is left then.
            ends = [at for at in (*gone[1:], start) if _leaves_enough(segments, at, config)]
            by_size = max(ends, default=0)
            # Where the power fails amid the removals, the log begins at any of these.
            for at in (*gone[1:], start):
                place = (log.directory.name, at)
                history.retained[place] = max(min(by_size, at), history.retained.get(place, 0))
        for at, end in pairwise((*gone, start)):
            is_old = config.deletes and 0 <= config.retention_ms < now_ms - segments[at][1]
            if end > max(by_size, log_start) and not is_old:
                history.violate("retention-took", f"{log.directory.name}: the segment at {at}")
    if goes and log.segments.holds(oldest):
        history.violate("retention-left", f"{log.directory.name}: {oldest.path.name}")
    return freed


def _leaves_enough(segments: dict[int, tuple[int, int]], start: int, config: LogConfig) -> bool:
    left = sum(size for at, (size, _) in segments.items() if at >= start)
    return left >= config.retention_bytes


# ---- fetches


@observer(ReplicaFetch, "_admit")
def _admit(history: History, original: Any, fetch: ReplicaFetch, log_start: int) -> None:
    """No follower counts whose log parts from the leader's, nor a former process of one.

    KIP-101, KIP-595; KIP-903.
    """
    original(fetch, log_start)
    partition, last = fetch.partition, fetch.last_fetched_epoch
    if partition is not None and fetch.leader_epoch not in (-1, partition.leader_epoch):
        history.violate(
            "leader-epoch",
            f"{partition.topic}-{partition.index}: broker {fetch._session.node_id} fetches in "
            f"{fetch.leader_epoch}, it is {partition.leader_epoch}",
        )
    if partition is not None and fetch._problem is None:
        session = fetch._session
        broker = partition.host.image.brokers.get(session.node_id)
        if broker is None or session.broker_epoch < broker.epoch:
            history.violate(
                "former-process-counts", f"{session.node_id} of {session.broker_epoch}: {broker}"
            )
    entries = [] if partition is None else partition.log.leader_epochs.entries
    if fetch._problem is not None or last < 0 or not entries or partition is None:
        return
    known = [epoch for epoch, _ in entries]
    before = partition.log.leader_epochs.epoch_for_offset(fetch.fetch_offset - 1)
    if before > last or (last > known[0] and last not in known):
        history.violate(
            "diverging-counts",
            f"{partition.topic}-{partition.index}: broker {fetch._session.node_id} fetches from "
            f"{fetch.fetch_offset} after epoch {last}, the leader has {entries}",
        )


@observer(FetchSessions, "open")
def _open(
    history: History,
    original: Any,
    sessions: FetchSessions,
    request: Any,
    *rest: Any,
    **named: Any,
) -> Any:
    """A session's requests come in order, and it asks for what they say (KIP-227)."""
    before = sessions._sessions.get(request.session_id)
    epoch = None if before is None else before.epoch
    session, code = original(sessions, request, *rest, **named)
    if session is None or code is not ErrorCode.NONE:
        return session, code
    if request.session_epoch > 0 and (session is not before or epoch != request.session_epoch):
        history.violate("fetch-session", f"{request.session_epoch} is taken after {epoch}")
    is_replicas = isinstance(session, ReplicaSession)
    asked: Any = session.fetches if is_replicas else session.partitions
    for topic in request.topics:
        key = topic.topic_id.bytes if is_replicas else topic.topic or topic.topic_id
        for one in topic.partitions:
            if asked[key, one.partition].fetch_offset != one.fetch_offset:
                history.violate("fetch-session", f"{key}-{one.partition}: {one.fetch_offset}")
    for topic in request.forgotten_topics_data:
        key = topic.topic_id.bytes if is_replicas else topic.topic or topic.topic_id
        again = {one.partition for each in request.topics for one in each.partitions}
        for index in topic.partitions:
            if (key, index) in asked and index not in again:
                history.violate("fetch-session", f"{key}-{index} is forgotten, and kept")
    return session, code


# ---- producers


def _batch(header: Any) -> _Batch:
    return (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_offset_delta,
    )


@observer(ProducerStates, "append")
def _note(history: History, original: Any, states: ProducerStates, header: Any, *rest: Any) -> None:
    original(states, header, *rest)
    of_all = history.last_batches.setdefault(states, {})
    of_all.setdefault(header.producer_id, deque(maxlen=_BATCHES_KEPT)).append(_batch(header))


@observer(PartitionLog, "_note_producer")
def _note_place(
    history: History, original: Any, log: PartitionLog, view: Any, header: Any, *rest: Any
) -> None:
    original(log, view, header, *rest)
    batch = (header.producer_id, header.producer_epoch, header.base_sequence)
    history.written_at[log.directory.name, *batch] = rest[0]


@observer(PartitionLog, "_check_producer")
def _check_producer(
    history: History, original: Any, log: PartitionLog, view: Any, header: Any, *rest: Any
) -> Any:
    """A retry of one of the last five batches is known, and is answered with its own offset."""
    try:
        info = original(log, view, header, *rest)
    except ApiError as error:
        last = history.last_batches.get(log.producers, {}).get(header.producer_id, ())
        state = log.producers.get(header.producer_id)
        is_current = state is not None and state.epoch == header.producer_epoch
        is_refused = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_refused and is_current and header.base_sequence >= 0 and _batch(header) in last:
            history.violate("retry-refused", f"{log.directory.name}: {_batch(header)} in {last}")
        raise
    if info is None:
        return info
    for _, known in _headers(log):
        if known.base_offset == info.first_offset and _batch(known) != _batch(header):
            history.violate(
                "retry-elsewhere",
                f"{log.directory.name}: {_batch(header)} is answered with {info.first_offset}, "
                f"where {_batch(known)} is",
            )
    return info


def _headers(log: PartitionLog) -> list[tuple[memoryview, Any]]:
    """Return all batches that a log holds, as its files have them; none where they are damaged."""
    found = []
    try:
        for segment in log.segments:
            data = memoryview(data_of(segment))
            for at, _ in iterate_batches(data):
                header = check_batch(data, at)
                found.append((data[at : at + header.size_bytes], header))
    except DecodeError:
        return []
    return found


# ---- compaction


def _newest(log: PartitionLog) -> dict[bytes, int]:
    """Return the newest offset of each key; nothing is said of transactions and tombstones."""
    newest: dict[bytes, int] = {}
    for batch, header in _headers(log):
        for record in () if header.is_control else iterate_records(batch):
            if record.key is None or record.offset < log.log_start_offset:
                continue
            if record.value is None or header.is_transactional:
                newest.pop(bytes(record.key), None)
            else:
                newest[bytes(record.key)] = record.offset
    return newest


@observer(Compaction, "finish")
def _finish(history: History, original: Any, compaction: Compaction, **known: Any) -> Any:
    """Compaction leaves the newest record of each key."""
    log = compaction.log
    before = _newest(log)
    is_done = original(compaction, **known)
    after = _newest(log) if is_done else before
    lost = {key: offset for key, offset in before.items() if after.get(key) != offset}
    if lost:
        history.violate("compacted-away", f"{log.directory.name}: {lost}")
    return is_done


# ---- members, and brokers


@observer(membership, "decide_sync")
@observer(membership, "decide_heartbeat")
def _of_a_member(
    history: History, original: Any, shard: Any, config: Any, request: Any, *rest: Any
) -> Any:
    """Only a member of the generation, and not one that was replaced, keeps its place."""
    group = shard.groups.get(request.group_id)
    known = None if group is None else (group.generation, request.member_id in group.members)
    instance = request.group_instance_id
    holder = None if group is None else group.static_members.get(instance, request.member_id)
    decision = original(shard, config, request, *rest)
    if known != (request.generation_id, True) or (instance and holder != request.member_id):
        history.violate(
            "zombie-member",
            f"{request.member_id} of {request.generation_id} is served in {known}, for {holder}",
        )
    return decision


@observer(broker_heartbeat, "decide_heartbeat")
def _decide_heartbeat(history: History, original: Any, image: Any, request: Any, *rest: Any) -> Any:
    """Only the registered process is heard, and serves once it has read its registration."""
    decision = original(image, request, *rest)
    broker = image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        history.violate("former-process-beats", f"{request} for {broker}")
    elif broker.fenced and not decision.response.is_fenced:
        is_read = request.current_metadata_offset >= broker.epoch
        if request.want_fence or request.want_shut_down or not is_read:
            history.violate("unfenced-too-early", f"{request} for {broker}")
    return decision
