"""The job `retail` by a real driver: killed, run again, and run over the past by a new generation.

Its topics, its Delta table and its table in PostgreSQL hold what the oracle says of the whole
input, record by record.
"""

import itertools
import json
import signal
import sys
import uuid
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from headrace_cli.retail_events import Shop, shop_day
from support.processes import ManagedProcess, wait_until
from support.retail import BUSY, JOIN, LATENESS, OPENS_MS, PARTITIONS, QUIET, WINDOW, logs, oracle
from support.spark_driver import driver_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

STEP_SECONDS = 400
TOPICS = {"sale": "sales", "shipment": "shipments", "product": "products"}


class Retail:
    """The job's drivers over one input."""

    def __init__(self, directory, postgres, bootstrap):
        self.directory = directory
        self.name = f"retail-{uuid.uuid4().hex[:8]}"
        self._postgres = postgres
        self._bootstrap = bootstrap
        self._numbers = itertools.count(1)
        self._make_topics([f"{self.name}-{each}" for each in TOPICS.values()], PARTITIONS)
        self.drivers = []

    def produce(self, log):
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for kind, partitions in log.items():
            for partition, values in enumerate(partitions):
                for key, value in values:
                    topic = f"{self.name}-{TOPICS[kind]}"
                    producer.produce(topic, value, key=key, partition=partition)
        assert producer.flush(30) == 0

    def run(self, generation, *more, **crash):
        """Run a driver until it has read all or was killed; returns its exit status."""
        driver = self.start(generation, "--available-now", "--trigger", "0s", *more, **crash)
        wait_until(lambda: not driver.is_running, STEP_SECONDS, "the driver's end")
        return driver.exit_status

    def start(self, generation, *more, point="none", batch_id=-1):
        command = [sys.executable, "-m", "support.crashing_job", point, str(batch_id)]
        command += ["headrace_jobs.jobs.retail", "--bootstrap-servers", self._bootstrap]
        for each in TOPICS.values():
            command += ["--input-topic", f"{each}={self.name}-{each}"]
        command += ["--lateness", f"{LATENESS}s", "--window", f"{WINDOW}s"]
        command += ["--join-within", f"{JOIN}s", "--busy", str(BUSY), "--quiet", str(QUIET)]
        command += ["--checkpoint", str(self.directory / "checkpoint"), "--no-console"]
        command += ["--generation", str(generation), "--group", f"{self.name}-{generation}", *more]
        environment = driver_environment() | {
            "HEADRACE_RETAIL_TOPICS": self.topic(generation, "")[:-1],
            "HEADRACE_RETAIL_FILES": str(self.files(generation)),
            "HEADRACE_RETAIL_TABLE": self.table(generation),
            "HEADRACE_RETAIL_DSN": self._postgres.dsn,
        }
        log = self.directory / f"driver-{next(self._numbers)}.log"
        driver = ManagedProcess(command, log, environment)
        self.drivers.append(driver)
        return driver

    def make_outputs(self, generation):
        outputs = ("stock", "reorders", "prices")
        self._make_topics([self.topic(generation, each) for each in outputs], 2)

    def topic(self, generation, output):
        return f"{self.name}-g{generation}-{output}"

    def table(self, generation):
        return f"{self.name}_g{generation}".replace("-", "_")

    def files(self, generation):
        return self.directory / f"sold-{generation}"

    @property
    def output(self):
        return self.drivers[-1].log_path.read_text(errors="replace")

    def found(self, generation):
        """What readers see of each output, each row as often as it is there."""
        names = ("product", "store", "stock")
        stock = self.stock(generation)
        told = {}
        for row in self._read(self.topic(generation, "stock"), names):
            told[row[:2]] = row
        assert sorted(told.values()) == sorted(stock)
        reorder = (*names[:2], "number", "quantity", "stock")
        price = ("product", "number", "units", "percent", "price_cents")
        return {
            "stock": stock,
            "reorder": self._read(self.topic(generation, "reorders"), reorder),
            "price": self._read(self.topic(generation, "prices"), price),
            "sold": self._sold(generation),
        }

    def stock(self, generation):
        """What PostgreSQL has: the last of the outputs to get a batch."""
        if not self._postgres.query(f"SELECT to_regclass('{self.table(generation)}')")[0][0]:
            return []
        query = f"SELECT product, store, stock, event_time FROM {self.table(generation)}"  # noqa: S608
        return [(*row[:3], milliseconds(row[3])) for row in self._postgres.query(query)]

    def close(self):
        for driver in self.drivers:
            driver.kill()

    def _sold(self, generation):
        names = ("sale_id", "shipment_id", "product", "name", "store", "quantity")
        rows = DeltaTable(str(self.files(generation))).to_pyarrow_table().to_pylist()
        return [
            (
                *(row[name] for name in names),
                milliseconds(row["event_time"]),
                milliseconds(row["shipped_at"]),
            )
            for row in rows
        ]

    def _read(self, topic, names):
        """Committed records as tuples of these fields and their time."""
        settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
        settings |= {"bootstrap.servers": self._bootstrap, "enable.partition.eof": True}
        consumer = Consumer(settings | {"isolation.level": "read_committed"})
        consumer.subscribe([topic])
        rows, ended = [], set()
        while len(ended) < 2:
            record = consumer.poll(60)
            assert record is not None, topic
            if record.error():
                ended.add(record.partition())
                continue
            value = json.loads(record.value())
            at = milliseconds(datetime.fromisoformat(value["event_time"]))
            rows.append((*(value[name] for name in names), at))
        consumer.close()
        return rows

    def _make_topics(self, names, partitions):
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        topics = [NewTopic(name, partitions, 1) for name in names]
        for future in admin.create_topics(topics).values():
            future.result(30)


def milliseconds(at):
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


@pytest.fixture
def retail(tmp_path, postgres, broker):
    found = Retail(tmp_path, postgres, broker.bootstrap)
    yield found
    found.close()


def test_a_killed_driver_and_a_backfill_give_what_the_oracle_says(retail):
    sent = list(shop_day(Shop(seed=5, sales=240, products=5), begin_ms=OPENS_MS))
    noon = len(sent) // 2
    retail.make_outputs(1)
    first, second = logs(sent[:noon], closes=False), logs(sent[noon:])
    retail.produce(first)
    # Topics and files have the batch, PostgreSQL has not.
    status = retail.run(
        1, "--max-offsets-per-trigger", "40", point="staged-in-postgres", batch_id=1
    )
    assert status == -signal.SIGKILL, retail.output
    retail.produce(second)
    assert retail.run(1, "--max-offsets-per-trigger", "150") == 0, retail.output
    expected = oracle(values(first, second))
    assert all(len(rows) > 3 for rows in expected.values())
    assert_same(retail.found(1), expected)
    # The same program over the past, in one go.
    retail.make_outputs(2)
    assert retail.run(2) == 0, retail.output
    assert_same(retail.found(2), expected)


def test_topics_that_fall_silent_hold_back_windows_of_demand_alone(retail):
    sent = list(shop_day(Shop(seed=6, sales=120, products=4), begin_ms=OPENS_MS))
    whole, silent = logs(sent), logs(sent, closes=False)
    expected = oracle(values(silent))
    retail.make_outputs(1)
    retail.produce(silent)
    driver = retail.start(1, "--idle-timeout", "2s", "--trigger", "1s")
    stock = sorted(expected["stock"])
    wait_until(lambda: sorted(retail.stock(1)) == stock, STEP_SECONDS, "what the silence lets go")
    assert driver.is_running, retail.output
    driver.kill()
    found = retail.found(1)
    prices = found.pop("price")
    assert_same(found, {output: expected[output] for output in found})
    assert set(prices) <= expected["price"]
    # Heartbeats from later close the windows: nothing comes a second time.
    retail.produce(
        {
            kind: [
                part[len(before) :] for part, before in zip(whole[kind], silent[kind], strict=True)
            ]
            for kind in whole
        }
    )
    assert retail.run(1) == 0, retail.output
    assert_same(retail.found(1), expected)


def assert_same(found, expected):
    """Record by record: none is missing, none is there twice."""
    for output, rows in expected.items():
        assert sorted(found[output]) == sorted(rows), output


def values(*days):
    return {
        kind: [text for log in days for part in log[kind] for _, text in part] for kind in TOPICS
    }
