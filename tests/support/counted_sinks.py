"""Where `counted_job` writes to, and what somebody else's reader finds there."""

import json
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from headrace_jobs.sinks.files_generations import open_log
from headrace_jobs.sinks.files_plain import committed_files

JOB = "counted"


class CountedSink:
    """A sink of one kind, with a name of its own. `server` is what can be killed and started."""

    #: Whether a batch is visible whole or not at all.
    is_atomic = True
    server = None

    def __init__(self, kind: str, table: str, dsn: str = "") -> None:
        self.kind, self.table, self._dsn = kind, table, dsn

    @property
    def environment(self) -> dict[str, str]:
        return {"COUNTED_KIND": self.kind, "COUNTED_TABLE": self.table, "COUNTED_DSN": self._dsn}

    def rows(self) -> Counter[tuple[int, int]]:
        """How often the sink has each position."""
        raise NotImplementedError

    def stored(self, topic: str) -> dict[int, int]:
        """The offsets that the sink has stored, by partition."""
        raise NotImplementedError


class CountedTable(CountedSink):
    """A table of PostgreSQL."""

    def __init__(self, server) -> None:
        super().__init__("postgres", f"counted_{uuid.uuid4().hex[:8]}", server.dsn)
        self.server = server

    def rows(self):
        if not self.server.query(f"SELECT to_regclass('{self.table}')")[0][0]:
            return Counter()
        found = self.server.query(f"SELECT at, position FROM {self.table}")  # noqa: S608 - ours
        return Counter(tuple(row) for row in found)

    def stored(self, topic):
        found = self.server.query(
            f"SELECT offsets::text FROM headrace_progress WHERE output = '{self.table}'"  # noqa: S608
        )
        offsets = json.loads(found[0][0]) if found else {}
        return {int(at): offset for at, offset in offsets.get(topic, {}).items()}


class CountedFiles(CountedSink):
    """A table of files, `delta` or `parquet`."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind, str(folder))

    def rows(self):
        if self.kind == "delta":
            if not DeltaTable.is_deltatable(self.table):
                return Counter()
            tables = [DeltaTable(self.table).to_pyarrow_table()]
        else:
            tables = [pq.read_table(path) for path in committed_files(self.table)]
        return Counter(
            row
            for table in tables
            for row in zip(*(table[name].to_pylist() for name in ("at", "position")), strict=True)
        )

    def stored(self, topic):
        held = open_log(self.kind, Path(self.table), JOB, 1).load()
        offsets = {} if held is None else held.progress.offsets
        return {at.partition: offset for at, offset in offsets.items() if at.topic == topic}


class CountedIndex(CountedSink):
    """An index of OpenSearch, in which each batch replaces the documents of the one before."""

    is_atomic = False

    def __init__(self, server) -> None:
        super().__init__("search", f"counted-{uuid.uuid4().hex[:8]}", server.url)
        self.server = server

    def rows(self):
        query = f"{self.table}/_search?size=1000&ignore_unavailable=true&allow_no_indices=true"
        self._get(f"{self.table}/_refresh?ignore_unavailable=true", "POST")
        hits = self._get(query)["hits"]["hits"]
        return Counter((hit["_source"]["at"], hit["_source"]["position"]) for hit in hits)

    def stored(self, topic):
        marker = urllib.parse.quote(f"{JOB}/1/{self.table}", safe="")
        found = self._get(f"headrace-progress/_doc/{marker}").get("_source")
        offsets = json.loads(found["offsets"]) if found else {}
        places = {tuple(place.rsplit("/", 1)): end for place, end in offsets.items()}
        return {int(at): end for (name, at), end in places.items() if name == topic}

    def _get(self, path, method="GET"):
        request = urllib.request.Request(f"{self._dsn}/{path}", method=method)  # noqa: S310 - ours
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 404:
                    raise
            return {"hits": {"hits": []}}


class CountedTopic(CountedSink):
    """A topic with transactions."""

    partitions = 2

    def __init__(self, broker, group_offsets) -> None:
        super().__init__("kafka", f"counted-{uuid.uuid4().hex[:8]}")
        self.server = broker
        self._group_offsets = group_offsets
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic = NewTopic(self.table, self.partitions, 1)
        admin.create_topics([topic])[self.table].result(30)

    def rows(self):
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self.table, at, 0) for at in range(self.partitions)])
        found, ends = Counter(), set()
        while len(ends) < self.partitions:
            record = consumer.poll(30)
            assert record is not None, f"no end of {self.table}: {found}"
            if record.error():
                assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
                ends.add(record.partition())
            else:
                value = json.loads(record.value())
                found[value["at"], value["position"]] += 1
        consumer.close()
        return found

    def stored(self, topic):
        found = self._group_offsets(f"headrace.{JOB}.1.{self.table}")
        return {at: offset for (name, at), offset in found.items() if name == topic}
