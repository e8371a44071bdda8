"""Groups of a real broker through aiokafka: members split the work, and a kill loses no offset."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from support.headrace_broker import HeadraceBroker

TOPIC = "work"
PARTITIONS = 4
RECORDS = 200


def consumer(broker: HeadraceBroker) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=broker.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        session_timeout_ms=6_000,  # how long the members that die with the broker are missed
    )


async def produce(broker: HeadraceBroker) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()
    for number in range(RECORDS):
        await producer.send(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    await producer.stop()


async def drain(members: list[AIOKafkaConsumer], count: int) -> list[int]:
    values: list[int] = []
    while len(values) < count:
        for member in members:
            for records in (await member.getmany(timeout_ms=100)).values():
                values += [int(record.value) for record in records]
    return values


def test_two_members_share_the_partitions_and_a_kill_loses_no_committed_offset(tmp_path):
    settings = {"group.initial.rebalance.delay.ms": "200"}

    async def before(broker: HeadraceBroker) -> None:
        await produce(broker)
        members = [consumer(broker), consumer(broker)]
        await asyncio.gather(*(member.start() for member in members))
        while sorted(len(member.assignment()) for member in members) != [2, 2]:
            await asyncio.gather(*(member.getmany(timeout_ms=50) for member in members))
        owned = [part for member in members for part in member.assignment()]
        assert len(set(owned)) == PARTITIONS
        for member in members:
            for part in member.assignment():
                await member.commit({part: (10 + part.partition, f"at {part.partition}")})
        broker.kill()
        await asyncio.gather(*(member.stop() for member in members), return_exceptions=True)

    async def after(broker: HeadraceBroker) -> None:
        member = consumer(broker)
        await member.start()
        committed = {
            index: await member.committed(TopicPartition(TOPIC, index))
            for index in range(PARTITIONS)
        }
        assert committed == {index: 10 + index for index in range(PARTITIONS)}
        expected = [
            number for number in range(RECORDS) if number // PARTITIONS >= 10 + number % PARTITIONS
        ]
        assert sorted(await drain([member], len(expected))) == expected
        await member.stop()

    async def main() -> None:
        broker = HeadraceBroker(tmp_path, settings)
        broker.start()
        try:
            async with asyncio.timeout(120):
                await before(broker)
                broker.restart()
                await after(broker)
        finally:
            broker.stop()

    asyncio.run(main())
