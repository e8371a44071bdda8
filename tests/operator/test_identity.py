"""What is settled of a Cluster's brokers, and what of it follows the spec."""

import datetime as dt
import json
from types import SimpleNamespace
from uuid import UUID

import msgspec
import pytest

from headrace_operator.kubernetes.brokers.observed import Seen, observed_broker
from headrace_operator.kubernetes.brokers.passes import BrokersPass
from headrace_operator.kubernetes.brokers.storage import have_templates_changed
from headrace_operator.plan import Observed, ObservedCluster, ObservedQuorum
from headrace_operator.plan.brokers import target_of
from headrace_operator.plan.model import ObservedReplica
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import pod_name
from headrace_operator.render.pods import INPUTS_ANNOTATION, pool_inputs, render_pool
from support.operator_resources import broker, cluster

NODE = Node(node_id=1, pool="a", ordinal=0)
IDENTITY = Identity(cluster_id="id", image="headrace:1", version="4.2", nodes=(NODE,))

PATCHED = f"registry.example/team/headrace@sha256:{'a' * 64}"

NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def test_the_image_follows_the_wanted_version_and_not_the_operators_own():
    assert IDENTITY.at_version("4.2", None, "headrace:2") == IDENTITY
    changed = IDENTITY.at_version("4.3", None, "headrace:2")
    assert (changed.version, changed.image, changed.nodes) == ("4.3", "headrace:2", (NODE,))


def test_an_image_that_the_spec_names_is_taken_at_once_and_left_with_its_name():
    named = IDENTITY.at_version("4.2", PATCHED, "headrace:2")
    assert (named.image, named.version) == (PATCHED, "4.2")
    assert named.at_version("4.2", PATCHED, "headrace:3") == named
    assert named.at_version("4.2", None, "headrace:3").image == "headrace:3"


def test_an_image_and_pull_secrets_are_what_pods_are_made_of():
    secrets = [{"name": "registry"}, {"name": "mirror"}]
    found = cluster(image=PATCHED, imagePullSecrets=secrets)
    identity = IDENTITY.at_version("4.2", found.spec.image, "headrace:2")
    template = render_pool(found, identity, found.spec.pools[0])["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == PATCHED
    assert template["spec"]["imagePullSecrets"] == secrets
    inputs = json.loads(template["metadata"]["annotations"][INPUTS_ANNOTATION])
    assert (inputs["image"], inputs["imagePullSecrets"]) == (PATCHED, "registry,mirror")


def test_a_pod_from_before_there_were_pull_secrets_is_left_alone():
    found = cluster(imagePullSecrets=[{"name": "registry"}])
    inputs = pool_inputs(found, IDENTITY, found.spec.pools[0])
    del inputs["imagePullSecrets"]
    pod = {
        "metadata": {"uid": "u", "annotations": {INPUTS_ANNOTATION: json.dumps(inputs)}},
        "status": {},
    }
    seen = Seen(now=NOW, stateful_sets={}, pods={pod_name(found, NODE): pod}, services={})
    assert observed_broker(found, IDENTITY, NODE, seen).outdated == ()


def test_an_approval_is_of_one_image():
    assert target_of(cluster(image="headrace:1")) != target_of(cluster(image="headrace:2"))
    assert target_of(cluster(image="headrace:1")) != target_of(cluster())


def test_a_pod_of_the_former_version_is_outdated_as_soon_as_another_one_is_wanted():
    found = cluster()
    inputs = pool_inputs(found, IDENTITY, found.spec.pools[0])
    annotations = {INPUTS_ANNOTATION: json.dumps(inputs)}
    pod = {"metadata": {"name": "p", "uid": "u", "annotations": annotations}, "status": {}}
    seen = Seen(now=NOW, stateful_sets={}, pods={pod_name(found, NODE): pod}, services={})

    def outdated(version):
        identity = IDENTITY.at_version(version, None, "headrace:2")
        return observed_broker(found, identity, NODE, seen).outdated

    assert outdated("4.2") == ()
    assert outdated("4.3") == ("image: headrace:1 -> headrace:2",)


def test_nothing_that_nobody_owns_says_to_be_of_an_instance():
    """Argo CD prunes what does and is not in Git; a set gives its claims what it selects by."""
    found = cluster()
    spec = render_pool(found, IDENTITY, found.spec.pools[0])["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    instance = "app.kubernetes.io/instance"
    assert instance not in claim["metadata"]["labels"] | spec["selector"]["matchLabels"]
    assert spec["template"]["metadata"]["labels"][instance] == "c"
    former = json.loads(json.dumps({"spec": spec}))
    assert not have_templates_changed(former, {"spec": spec})
    former["spec"]["selector"]["matchLabels"][instance] = "c"
    assert have_templates_changed(former, {"spec": spec})


def test_a_broker_that_has_other_volumes_than_it_served_from_lost_its_disk():
    found = cluster()
    identity = msgspec.structs.replace(IDENTITY, disks={"1": ("old",)})

    def is_lost(*claims, identity=identity):
        claims_by_pod = {pod_name(found, NODE): claims}
        seen = Seen(now=NOW, stateful_sets={}, pods={}, services={}, claims=claims_by_pod)
        return observed_broker(found, identity, NODE, seen).is_disk_lost

    assert [is_lost("old"), is_lost("old", "more"), is_lost("new"), is_lost()] == [0, 0, 1, 1]
    # What it served from was never noted: nobody can say.
    assert not is_lost("new", identity=IDENTITY)


@pytest.mark.parametrize(("created", "disks"), [("12:00:29", ("new",)), ("12:00:52", ("old",))])
def test_a_claim_that_came_after_a_broker_was_asked_is_not_what_it_served_from(created, disks):
    """Its volume went in that moment: the loss of a quorum would never be said."""
    found = cluster()
    before = msgspec.structs.replace(IDENTITY, is_formed=True, disks={"1": ("old",)})
    asked = broker(is_registered=True, is_ready=True)
    seen = Observed(
        cluster=ObservedCluster(quorum=ObservedQuorum(leader_id=1, voters=()), brokers=(asked,))
    )
    claim = {"metadata": {"uid": "new", "creationTimestamp": f"2026-01-31T{created}Z"}}
    pod = {
        "metadata": {"name": pod_name(found, NODE)},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": {"running": {"startedAt": "2026-01-31T12:00:30Z"}}}],
        },
    }
    tools = SimpleNamespace(identities=SimpleNamespace(claims_of=lambda *_: [claim]))
    made = BrokersPass(tools, found, before, "i", pods={pod_name(found, NODE): pod})
    assert made._settled(seen).disks == {"1": disks}


def test_who_votes_is_remembered_for_when_nobody_can_be_asked():
    nodes = tuple(Node(node_id=number, pool="a", ordinal=number - 1) for number in (1, 2))
    before = msgspec.structs.replace(IDENTITY, nodes=nodes, is_formed=True)
    found = cluster([{"name": "a", "replicas": 2}])
    voter = ObservedReplica(node_id=2, directory_id=UUID(int=1))
    quorum = ObservedQuorum(leader_id=2, voters=(voter,))
    led = Observed(cluster=ObservedCluster(quorum=quorum))
    tools = SimpleNamespace(identities=SimpleNamespace(claims_of=lambda *_: []))
    identity = BrokersPass(tools, found, before, "i", pods={})._settled(led)
    silent = Observed(cluster=ObservedCluster(is_reachable=False))
    identity = BrokersPass(tools, found, identity, "i", pods={})._settled(silent)
    assert identity.voters == (2,)
    seen = Seen(now=NOW, stateful_sets={}, pods={}, services={})
    assert [observed_broker(found, identity, each, seen).is_voter for each in nodes] == [0, 1]
    assert observed_broker(found, before, nodes[0], seen).is_voter is None
