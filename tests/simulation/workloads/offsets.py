"""A group's committed offsets, asked for and set in every version of the two APIs."""

from collections.abc import Collection, Mapping
from typing import Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    delete_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from simulation.client import FAILURES, GROUPS_FROM, IDS_FROM, Client

Key = tuple[str, int]

STABLE_FROM = 7
KEPT_AT = 4
"""The newest version of OffsetCommit that says how long an offset is kept."""


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
        self,
        places: Mapping[Key, int],
        *,
        generation: int = -1,
        member: str = "",
        keep_ms: int | None = None,
    ) -> dict[Key, ErrorCode | None]:
        """Commit once; return what was said of each partition, None where nobody answered.

        `keep_ms` says for how long, as clients of before KIP-211 do.
        """
        client = self._client
        version = client.versions[ApiKey.OFFSET_COMMIT] if keep_ms is None else KEPT_AT
        messages = offset_commit
        topics: dict[str, offset_commit.OffsetCommitRequestTopic] = {}
        try:
            for (topic, partition), offset in places.items():
                if topic not in topics:
                    topics[topic] = messages.OffsetCommitRequestTopic(name=topic, partitions=[])
                    if version >= IDS_FROM[ApiKey.OFFSET_COMMIT]:
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
                retention_time_ms=-1 if keep_ms is None else keep_ms,
            )
            caller = await client.coordinator(self.group)
            if caller is None:
                return dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            response = await client.call(caller, ApiKey.OFFSET_COMMIT, request, version)
        except FAILURES:
            return dict.fromkeys(places, None)
        return {
            (client.names.get(topic.topic_id, topic.name), answer.partition_index): ErrorCode(
                answer.error_code
            )
            for topic in response.topics
            for answer in topic.partitions
        }

    async def ask(self, api: ApiKey, request: Any) -> tuple[Any, bool]:
        """Ask the coordinator once; return its answer, and whether it led the group all the time.

        The answer is None where none came; raises one of FAILURES where nothing was asked for.
        """
        client = self._client
        caller = await client.coordinator(self.group)
        if caller is None:
            raise OSError("no coordinator")
        before = client.history.coordinator(self.group)
        try:
            response = await client.call(caller, api, request)
        except FAILURES:
            return None, False
        return response, before[1] == caller.peer and before == client.history.coordinator(
            self.group
        )

    async def delete(self, keys: Collection[Key]) -> tuple[dict[Key, ErrorCode | None], bool]:
        """Delete offsets once (KIP-496); the result is as `ask` says, of each partition."""
        topics: dict[str, offset_delete.OffsetDeleteRequestTopic] = {}
        for topic, index in keys:
            asked = topics.setdefault(
                topic, offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=[])
            )
            place = offset_delete.OffsetDeleteRequestPartition(partition_index=index)
            asked.partitions.append(place)
        request = offset_delete.OffsetDeleteRequest(
            group_id=self.group, topics=list(topics.values())
        )
        response, led = await self.ask(ApiKey.OFFSET_DELETE, request)
        if response is None:
            return dict.fromkeys(keys, None), led
        if response.error_code:
            return dict.fromkeys(keys, ErrorCode(response.error_code)), led
        return {
            (topic.name, answer.partition_index): ErrorCode(answer.error_code)
            for topic in response.topics
            for answer in topic.partitions
        }, led

    async def delete_group(self) -> tuple[ErrorCode | None, bool]:
        """Delete the group once (KIP-229); the result is as `ask` says."""
        request = delete_groups.DeleteGroupsRequest(groups_names=[self.group])
        response, led = await self.ask(ApiKey.DELETE_GROUPS, request)
        return response and ErrorCode(response.results[0].error_code), led

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
            response, led = await self.ask(ApiKey.OFFSET_FETCH, self._request(key))
            if response is None:
                return None
            answer = response.groups[0] if response.groups else response
            if answer.error_code or answer.topics[0].partitions[0].error_code:
                return None
            found = int(answer.topics[0].partitions[0].committed_offset)
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
