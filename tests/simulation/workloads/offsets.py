"""A group's committed offsets, asked for and set in every version of the two APIs."""

from collections.abc import Mapping

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import offset_commit, offset_fetch
from simulation.client import FAILURES, GROUPS_FROM, Client

Key = tuple[str, int]

STABLE_FROM = 7


class GroupOffsets:
    """OffsetCommit and OffsetFetch of one group."""

    def __init__(
        self, client: Client, group: str, *, is_stable: bool = False, instance: str | None = None
    ) -> None:
        """`is_stable` asks for no offset that an open transaction may still change (KIP-447).

        `instance` is the id of a static member that commits (KIP-345).
        """
        self.group = group
        self._instance = instance
        self._client = client
        self._is_stable = is_stable
        if is_stable:
            version = client.versions[ApiKey.OFFSET_FETCH]
            client.versions[ApiKey.OFFSET_FETCH] = max(version, STABLE_FROM)

    async def commit(
        self, places: Mapping[Key, int], *, generation: int = -1, member: str = ""
    ) -> dict[Key, ErrorCode | None]:
        """Commit once; return what was said of each partition, None where nobody answered."""
        client = self._client
        messages = offset_commit
        topics: dict[str, offset_commit.OffsetCommitRequestTopic] = {}
        try:
            for (topic, partition), offset in places.items():
                if topic not in topics:
                    topics[topic] = messages.OffsetCommitRequestTopic(name=topic, partitions=[])
                    if client.speaks_ids(ApiKey.OFFSET_COMMIT):
                        topics[topic].topic_id = await client.topic_id(topic)
                topics[topic].partitions.append(
                    messages.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset
                    )
                )
            request = messages.OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=generation,
                member_id=member,
                group_instance_id=self._instance,
                topics=list(topics.values()),
            )
            caller = await client.coordinator(self.group)
            if caller is None:
                return dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            response = await client.call(caller, ApiKey.OFFSET_COMMIT, request)
        except FAILURES:
            return dict.fromkeys(places, None)
        return {
            (client.names.get(topic.topic_id, topic.name), answer.partition_index): ErrorCode(
                answer.error_code
            )
            for topic in response.topics
            for answer in topic.partitions
        }

    async def committed(self, key: Key, known: int) -> int:
        """Return a committed offset, -1 where there is none.

        `known` has been acknowledged. A coordinator that has not heard yet that another took its
        place answers from memory what was committed before, as Kafka's does. An answer below
        `known` counts where it led from before the request until after the answer, and is asked
        for again where it did not: what was lost stays lost. One that goes on with a transaction
        takes the newest coordinator's word alone.
        """
        client = self._client

        async def attempt() -> int | None:
            if client.speaks_ids(ApiKey.OFFSET_FETCH):
                await client.topic_id(key[0])
            caller = await client.coordinator(self.group)
            if caller is None:
                return None
            before = client.history.coordinator(self.group)
            response = await client.call(caller, ApiKey.OFFSET_FETCH, self._request(key))
            answer = response.groups[0] if response.groups else response
            if answer.error_code or answer.topics[0].partitions[0].error_code:
                return None
            found = int(answer.topics[0].partitions[0].committed_offset)
            led = before[1] == caller.peer and before == client.history.coordinator(self.group)
            is_certain = led if self._is_stable else found >= known or led
            return found if is_certain else None

        return int(await client.until(attempt))

    def _request(self, key: Key) -> offset_fetch.OffsetFetchRequest:
        client, (topic, partition) = self._client, key
        messages = offset_fetch
        if client.versions[ApiKey.OFFSET_FETCH] < GROUPS_FROM:
            asked = messages.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
            return messages.OffsetFetchRequest(
                group_id=self.group, topics=[asked], require_stable=self._is_stable
            )
        topics = messages.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
        if client.speaks_ids(ApiKey.OFFSET_FETCH):
            topics.topic_id = client.ids[topic]
        return messages.OffsetFetchRequest(
            groups=[messages.OffsetFetchRequestGroup(group_id=self.group, topics=[topics])],
            require_stable=self._is_stable,
        )
