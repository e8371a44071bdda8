"""What is in a topic, read by kafka-python."""

import json
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def read_topic(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        partitions = [
            TopicPartition(topic, index) for index in consumer.partitions_for_topic(topic) or ()
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        values = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                values += [json.loads(record.value) for record in records]
        return values
    finally:
        consumer.close()
