"""Examples that have no test of their own here, as users apply them (cpu-load: `test_spark`)."""

import pytest

from support.kube import ROOT, condition, get, kubectl
from support.processes import wait_until

pytestmark = pytest.mark.timeout(400)

ORDERS = ROOT / "manifests/examples/orders"
RECORDS = [f"order-{number}" for number in range(20)]

COMMITTED = """
from kafka import KafkaAdminClient
admin = KafkaAdminClient(bootstrap_servers="main-bootstrap:9092")
found = admin.list_group_offsets("orders-app")["orders-app"]
print(sum(each.offset for each in found.values()))
admin.close()
"""


def committed(namespace: str) -> int:
    """Return how many records the group of the example has committed."""
    python = ("exec", "-n", namespace, "main-brokers-0", "--", "python", "-c", COMMITTED)
    return int(kubectl(*python, check=False) or -1)


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

    # It commits behind what it has printed. Not its log: kubelets that share a host, as a lab's do,
    # collect the logs of each other's pods.
    wait_until(
        lambda: committed(namespace) == len(RECORDS), 90, "all records to be read and committed"
    )
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
