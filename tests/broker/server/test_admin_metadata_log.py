"""Kafka's own tool reads our metadata log, record by record."""

import json
import re

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.kafka_peer import run_tool


@pytest.mark.java
def test_kafkas_dump_tool_decodes_every_metadata_record(tmp_path):
    with HeadraceBroker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        new = NewTopic("dumped", 2, 1, config={"retention.ms": "5000"})
        admin.create_topics([new])["dumped"].result(30)
        admin.delete_topics(["dumped"])["dumped"].result(30)
    log = next(broker.log_directory.glob("__cluster_metadata-0/*.log"))
    dumped = run_tool("dump-log", "--cluster-metadata-decoder", "--files", str(log))
    payloads = [json.loads(text) for text in re.findall(r"payload: (\{.*\})", dumped)]
    kinds = [payload["type"] for payload in payloads]
    assert kinds == [
        "FEATURE_LEVEL_RECORD",
        "REGISTER_BROKER_RECORD",
        "BROKER_REGISTRATION_CHANGE_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "REMOVE_TOPIC_RECORD",
    ]
    assert payloads[1]["data"]["brokerEpoch"] == 4  # behind the records of the epoch
    assert payloads[3]["data"]["name"] == "dumped"
    assert payloads[6]["data"]["value"] == "5000"
    assert "isvalid: false" not in dumped
