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
    # One for each feature that a new cluster has, before all else.
    levels = [each for each in payloads if each["type"] == "FEATURE_LEVEL_RECORD"]
    assert payloads[: len(levels)] == levels
    assert {"metadata.version", "transaction.version", "group.version"} <= {
        level["data"]["name"] for level in levels
    }
    others = payloads[len(levels) :]
    kinds = [payload["type"] for payload in others]
    assert kinds == [
        "REGISTER_BROKER_RECORD",
        "BROKER_REGISTRATION_CHANGE_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "REMOVE_TOPIC_RECORD",
    ]
    # Behind the records of the epoch (leader change, KRaft version, voters) and the features.
    assert others[0]["data"]["brokerEpoch"] == 3 + len(levels)
    assert others[2]["data"]["name"] == "dumped"
    assert others[5]["data"]["value"] == "5000"
    assert "isvalid: false" not in dumped
