"""The example `retail` on Kubernetes: one `kubectl apply -k`, an oracle.

Its driver is killed, and PostgreSQL crashes.
"""

import json
import warnings
from collections.abc import Callable, Iterator

import pytest
import yaml

from support.kube import ROOT, KubeLab, apply, get, kubectl
from support.kube_postgres import KubePostgres
from support.kube_spark import driver
from support.postgres import postgres_binaries
from support.processes import wait_until
from support.retail import JOIN, oracle

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3600)]

EXAMPLE = ROOT / "manifests/examples/retail"
#: How many sales the day of the test has; the example's own has no end.
SALES = 600
PATIENCE_SECONDS = 900
NAMES = {"sale": "sales", "shipment": "shipments", "product": "products"}

#: What a reader of the table of files sees, as a reader of the driver's volume.
_SOLD = """
import json
from deltalake import DeltaTable
for row in DeltaTable("/var/lib/headrace/sold").to_pyarrow_table().to_pylist():
    print(json.dumps(row, default=lambda at: round(at.timestamp() * 1000)))
"""


@pytest.fixture
def database(new_namespace: Callable[..., str], lab: KubeLab) -> Iterator[KubePostgres | None]:
    """PostgreSQL in the shop's namespace, told to the job as its page says; None: not here."""
    found = postgres_binaries()
    # Where the server is, not where a link to it is, which pods do not have.
    binaries = None if found is None else (found / "initdb").resolve().parent
    if not lab.is_there or binaries is None or not binaries.is_relative_to("/usr"):
        warnings.warn("no PostgreSQL for pods here: retail's table is not looked at", stacklevel=1)
        yield None
        return
    namespace = new_namespace(**{"pod-security.kubernetes.io/enforce": "privileged"})
    with KubePostgres(namespace, binaries) as running:
        metadata = {"name": "retail-postgres", "namespace": namespace}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        apply(secret | {"stringData": {"HEADRACE_RETAIL_DSN": running.dsn}})
        yield running


@pytest.fixture
def shop(new_namespace: Callable[..., str], database: KubePostgres | None) -> Iterator[str]:
    """The example as users apply it, whose day ends, and with the oracle's range of the join."""
    namespace = new_namespace() if database is None else database.namespace
    documents = list(yaml.safe_load_all(kubectl("kustomize", str(EXAMPLE))))
    for each in documents:
        if each["kind"] == "Deployment":
            [container] = each["spec"]["template"]["spec"]["containers"]
            container["args"] += ["--sales", str(SALES)]
        elif each["kind"] == "SparkApplication":
            each["spec"]["arguments"] += ["--join-within", f"{JOIN}s"]
    text = yaml.safe_dump_all(documents)
    kubectl("-n", namespace, "apply", "--server-side", "-f", "-", stdin=text)
    yield namespace
    kubectl("-n", namespace, "delete", "--wait=false", "--ignore-not-found", "-f", "-", stdin=text)


def records(namespace: str, topic: str) -> list[str]:
    """What is in a topic of the example, by partition and offset."""
    text = kubectl(
        *("-n", namespace, "exec", "shop-brokers-0", "--", "headrace", "consume"),
        *(f"retail-{topic}", "--isolation-level", "read_committed"),
        *("--bootstrap-server", "shop-bootstrap:9092"),
        check=False,
    )
    return text.splitlines()


def rows(namespace: str, topic: str, *names: str) -> list[tuple[object, ...]]:
    """Return records of an output as tuples of these fields."""
    found = map(json.loads, records(namespace, topic))
    return [tuple(value[name] for name in names) for value in found]


def sold(namespace: str) -> list[tuple[object, ...]]:
    """What the table of files says, each row as often as it is there."""
    command = ("exec", "retail-driver", "-c", "spark-kubernetes-driver", "--", "python", "-c")
    text = kubectl("-n", namespace, *command, _SOLD, check=False)
    names = ("sale_id", "shipment_id", "product", "name", "store", "quantity")
    names += ("event_time", "shipped_at")
    return [tuple(json.loads(line)[name] for name in names) for line in text.splitlines()]


def stock(namespace: str) -> set[tuple[object, ...]]:
    """Return the newest row of each shelf."""
    found = rows(namespace, "stock", "product", "store", "stock")
    return set({row[:2]: row for row in found}.values())


def table(database: KubePostgres) -> list[tuple[object, ...]]:
    """Return what PostgreSQL has of the stock."""
    text = database.query("SELECT product, store, stock FROM retail_stock")
    found = [line.rsplit("|", 2) for line in text.splitlines()]
    return [(product, store, int(count)) for product, store, count in found]


def test_the_shop_on_kubernetes_has_what_the_oracle_says_also_when_its_driver_is_killed(
    shop: str, database: KubePostgres | None
) -> None:
    wait_until(lambda: bool(records(shop, "stock")), PATIENCE_SECONDS, "the first results")
    if database:
        database.crash()
    first = driver(shop, "retail")["metadata"]["uid"]
    kubectl("-n", shop, "delete", "pod", "retail-driver", "--grace-period=0", "--force")
    wait_until(
        lambda: driver(shop, "retail").get("metadata", {}).get("uid") not in (None, first),
        PATIENCE_SECONDS,
        "another driver",
    )
    wait_until(
        lambda: len(day(shop)) == SALES,
        PATIENCE_SECONDS,
        "the end of the day",
    )
    values = {kind: records(shop, topic) for kind, topic in NAMES.items()}
    expected = oracle(values)
    counted = {row[:3] for row in expected["stock"]}
    # Heartbeats go on after the day, so that nothing of it is held back.
    wait_until(lambda: stock(shop) == counted, PATIENCE_SECONDS, "the stock of the whole day")
    names = ("product", "store", "number", "quantity", "stock")
    reorders = sorted(row[:5] for row in expected["reorder"])
    assert sorted(rows(shop, "reorders", *names)) == reorders
    # The files get a batch after the topics, and are read by a command in the driver's pod, which
    # may end before all of its words are here.
    wanted = sorted(expected["sold"])
    files: list[tuple[object, ...]] = []

    def has_all() -> bool:
        files[:] = sorted(sold(shop))
        return len(files) >= len(wanted)

    wait_until(has_all, PATIENCE_SECONDS, "what was sold")
    assert files == wanted
    assert records(shop, "dead-letters") == []
    if database:
        # PostgreSQL is the last of the sinks to get a batch.
        wait_until(lambda: set(table(database)) == counted, PATIENCE_SECONDS, "the stock's table")
        assert len(table(database)) == len(counted)
    status = get(shop, "consumergroup", "retail-job")["status"]
    assert isinstance(status["lagRecords"], int), status


def day(namespace: str) -> set[object]:
    """Return the sales that were sent so far."""
    sent = map(json.loads, records(namespace, "sales"))
    return {each["sale_id"] for each in sent if not each.get("heartbeat")}
