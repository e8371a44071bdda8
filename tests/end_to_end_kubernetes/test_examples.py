"""Examples that have no test of their own here, as users apply them (cpu-load: `test_spark`)."""

import pytest

from support.kube import ROOT, condition, get, kubectl
from support.processes import wait_until

pytestmark = pytest.mark.timeout(400)

ORDERS = ROOT / "manifests/examples/orders"
RECORDS = [f"order-{number}" for number in range(20)]


def test_the_consumer_of_orders_reads_what_is_written(namespace):
    kubectl("apply", "-n", namespace, "-k", str(ORDERS))
    wait_until(
        lambda: condition(get(namespace, "topic", "orders")).get("status") == "True",
        180,
        "the topic of the example",
    )
    kubectl(
        *("exec", "-i", "-n", namespace, "main-brokers-0", "--"),
        *("headrace", "produce", "orders", "--bootstrap-server", "main-bootstrap:9092"),
        stdin="".join(f"{record}\n" for record in RECORDS),
    )

    def read() -> str:
        # Of every pod: lag may have made more than one.
        selected = ("-l", "app.kubernetes.io/name=orders-app", "--tail=-1")
        return kubectl("logs", "-n", namespace, *selected, check=False)

    wait_until(lambda: all(record in read() for record in RECORDS), 90, "the records to be read")
    wait_until(
        lambda: (
            get(namespace, "consumergroup", "orders-app").get("status", {}).get("lagRecords") == 0
        ),
        60,
        "a group without lag",
    )
    # It was there before brokers and topic were, and waited for them: no crash, no growing pauses.
    pods = get(namespace, "pods", "-l", "app.kubernetes.io/name=orders-app")["items"]
    assert pods
    assert [each["status"]["containerStatuses"][0]["restartCount"] for each in pods] == [0] * len(
        pods
    )
