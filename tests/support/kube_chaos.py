"""Random misfortunes of a Cluster on Kubernetes, chosen by a seed: what `make chaos` does to it.

Each ends by itself, or is put right by `heal`; which one comes next follows from the seed, when it
comes also from how long the cluster took to mend the one before.
"""

import contextlib
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from headrace_operator.kubernetes.brokers.observed import is_ready
from support.kube import KubeLab, KubeOperator, get, kubectl
from support.kube_cluster import KubeCluster
from support.processes import wait_until

#: A broker whose volume was lost copies all that was written so far.
READY_SECONDS = 300.0
#: Volumes of a lab are made beforehand, and none is used twice: so many are free on its nodes.
_VOLUMES_FREE = 9
_OWNED = (
    "poddisruptionbudget/c-brokers",
    "networkpolicy/c-brokers",
    "serviceaccount/c-brokers",
    "service/c-brokers",
    "service/c-bootstrap",
    "service/c-bootstrap-external",
    "service/c-a-0-external",
    "service/c-a-1-external",
    "service/c-a-2-external",
    "configmap/c-a",
    "configmap/c-identity",
)
#: How long a node, or the API server, is away.
_AWAY_SECONDS = (3.0, 20.0)
#: Where it is served; the tests install no Prometheus operator.
_MONITOR = "podmonitors.monitoring.coreos.com"


def parse_seconds(text: str) -> float:
    """Read `90`, `90s`, `20m`, `1h`. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    if found is None:
        raise ValueError(f"FOR={text}: write 90s, 20m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]


@dataclass
class Chaos:
    """What may happen to one cluster. `happened` is the story, a line each."""

    cluster: KubeCluster
    operator: KubeOperator
    lab: KubeLab
    seed: int
    happened: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._away: str | None = None
        self._has_api = True
        nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
        self._nodes = sorted(each["metadata"]["name"] for each in nodes)
        self._number = 0
        #: The claim whose volume was lost last, and who voted before.
        self._lost: tuple[str, dict[int, str]] | None = None
        is_monitored = kubectl("get", "crd", _MONITOR, "--ignore-not-found", "-o", "name")
        self._owned = (*_OWNED, *([f"{_MONITOR}/c-brokers"] if is_monitored else []))
        self._began = time.monotonic()
        self._misfortunes: list[Callable[[], str]] = [
            self._kill_pod,
            self._kill_pod,
            self._delete_pod,
            self._kill_operator,
            self._delete_owned,
            self._delete_owned,
            self._delete_set,
            self._lose_volume,
            self._change_setting,
        ]
        if self.lab.is_there:
            self._misfortunes.append(self._stop_api_server)
            if len(self._nodes) > 1:
                self._misfortunes += [self._lose_node, self._cut_node]

    def run(self, seconds: float) -> None:
        """Let things happen for so long, then mend everything and wait until it is ready."""
        self._began = time.monotonic()
        while time.monotonic() - self._began < seconds:
            said = self._rng.choice(self._misfortunes)()
            self._tell(said)
            if self._rng.random() < 0.5:
                # Before it is mended, another one.
                time.sleep(self._rng.uniform(0.5, 5))
            else:
                self.heal()
                took = self.cluster.wait_ready(READY_SECONDS)
                self._tell(f"ready after {took:.1f} s")
        self.heal()
        took = self.cluster.wait_ready(READY_SECONDS)
        self._tell(f"ready at the end after {took:.1f} s")

    def heal(self) -> None:
        """Bring back what only a person, or the lab, brings back."""
        if not self._has_api:
            self.lab.start("apiserver")
            self.lab.wait_ready()
            self._has_api = True
        if self._away is not None:
            node, self._away = self._away, None
            self.lab.heal(node)
            self._tell(f"{node} is back")

    def _tell(self, said: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {said}"
        self.happened.append(line)
        print(line, flush=True)  # noqa: T201 - the story of a long run

    def _pod(self) -> str:
        return self._rng.choice([f"c-a-{ordinal}" for ordinal in range(3)])

    def _kill_pod(self) -> str:
        pod = self._pod()
        try:
            self.cluster.kill(pod)
        except RuntimeError:
            return f"pod {pod} is not there, or its node does not answer"
        return f"pod {pod} is killed (SIGKILL)"

    def _delete_pod(self) -> str:
        pod = self._pod()
        self._kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")
        return f"pod {pod} is deleted"

    def _kill_operator(self) -> str:
        with contextlib.suppress(RuntimeError):
            self.operator.kill()
        return "the operator is killed"

    def _delete_owned(self) -> str:
        owned = self._rng.choice(self._owned)
        self._kubectl("delete", owned, "--wait=false", "--ignore-not-found")
        return f"{owned} is deleted"

    def _delete_set(self) -> str:
        self._kubectl("delete", "statefulset/c-a", "--cascade=orphan", "--ignore-not-found")
        return "statefulset/c-a is deleted without its pods"

    def _lose_volume(self) -> str:
        """Lose one broker's volume, only while all others have all that it has.

        A second one before that is filled again would lose records, and most of the votes.
        """
        pod = self._pod()
        self.heal()
        if self.lab.is_there:
            self.lab.add_volumes(_VOLUMES_FREE)
        self.cluster.wait_ready(READY_SECONDS)
        wait_until(self._is_filled_again, READY_SECONDS, "the former broker to be filled again")
        wait_until(self._is_in_sync, READY_SECONDS, "every replica to be in sync")
        wait_until(self.cluster.voters, READY_SECONDS, "the voters to be told")
        voters = self.cluster.voters()
        claim = f"data-0-{pod}"
        before = self._claim_uid(claim)
        self._kubectl("delete", "pvc", claim, "--wait=false", "--ignore-not-found")
        with contextlib.suppress(RuntimeError):
            self.cluster.kill(pod)
        # It goes with its pod: in no later moment, when others may be behind.
        wait_until(lambda: self._claim_uid(claim) != before, READY_SECONDS, f"{claim} to go")
        self._lost = before, voters
        return f"the volume of {pod} is lost"

    def _is_filled_again(self) -> bool:
        """Whether the broker of the volume that was lost last is there again, and votes.

        Neither the Cluster's status nor what brokers say of partitions tells that: right after a
        loss both are as they were, and for longer where the operator, or the controller, is away.
        """
        if self._lost is None:
            return True
        lost, former = self._lost
        voters = self.cluster.voters()
        are_ready = all(is_ready(each) for each in self.cluster.pods().values())
        claims = {each["metadata"]["uid"] for each in self.cluster.claims().values()}
        return (
            are_ready
            and lost not in claims
            and len(claims) == len(voters) == len(former)
            and len(former.items() - voters.items()) == 1
        )

    def _claim_uid(self, name: str) -> str:
        found = self.cluster.claims().get(name, {})
        return str(found.get("metadata", {}).get("uid", ""))

    def _is_in_sync(self) -> bool:
        with contextlib.suppress(KafkaException):
            found = self.cluster.partitions().values()
            return bool(found) and all(
                each.leader >= 0 and sorted(each.isrs) == sorted(each.replicas) for each in found
            )
        return False

    def _change_setting(self) -> str:
        self._number += 1
        # One is live, the other one rolls all brokers.
        name = self._rng.choice(["log.retention.ms", "num.partitions"])
        value = 3_600_000 + self._number if name == "log.retention.ms" else 1 + self._number % 5
        self.cluster.spec["config"] = {**self.cluster.spec.get("config", {}), name: value}
        self.heal()
        self.cluster.apply()
        return f"{name} becomes {value}"

    def _stop_api_server(self) -> str:
        self.heal()
        self.lab.kill("apiserver")
        self._has_api = False
        seconds = self._rng.uniform(*_AWAY_SECONDS)
        time.sleep(seconds)
        self.heal()
        return f"the API server was away for {seconds:.0f} s"

    def _lose_node(self) -> str:
        return self._take_node("lose", "is powered off")

    def _cut_node(self) -> str:
        return self._take_node("cut", "is cut off")

    def _take_node(self, verb: str, said: str) -> str:
        # Any of them: the lab's control plane is on none.
        node = self._rng.choice(self._nodes)
        self.heal()
        self.lab.run(verb, node)
        self._away = node
        time.sleep(self._rng.uniform(*_AWAY_SECONDS))
        return f"{node} {said}"

    def _kubectl(self, *arguments: str) -> None:
        kubectl("-n", self.cluster.namespace, *arguments, check=False)


def lost_by_group(
    reads: dict[int, list[tuple[int, int]]], final: dict[int, list[tuple[int, int]]]
) -> list[str]:
    """Say what a group missed or saw in another order; that it saw some twice is its right."""
    found = []
    for partition, records in final.items():
        first = list(dict.fromkeys(reads.get(partition, [])))
        if first != records:
            found.append(f"{partition}: the group read {len(first)} of {len(records)} in order")
    return found


def wait_all_ready(namespace: str, seconds: float = 120) -> None:
    """Wait until every resource of Headrace in a namespace is Ready for its spec as it is."""

    def not_ready() -> list[str]:
        found = []
        for kind in ("clusters", "topics", "consumergroups"):
            for each in get(namespace, f"{kind}.headrace.dev").get("items", []):
                conditions = each.get("status", {}).get("conditions", [])
                ready = next((one for one in conditions if one["type"] == "Ready"), {})
                current = ready.get("observedGeneration") == each["metadata"]["generation"]
                if ready.get("status") != "True" or not current:
                    found.append(f"{kind}/{each['metadata']['name']}: {ready.get('message')}")
        return found

    try:
        wait_until(lambda: not not_ready(), seconds)
    except TimeoutError:
        raise TimeoutError(f"not ready at the end: {not_ready()}") from None
