"""The windows of `cpu-load` as one would write them with bytewax, for a comparison."""

import json
import sys
from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.testing import run_main

bootstrap, source, target, _ = sys.argv[1:]
EPOCH = datetime.fromtimestamp(0, UTC)
Reading = tuple[datetime, float]
Window = tuple[float, int]


def keyed(message) -> tuple[str, Reading]:
    value = json.loads(message.value)
    at = datetime.fromtimestamp(value["occurred_at"] / 1000, UTC)
    return f"{value['hostname']}/{value['cpu']}", (at, value["usage"])


def message_of(item: tuple[str, tuple[int, Window]]) -> KafkaSinkMessage:
    (hostname, _, cpu), (number, (usage_max, readings)) = item[0].partition("/"), item[1]
    window = {"hostname": hostname, "cpu": cpu, "start_ms": number * 10_000}
    value = window | {"usage_max": usage_max, "readings": readings}
    return KafkaSinkMessage(None, json.dumps(value).encode())


flow = Dataflow("cpu_windows")
messages = op.input("in", flow, KafkaSource([bootstrap], [source], tail=False, batch_size=1000))
windows = win.fold_window(
    "windows",
    op.map("keyed", messages, keyed),
    win.EventClock(lambda reading: reading[0], wait_for_system_duration=timedelta(seconds=10)),
    win.TumblingWindower(length=timedelta(seconds=10), align_to=EPOCH),
    lambda: (0.0, 0),
    lambda found, reading: (max(found[0], reading[1]), found[1] + 1),
    lambda one, other: (max(one[0], other[0]), one[1] + other[1]),
)
op.output("out", op.map("message", windows.down, message_of), KafkaSink([bootstrap], target))
run_main(flow)
