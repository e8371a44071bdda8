"""What must hold for any input: plans converge, and what validation accepts can be parsed."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_operator.plan import (
    AlterTopicConfig,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Observed,
    ObservedCluster,
    ObservedGroup,
    ObservedTopic,
    ReconfigureBroker,
    ResetOffsets,
    StartBroker,
    StopBroker,
    plan,
    status,
)
from headrace_operator.resources import parse_resource
from headrace_operator.validation import validate_object
from support.operator_resources import CONFIG, broker, cluster, desired, existing, group, topic

CASES = yaml.safe_load((Path(__file__).parent / "fixtures" / "cases.yaml").read_text())
NAMES = st.sampled_from(["a", "b", "c", "d"])
SETTINGS = st.dictionaries(
    st.sampled_from(["retention.ms", "segment.ms", "preallocate"]), st.integers(0, 3).map(str)
)
ROUNDS_MAX = 12


@st.composite
def topics(draw, name):
    return topic(
        name,
        topicName=draw(NAMES),
        partitions=draw(st.integers(1, 4)),
        replicas=draw(st.integers(1, 3)),
        config=draw(SETTINGS),
        unmanagedConfig=draw(st.lists(st.just("segment.ms"), max_size=1)),
        drift=draw(st.sampled_from(["Enforce", "Report", "Ignore"])),
        deletionPolicy=draw(st.sampled_from(["Retain", "Delete", "Protect"])),
    )


@st.composite
def worlds(draw):
    wanted_topics = [draw(topics(f"t{index}")) for index in range(draw(st.integers(0, 4)))]
    deleted = frozenset(each.key for each in wanted_topics if draw(st.booleans()))
    pools = [{"name": "p0", "replicas": draw(st.integers(1, 3))}]
    if draw(st.booleans()):
        pools.append({"name": "p1", "replicas": draw(st.integers(0, 2)), "roles": ["broker"]})
    shift = {"requestId": "r", "to": {"position": draw(st.sampled_from(["Earliest", "Latest"]))}}
    wanted = desired(
        *wanted_topics,
        cluster=cluster(pools, config={**CONFIG, **draw(SETTINGS)}),
        groups=(group(topics=["a"], reset=shift),),
        deleted=deleted,
    )
    seen = Observed(
        cluster=ObservedCluster(
            brokers=tuple(
                broker(
                    node_id,
                    draw(st.sampled_from(["p0", "p1", "gone"])),
                    is_running=draw(st.booleans()),
                    config=draw(SETTINGS),
                    roles=("broker",),
                )
                for node_id in draw(st.sets(st.integers(1, 6), max_size=4))
            )
        ),
        topics={
            name: ObservedTopic(
                partitions=draw(st.integers(1, 4)), replicas=1, config=draw(SETTINGS)
            )
            for name in draw(st.sets(NAMES))
        },
    )
    return seen, wanted


def perform(seen, action):
    """Do to the observation what the brokers and the backend would do."""
    brokers = {each.node_id: each for each in seen.cluster.brokers}
    found = dict(seen.topics)
    match action:
        case StartBroker() | ReconfigureBroker():
            brokers[action.node_id] = broker(
                action.node_id,
                action.pool,
                config=action.config,
                roles=getattr(action, "roles", ("broker",)),
            )
        case StopBroker():
            del brokers[action.node_id]
        case CreateTopic():
            found[action.topic] = ObservedTopic(
                partitions=action.partitions, replicas=action.replicas, config=action.config
            )
        case CreatePartitions():
            found[action.topic] = replace(found[action.topic], partitions=action.partitions)
        case AlterTopicConfig():
            kept = {**found[action.topic].config, **action.set}
            config = {key: value for key, value in kept.items() if key not in action.delete}
            found[action.topic] = replace(found[action.topic], config=config)
        case DeleteTopic():
            del found[action.topic]
        case ResetOffsets():
            pass
        case _:
            raise AssertionError(action)
    bounds = {("a", index): 0 for index in range(found["a"].partitions)} if "a" in found else {}
    return replace(
        seen,
        cluster=replace(seen.cluster, brokers=tuple(brokers.values())),
        topics=found,
        groups={"g": ObservedGroup(state="Empty", start_offsets=bounds, end_offsets=bounds)},
    )


@given(world=worlds())
@settings(max_examples=150, deadline=None)
def test_performing_plans_ends_with_nothing_to_do(world):
    seen, wanted = world
    for _ in range(ROUNDS_MAX):
        planned = plan(seen, wanted)
        assert plan(seen, wanted) == planned  # the same input, the same plan
        # A reset is remembered in the status, which this world does not write.
        actions = [each for each in planned.actions if not isinstance(each, ResetOffsets)]
        if not actions:
            break
        for action in actions:
            assert action.describe()
            seen = perform(seen, action)
    else:
        raise AssertionError(f"not converged:\n{planned.describe()}")
    node_ids = [each.node_id for each in seen.cluster.brokers if each.is_running]
    assert len(node_ids) == sum(pool.replicas for pool in wanted.cluster.spec.pools)
    for conditions in status(seen, wanted, planned).values():
        verdicts = {str(each.type): each.status for each in conditions}
        assert verdicts["Ready"] == "False" or verdicts["Stalled"] == "False"


@given(world=worlds())
@settings(max_examples=100, deadline=None)
def test_no_plan_loses_data_that_nobody_asked_to_lose(world):
    seen, wanted = world
    for action in plan(seen, wanted).actions:
        if isinstance(action, DeleteTopic):
            (owner,) = [each for each in wanted.topics if each.key == action.resource]
            assert owner.key in wanted.deleted
            assert owner.spec.deletion_policy == "Delete"
        if isinstance(action, CreatePartitions):
            assert action.partitions > seen.topics[action.topic].partitions


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            yield from paths(item, (*path, key))
        else:
            yield (*path, key)


@st.composite
def mutants(draw):
    """An object of the cases with one part replaced by anything."""
    case = draw(st.sampled_from([case for case in CASES if case.get("spec")]))
    spec = copy.deepcopy(case["spec"])
    path = draw(st.sampled_from(list(paths(spec))))
    replacement = draw(JSON)
    if not path:
        spec = replacement
    else:
        target = spec
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = replacement
    return {
        "apiVersion": "headrace.dev/v1beta1",
        "kind": case["kind"],
        "metadata": {"name": "x"},
        "spec": spec,
    }


def without_nulls(value):
    # The API server prunes them before anybody parses the object.
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


@given(value=mutants())
@settings(max_examples=250, deadline=None)
def test_validation_never_fails_and_what_it_accepts_is_parsed(value):
    if not validate_object(value):
        resource = parse_resource(without_nulls(value))
        json.dumps(resource.document)


def test_a_deleted_topic_that_another_resource_describes_is_not_deleted():
    going = topic("going", topicName="t", deletionPolicy="Delete")
    wanted = desired(going, topic("t"), deleted=frozenset({going.key}))
    seen = Observed(
        cluster=ObservedCluster(brokers=(broker(),)), topics={"t": existing()}, groups={}
    )
    assert not plan(seen, wanted).actions
