"""A Cluster on a real Kubernetes, as end-to-end tests see it: through kubectl and through clients.

Clients come in by a NodePort listener, as anybody outside of the cluster does.
"""

import json
import os
import time
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource
from kio.schema.metadata.v4.request import MetadataRequest

from support.clusters import QUORUM
from support.kube import apply, collect, condition, get, kubectl, resource
from support.processes import wait_until
from support.streams import FAST_CLIENT, Reader
from support.wire import RawConnection

#: The listener that tests come in by.
LISTENER = "external"
READY_SECONDS = 120.0
KILL_SECONDS = 10.0


class KubeCluster:
    """A Cluster resource and its pods."""

    def __init__(self, namespace: str, name: str = "c", **spec: Any) -> None:
        self.namespace, self.name = namespace, name
        self.spec: dict[str, Any] = {
            "pools": [
                {
                    "name": "a",
                    "replicas": 3,
                    "storage": {"size": "1Gi", "deletionPolicy": "Delete"},
                    # Without a request, pods come after all others that share the machine.
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                }
            ],
            "listeners": [{"name": "plain"}, {"name": LISTENER, "port": 9094, "type": "NodePort"}],
            "deletionPolicy": "Delete",
            **spec,
        }
        self.ready_seconds = 0.0

    def __enter__(self) -> Self:
        self.apply()
        self.ready_seconds = self.wait_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            collect(self.namespace, os.environ["PYTEST_CURRENT_TEST"])
        self.delete()

    @property
    def pool(self) -> dict[str, Any]:
        return self.spec["pools"][0]  # type: ignore[no-any-return]  # the spec is JSON

    def apply(self) -> None:
        """Apply the spec as it is now."""
        apply(resource("Cluster", self.namespace, self.name, **self.spec))

    def delete(self) -> None:
        """Delete it, and wait until its pods and claims are gone."""
        kubectl("-n", self.namespace, "delete", "cluster", self.name, "--wait=false", check=False)
        wait_until(lambda: not self.pods() and not self.claims(), 120, "everything to be gone")

    @property
    def labels(self) -> str:
        return f"headrace.dev/cluster={self.name}"

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods by name."""
        found = get(self.namespace, "pods", "-l", self.labels).get("items", [])
        return {pod["metadata"]["name"]: pod for pod in found}

    def claims(self) -> dict[str, dict[str, Any]]:
        """Return the volume claims by name."""
        found = get(self.namespace, "pvc", "-l", self.labels).get("items", [])
        return {claim["metadata"]["name"]: claim for claim in found}

    def resource(self) -> dict[str, Any]:
        """Return the resource as the API server has it."""
        return get(self.namespace, "cluster", self.name)  # type: ignore[no-any-return]  # JSON

    def condition(self, kind: str = "Ready") -> dict[str, Any]:
        """Return a condition of the resource."""
        return condition(self.resource(), kind)

    def is_ready(self) -> bool:
        """Whether Ready is true for the spec as it was applied, with as many pods."""
        found = self.resource()
        ready = condition(found)
        wanted = sum(pool.get("replicas", 1) for pool in self.spec["pools"])
        return (
            ready.get("status") == "True"
            and ready.get("observedGeneration") == found["metadata"]["generation"]
            and len(self.pods()) == wanted
        )

    def wait_ready(self, seconds: float = READY_SECONDS) -> float:
        """Wait until it is as the spec says; return how long it took."""
        began = time.monotonic()
        try:
            wait_until(self.is_ready, seconds)
        except TimeoutError:
            raise TimeoutError(
                f"not ready after {seconds} s: {json.dumps(self.resource().get('status'))}\n"
                + kubectl("-n", self.namespace, "get", "pods", "-o", "wide")
            ) from None
        return time.monotonic() - began

    def kill(self, pod: str) -> None:
        """Let a pod end without a word, as when its node dies: SIGKILL, and then it is gone.

        A deletion alone would say SIGTERM a second before, and a broker hands over in less.
        Raises RuntimeError, and deletes nothing, where its node does not answer.
        """
        everything = ("exec", pod, "--", "sh", "-c", "kill -KILL -- -1")
        kubectl("-n", self.namespace, *everything, check=False, seconds=KILL_SECONDS)
        kubectl(
            *("-n", self.namespace, "delete", "pod", pod, "--grace-period=0", "--force"),
            "--wait=false",
        )

    @property
    def bootstrap(self) -> str:
        """Where clients outside begin: any node, at the port of the bootstrap Service."""
        nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
        host = next(
            each["address"]
            for each in nodes[0]["status"]["addresses"]
            if each["type"] == "InternalIP"
        )
        service = get(self.namespace, "service", f"{self.name}-bootstrap-{LISTENER}")
        return f"{host}:{service['spec']['ports'][0]['nodePort']}"

    def partitions(self, topic: str | None = None) -> dict[tuple[str, int], Any]:
        """Return the partitions (leader, replicas, isrs) as some broker sees them."""
        admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": self.bootstrap})
        listed = admin.list_topics(topic, timeout=5) if topic else admin.list_topics(timeout=5)
        return {
            (each.topic, index): partition
            for each in listed.topics.values()
            for index, partition in each.partitions.items()
        }

    def broker_config(self, node_id: int) -> dict[str, str]:
        """Return a broker's settings as it tells them."""
        wanted = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
        admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": self.bootstrap})
        found = admin.describe_configs([wanted])[wanted].result(10)
        return {name: entry.value for name, entry in found.items()}

    def active_controller(self) -> int:
        """Return the node id of the leader of the metadata quorum."""
        found: list[int] = []

        def is_led() -> bool:
            with suppress(OSError, ValueError), RawConnection(self.bootstrap, 2) as link:
                states = link.call(QUORUM).topics[0].partitions
                found[:] = [int(each.leader_id) for each in states if int(each.leader_id) >= 0]
            return bool(found)

        wait_until(is_led, 30, "an active controller")
        return found[0]

    def voters(self) -> dict[int, str]:
        """Return the directory ids of the metadata quorum's voters; {} while nobody says."""
        with suppress(OSError, ValueError), RawConnection(self.bootstrap, 2) as link:
            for each in link.call(QUORUM).topics[0].partitions:
                return {
                    int(voter.replica_id): str(voter.replica_directory_id)
                    for voter in each.current_voters
                }
        return {}

    def pod_of(self, node_id: int) -> str:
        """Return the name of a broker's pod, from where the operator keeps it."""
        for node in self.identity()["nodes"]:
            if node["nodeId"] == node_id:
                return f"{self.name}-{node['pool']}-{node['ordinal']}"
        raise KeyError(node_id)

    def identity(self) -> Any:
        """Return who the brokers are."""
        found = get(self.namespace, "configmap", f"{self.name}-identity")
        return json.loads(found["data"]["identity.json"])

    def brokers(self) -> dict[int, Any]:
        """Return the brokers (host, port) as clients of the external listener see them."""
        admin = AdminClient({**FAST_CLIENT, "bootstrap.servers": self.bootstrap})
        return dict(admin.list_topics(timeout=10).brokers)

    def racks(self) -> dict[int, str]:
        """Return the brokers' racks as Metadata has them."""
        with RawConnection(self.bootstrap, 5) as link:
            request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
            return {int(each.node_id): each.rack for each in link.call(request).brokers}

    def wait_in_sync(self, topic: str, seconds: float = 60) -> None:
        """Wait until every replica of the topic is in sync."""

        def is_in_sync() -> bool:
            with suppress(KafkaException):
                found = self.partitions(topic).values()
                return bool(found) and all(
                    each.leader >= 0 and sorted(each.isrs) == sorted(each.replicas)
                    for each in found
                )
            return False

        wait_until(is_in_sync, seconds, f"{topic} to be in sync")


class GroupReader(Reader):
    """A member of a consumer group that reads and commits."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._bootstrap, self._topic, self._group = bootstrap, topic, group
        self.longest_pause = 0.0
        super().__init__()

    def _consumer_of_its_own(self) -> Consumer:
        consumer = Consumer(
            {
                **FAST_CLIENT,
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 30_000,
            }
        )
        consumer.subscribe([self._topic], on_revoke=self._revoked)
        return consumer

    def __enter__(self) -> Self:
        super().__enter__()
        wait_until(lambda: self.reads, 60, "the group's first record")
        return self

    def _revoked(self, consumer: Consumer, _: object) -> None:
        with suppress(KafkaException):
            consumer.commit(asynchronous=False)

    def _run(self) -> None:
        last = 0.0
        while not self._is_stopping.is_set():
            messages = self._consumer.consume(500, timeout=0.1)
            self._take(messages)
            if messages:
                if last:
                    self.longest_pause = max(self.longest_pause, time.monotonic() - last)
                last = time.monotonic()
                with suppress(KafkaException):
                    self._consumer.commit(asynchronous=True)

    def violations(self, final: dict[int, list[tuple[int, int]]]) -> list[str]:
        """Say what the group as a whole lost, saw twice or saw out of order."""
        found = []
        for partition, records in final.items():
            seen = self.reads[partition]
            if seen != records[: len(seen)]:
                at = next(i for i, (a, b) in enumerate(zip(seen, records, strict=False)) if a != b)
                found.append(f"{partition}: {seen[at]} where {records[at]} stands")
            elif len(seen) < len(records):
                found.append(f"{partition}: read {len(seen)} of {len(records)}")
        return found
