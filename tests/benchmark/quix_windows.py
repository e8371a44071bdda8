"""The windows of `cpu-load` as one would write them with quixstreams, for a comparison.

A window belongs to a record's key there, and readings have none: so they are grouped, which sends
them through a topic of quixstreams' own. It ends when nothing came for a while.
"""

import sys
from datetime import timedelta
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Max

IDLE_SECONDS = 10

bootstrap, source, target, folder = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group=f"{source}-quixstreams",
    auto_offset_reset="earliest",
    state_dir=folder,
    loglevel="WARNING",
)
readings = app.dataframe(
    app.topic(
        source,
        value_deserializer="json",
        timestamp_extractor=lambda value, _headers, _at, _kind: value["occurred_at"],
    )
)


def as_window(value: dict[str, Any], key: str, _at: int, _headers: Any) -> dict[str, Any]:
    hostname, _, cpu = key.partition("/")
    return {
        "hostname": hostname,
        "cpu": cpu,
        "start_ms": value["start"],
        "usage_max": value["usage_max"],
        "readings": value["readings"],
    }


windows = (
    readings.group_by(lambda value: f"{value['hostname']}/{value['cpu']}", name="cpu")
    .tumbling_window(timedelta(seconds=10), grace_ms=timedelta(seconds=10))
    .agg(usage_max=Max("usage"), readings=Count())
    .final()
    .apply(as_window, metadata=True)
)
windows.to_topic(app.topic(target, value_serializer="json"))
app.run(timeout=IDLE_SECONDS)
