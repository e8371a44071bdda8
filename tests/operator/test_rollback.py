"""A change that no broker comes up with is taken back, and what runs well is remembered."""

from typing import Any

import msgspec
import pytest

from headrace_operator.kubernetes.brokers.rollback import as_it_ran, noted, with_listeners_kept
from headrace_operator.plan import ObservedBroker, ObservedCluster
from headrace_operator.render.identity import Failed, Identity, Node
from headrace_operator.render.properties import static_config
from headrace_operator.resources import Cluster
from support.operator_resources import CONFIG, cluster

DEFAULT = "headrace:operator"
IDENTITY = Identity(
    cluster_id="id",
    image="headrace:1",
    version="4.2",
    nodes=(Node(node_id=1, pool="a", ordinal=0),),
)


def seen(found: Cluster, **rest: Any) -> ObservedCluster:
    broker = ObservedBroker(
        node_id=1, pool="a", roles=("broker", "controller"), config=static_config(found), **rest
    )
    return ObservedCluster(brokers=(broker,), is_reachable=not rest.get("failing"))


def looked_at(found: Cluster, identity: Identity, **rest: Any) -> Identity:
    spec = found.spec
    wanted = identity.at_version(spec.version, spec.image, DEFAULT)
    return noted(found, stored(identity), stored(wanted), seen(found, **rest))


def stored(identity: Identity) -> Identity:
    """Return an identity as it is read again."""
    return msgspec.json.decode(msgspec.json.encode(identity), type=Identity)


BEFORE = cluster()
GOOD = looked_at(BEFORE, IDENTITY)
DOWN = {"is_registered": False, "is_ready": False, "is_stuck": True}


def failed(found: Cluster, why: str = "CrashLoopBackOff, exit code 1: no", **rest: Any) -> Identity:
    return looked_at(found, GOOD, failing=why, **(DOWN | rest))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"image": "headrace:bad"}, "image: headrace:1 -> headrace:bad"),
        ({"version": "4.2.1"}, f"image: headrace:1 -> {DEFAULT}"),
        ({"config": {**CONFIG, "num.partitions": 9}}, "num.partitions: default -> 9"),
        (
            {"pools": [{"name": "a", "resources": {"limits": {"memory": "16Mi"}}}]},
            "a: resources",
        ),
        ({"pools": [{"name": "a", "podTemplate": {"spec": {"hostPID": True}}}]}, "a: podTemplate"),
        ({"listeners": [{"name": "plain", "port": 9999}]}, "listeners"),
    ],
)
def test_brokers_go_back_to_what_they_ran_with(spec: dict[str, Any], words: str) -> None:
    changed = cluster(**spec)
    identity = failed(changed)
    assert identity.image == "headrace:1"
    effective, reason = as_it_ran(changed, identity, DEFAULT)
    assert words in reason
    assert "broker 1 did not come up" in reason
    assert "CrashLoopBackOff, exit code 1: no" in reason
    assert effective.spec == BEFORE.spec
    # As they run now, nothing is to do any more, and the note stays.
    assert identity.at_version(effective.spec.version, effective.spec.image, DEFAULT) == identity


def test_another_change_is_tried_and_so_is_the_same_one_after_it_was_put_back() -> None:
    changed = cluster(image="headrace:bad")
    identity = failed(changed)
    assert as_it_ran(cluster(image="headrace:2"), identity, DEFAULT)[1] == ""
    assert as_it_ran(BEFORE, identity, DEFAULT) == (BEFORE, "")
    well = looked_at(BEFORE, identity)
    assert (well.image, well.failed) == ("headrace:1", None)
    assert as_it_ran(changed, well, DEFAULT) == (changed, "")


def test_a_spec_that_was_blamed_without_a_change_is_forgiven() -> None:
    (key,) = {each.key for each in [failed(cluster(image="headrace:bad")).failed] if each}
    blamed = msgspec.structs.replace(GOOD, failed=Failed(key=key, reason="listeners"))
    changed = cluster(image="headrace:bad")
    assert as_it_ran(changed, blamed, DEFAULT)[1] == "listeners"
    good = looked_at(changed, GOOD).good
    blamed = msgspec.structs.replace(blamed, good=good, image="headrace:bad", is_image_named=True)
    assert as_it_ran(changed, stored(blamed), DEFAULT) == (changed, "")
    assert looked_at(changed, stored(blamed)).failed is None


def test_numbers_of_brokers_and_live_settings_stay_as_they_are_wanted() -> None:
    identity = failed(cluster(image="headrace:bad"))
    config = {**CONFIG, "log.retention.ms": 5}
    pools = [{"name": "a", "replicas": 3}]
    found = cluster(pools, image="headrace:bad", config=config)
    effective, reason = as_it_ran(found, identity, DEFAULT)
    assert reason
    assert effective.spec.image is None
    assert effective.spec.pools[0].replicas == 3
    assert effective.spec.config == config


@pytest.mark.parametrize(
    "why",
    [
        "Unschedulable: 0/3 nodes are available",
        'FailedMount: MountVolume.SetUp failed for volume "keys" : secret "keys" not found',
        'FailedAttachVolume: Multi-Attach error for volume "pvc-1"',
        'FailedCreate: pods "c-a-0" is forbidden: exceeded quota: q, requested: pods=1',
    ],
)
def test_nodes_volumes_and_quotas_are_not_blamed_on_a_setting(why: str) -> None:
    assert failed(cluster(config={**CONFIG, "num.partitions": 3}), why).failed is None
    larger = [{"name": "a", "resources": {"requests": {"memory": "640Gi"}}}]
    assert failed(cluster(larger), why).failed is not None


def test_nothing_is_taken_back_too_soon_nor_without_a_change_nor_for_another_pod() -> None:
    changed = cluster(image="headrace:bad")
    assert failed(changed, is_stuck=False).failed is None
    assert failed(BEFORE).failed is None
    assert failed(changed, outdated=("image: a -> b",)).failed is None
    assert looked_at(changed, IDENTITY, failing="no", **DOWN).failed is None


def test_at_rest_the_same_is_noted_again_and_so_nothing_is_written() -> None:
    assert looked_at(BEFORE, GOOD) == stored(GOOD)


def test_services_of_a_spec_that_is_held_back_are_those_that_brokers_serve() -> None:
    changed = cluster(listeners=[{"name": "plain", "port": 9999}], config={"no.such": "1"})
    kept = with_listeners_kept(changed, GOOD)
    assert kept.spec.listeners == BEFORE.spec.listeners
    assert kept.spec.config == changed.spec.config
    assert with_listeners_kept(changed, IDENTITY) == with_listeners_kept(changed, None) == changed
