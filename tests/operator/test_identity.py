"""What is settled of a Cluster's brokers, and what of it follows the spec."""

import json

from headrace_operator.kubernetes.brokers_observed import Seen, observed_broker
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import pod_name
from headrace_operator.render.pods import INPUTS_ANNOTATION, pool_inputs
from support.operator_resources import cluster

NODE = Node(node_id=1, pool="a", ordinal=0)
IDENTITY = Identity(cluster_id="id", image="headrace:1", version="4.2", nodes=(NODE,))


def test_the_image_follows_the_wanted_version_and_not_the_operators_own():
    assert IDENTITY.at_version("4.2", "headrace:2") == IDENTITY
    changed = IDENTITY.at_version("4.3", "headrace:2")
    assert (changed.version, changed.image, changed.nodes) == ("4.3", "headrace:2", (NODE,))


def test_a_pod_of_the_former_version_is_outdated_as_soon_as_another_one_is_wanted():
    found = cluster()
    inputs = pool_inputs(found, IDENTITY, found.spec.pools[0])
    annotations = {INPUTS_ANNOTATION: json.dumps(inputs)}
    pod = {"metadata": {"name": "p", "uid": "u", "annotations": annotations}, "status": {}}
    seen = Seen(stateful_sets={}, pods={pod_name(found, NODE): pod}, services={})

    def outdated(version):
        identity = IDENTITY.at_version(version, "headrace:2")
        return observed_broker(found, identity, NODE, seen).outdated

    assert outdated("4.2") == ()
    assert outdated("4.3") == ("image: headrace:1 -> headrace:2",)
