"""Addresses outside: what Services say, what brokers tell clients, who is restarted for it."""

import asyncio
import datetime as dt
from dataclasses import replace

from headrace_operator.kubernetes.brokers.addresses import (
    AGAIN_MS_MIN,
    AddressWatch,
    with_addresses,
    with_bootstrap_ports,
)
from headrace_operator.kubernetes.brokers.observed import Seen, observed_broker
from headrace_operator.plan import Observed, ObservedCluster, ObservedPartition, plan
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import bootstrap_service, broker_service, pod_name
from headrace_operator.render.properties import render_properties
from headrace_operator.render.services import render_services
from support.operator_resources import CONFIG, broker, cluster, desired, observed

FIRST, SECOND = "198.51.100.11", "198.51.100.12"
LISTENERS = [
    {"name": "plain"},
    {"name": "balanced", "port": 9095, "type": "LoadBalancer"},
    {"name": "by-node", "port": 9094, "type": "NodePort"},
]
NODE = Node(node_id=1, pool="a", ordinal=0)
WANTED = {"balanced": f"{FIRST}:9095", "by-node": ":30001"}

NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def service(*ingress, port=30001, **metadata):
    return {
        "metadata": metadata,
        "spec": {"ports": [{"nodePort": port}]},
        "status": {"loadBalancer": {"ingress": list(ingress)} if ingress else {}},
    }


def services_of(found, balanced, by_node=None):
    named = {"balanced": balanced, "by-node": by_node or service()}
    return {broker_service(found, NODE, name): each for name, each in named.items()}


def test_a_changed_address_is_taken_and_one_that_is_missing_stays_as_it_was():
    found = cluster(listeners=LISTENERS)

    def after(node, balanced):
        return with_addresses(found, node, services_of(found, balanced))

    known = after(NODE, service({"ip": FIRST}))
    assert (known.addresses, known.node_ports) == ({"balanced": FIRST}, {"by-node": 30001})
    assert after(known, service({"ip": SECOND})).addresses == {"balanced": SECOND}
    assert after(known, service({"hostname": "b.example"})).addresses == {"balanced": "b.example"}
    # One of several: in whatever order they come.
    assert after(known, service({"ip": SECOND}, {"ip": FIRST})) == known
    assert after(known, service()) == known
    assert after(known, service({"ipMode": "VIP"})) == known
    assert after(known, service({"ip": SECOND}, deletionTimestamp="2026-01-01T00:00:00Z")) == known
    assert with_addresses(found, known, {}) == known
    # The Service is given its known port again, whatever somebody wrote there.
    changed = services_of(found, service({"ip": FIRST}), service(port=30002))
    assert with_addresses(found, known, changed) == known


def test_what_is_wanted_follows_the_services_before_it_is_written_down():
    found = cluster(listeners=LISTENERS)
    node = with_addresses(found, NODE, services_of(found, service({"ip": FIRST})))
    identity = Identity(cluster_id="id", nodes=(node,))
    pod = {"metadata": {"name": pod_name(found, node), "uid": "u"}, "status": {}}

    def seen(balanced, pods):
        names = services_of(found, balanced)
        return observed_broker(
            found, identity, node, Seen(now=NOW, stateful_sets={}, pods=pods, services=names)
        )

    pods = {pod_name(found, node): pod}
    assert seen(service({"ip": FIRST}), pods).addresses == WANTED
    moved = seen(service({"ip": SECOND}), pods)
    assert moved.addresses == {**WANTED, "balanced": f"{SECOND}:9095"}
    again = {
        pod_name(found, node): {**pod, "status": {"containerStatuses": [{"containerID": "c"}]}}
    }
    assert seen(service({"ip": FIRST}), again).process != moved.process
    assert not seen(service({"ip": SECOND}), {}).addresses


def telling(balanced, by_node="192.0.2.1:30001", node_id=1, **rest):
    told = {"balanced": balanced, "by-node": by_node}
    return broker(node_id, addresses=WANTED, advertised=told, **rest)


def test_only_who_tells_clients_another_address_than_it_has_is_restarted():
    pools = [{"name": "a", "replicas": 2}]
    right = telling(f"{FIRST}:9095")
    wanted = desired(cluster=cluster(pools))
    assert plan(observed(right, replace(right, node_id=2)), wanted).is_empty
    # Not asked, or without such a listener yet: that is the listeners' business.
    for told in (None, {}):
        others = replace(right, advertised=told)
        assert plan(observed(others, replace(others, node_id=2)), wanted).is_empty
    wrong = telling("198.51.100.10:9095", "192.0.2.1:30009", node_id=2)
    (action,) = plan(observed(right, wrong), wanted).actions
    assert action.node_id == 2
    assert action.changes == (
        f"address of listener balanced: 198.51.100.10 -> {FIRST}",
        "address of listener by-node: 192.0.2.1:30009 -> 192.0.2.1:30001",
    )


def test_a_change_of_address_waits_and_is_shown_like_every_other_reason_of_a_restart():
    pools = [{"name": "a", "replicas": 2}]
    brokers = (telling(f"{SECOND}:9095"), telling(f"{SECOND}:9095", node_id=2))
    wanted = desired(cluster=cluster(pools))
    one, two = (
        plan(Observed(cluster=ObservedCluster(brokers=brokers, partitions=partitions)), wanted)
        for partitions in (
            {("t", 0): ObservedPartition(replicas=(1, 2), in_sync=(1,), leader=1)},
            {("t", 0): ObservedPartition(replicas=(1, 2), in_sync=(1, 2), leader=1)},
        )
    )
    assert not one.actions
    assert "t-0 is not in sync" in one.waiting[0].message
    assert [action.node_id for action in two.actions] == [1]
    shown = plan(observed(*brokers), desired(cluster=cluster(pools, updatePolicy="Plan")))
    assert not shown.actions
    change = f"address of listener balanced: {SECOND} -> {FIRST}"
    assert [action.describe() for action in shown.proposed] == [
        f"~ broker 1: {change}",
        f"~ broker 2: {change}",
    ]


class Brokers:
    """What is answered, and how often it was asked."""

    def __init__(self):
        self.told, self.asked = {}, []
        self.watch = AddressWatch()

    def look(self, *brokers, now_ms=0):
        """Return the brokers with what the watch adds, and what it waits for."""

        async def ask(node_ids):
            self.asked.append(list(node_ids))
            return {each: self.told[each] for each in node_ids if each in self.told}

        seen = asyncio.run(self.watch.observe(observed(*brokers), ask, now_ms=now_ms)).cluster
        return seen.brokers, seen.pending


def running(process="one", node_id=1, address=FIRST):
    return broker(node_id, process=process, addresses={"balanced": f"{address}:9095"})


def says(address):
    return {"BALANCED": f"{address}:9095", "PLAIN": "c-a-0:9092"}


def test_each_process_is_asked_once_and_clusters_without_external_listeners_never():
    brokers = Brokers()
    brokers.look(broker(1, process="one"))
    brokers.look(
        replace(running(), is_ready=False), replace(running(node_id=2), is_registered=False)
    )
    assert brokers.asked == []
    brokers.told = {1: says(FIRST)}
    for _ in range(3):
        (one, two), _ = brokers.look(running(), running(node_id=2))
    assert one.advertised == {"balanced": f"{FIRST}:9095"}
    assert two.advertised is None
    # Who did not answer is asked again, alone.
    assert brokers.asked == [[1, 2], [2], [2]]
    brokers.look(running("two"))
    assert brokers.asked[-1] == [1]


def changes_of(brokers):
    wanted = desired(cluster=cluster([{"name": "a", "replicas": len(brokers)}], config=CONFIG))
    return [change for each in plan(observed(*brokers), wanted).actions for change in each.changes]


def test_restarts_that_do_not_help_come_ever_more_seldom_and_say_so():
    brokers = Brokers()
    brokers.told = {1: says(FIRST)}
    assert changes_of(brokers.look(running())[0]) == []
    moved = [f"address of listener balanced: {FIRST} -> {SECOND}"]
    assert changes_of(brokers.look(running(address=SECOND))[0]) == moved
    # The next process may have been given the older settings: once more, and at once.
    assert changes_of(brokers.look(running("two", address=SECOND))[0]) == moved
    wait_ms, now_ms = AGAIN_MS_MIN, 0
    for attempt in ("three", "four", "five"):
        found, pending = brokers.look(running(attempt, address=SECOND), now_ms=now_ms)
        assert changes_of(found) == []
        assert moved[0] in pending[0]
        assert f"within {wait_ms // 60_000} min" in pending[0]
        now_ms += wait_ms
        found, pending = brokers.look(running(attempt, address=SECOND), now_ms=now_ms)
        assert (changes_of(found), pending) == (moved, ())
        wait_ms *= 2
    # One that tells the right address is the end of it.
    brokers.told = {1: says(SECOND)}
    assert changes_of(brokers.look(running("six", address=SECOND))[0]) == []
    assert changes_of(brokers.look(running("six", address=FIRST))[0]) != []


def test_a_broker_gets_the_address_that_it_should_advertise():
    found = cluster(listeners=LISTENERS)
    node = with_addresses(found, NODE, services_of(found, service({"ip": SECOND})))
    text = render_properties(found, Identity(cluster_id="id", nodes=(node,)), node)
    assert f"BALANCED://{SECOND}:9095,BY_NODE://${{env:HOST_IP}}:30001" in text


def test_the_port_where_clients_begin_is_kept_and_may_be_chosen():
    identity = Identity(cluster_id="id", nodes=(NODE,))
    found = cluster(listeners=LISTENERS)

    def bootstrap(found, identity):
        name = bootstrap_service(found, "by-node")
        services = {each["metadata"]["name"]: each for each in render_services(found, identity)}
        return services[name]["spec"]["ports"][0].get("nodePort")

    assert bootstrap(found, identity) is None
    live = {bootstrap_service(found, "by-node"): service(port=30999)}
    known = with_bootstrap_ports(found, identity, live)
    assert bootstrap(found, known) == 30999
    # Recreated by somebody who knew nothing of it: it gets its port back.
    live = {bootstrap_service(found, "by-node"): service(port=30111)}
    assert bootstrap(found, with_bootstrap_ports(found, known, {})) == 30999
    assert bootstrap(found, known) == 30999
    chosen = cluster(listeners=[*LISTENERS[:2], {**LISTENERS[2], "nodePort": 31000}])
    assert bootstrap(chosen, known) == 31000
    assert bootstrap(found, with_bootstrap_ports(chosen, known, live)) == 31000
