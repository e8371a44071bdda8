from dataclasses import replace

from headrace_operator.plan import NodeLoss, Observed, ObservedCluster, Problem, plan, status
from headrace_operator.resources import Reason
from headrace_operator.resources.manifests import parse_resource
from support.operator_resources import broker, cluster, desired, existing, observed, topic

NOW = "2026-01-31T12:00:00Z"
LATER = "2026-01-31T13:00:00Z"


def conditions(seen, wanted, key, now=NOW):
    found = status(seen, wanted, plan(seen, wanted), now=now)[key]
    return {str(each.type): each for each in found}


def verdicts(seen, wanted, key):
    return {kind: each.status for kind, each in conditions(seen, wanted, key).items()}


READY = {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
IN_PROGRESS = {"Ready": "False", "Reconciling": "True", "Stalled": "False"}
STALLED = {"Ready": "False", "Reconciling": "False", "Stalled": "True"}


def test_conditions_say_ready_in_progress_or_stalled():
    wanted = topic(partitions=2)
    assert verdicts(observed(topics={"t": existing(2)}), desired(wanted), wanted.key) == READY
    assert verdicts(observed(), desired(wanted), wanted.key) == IN_PROGRESS
    assert verdicts(observed(topics={"t": existing(3)}), desired(wanted), wanted.key) == STALLED


def test_what_is_stalled_is_not_in_progress_whatever_is_left_to_do():
    # kstatus looks at the first of both that is true, and Flux waits for what never comes.
    wanted = desired(cluster=cluster([{"name": "a", "replicas": 2}]))
    seen, key = observed(broker(1)), wanted.cluster.key
    planned = plan(seen, wanted)
    assert planned.actions
    refused = Problem(resource=key, reason=Reason.APPLY_FAILED, message="no")
    found = status(seen, wanted, replace(planned, problems=(refused,)), now=NOW)[key]
    assert {str(each.type): each.status for each in found} == STALLED


def test_a_waiting_resource_says_what_it_waits_for():
    wanted = topic()
    ready = conditions(Observed(), desired(wanted), wanted.key)["Ready"]
    assert (ready.status, ready.reason) == ("False", Reason.WAITING_FOR_CLUSTER)


def test_an_action_that_waits_for_something_says_for_what():
    wanted = desired(cluster=cluster([{"name": "a", "replicas": 2}]))
    seen = observed(broker(1))
    waits = replace(seen.cluster, pending=("Service c-a-1 has no address yet",))
    found = conditions(replace(seen, cluster=waits), wanted, wanted.cluster.key)["Ready"]
    assert found.status == "False"
    assert "+ broker 2" in found.message
    assert found.message.endswith("Service c-a-1 has no address yet")
    # Rather than for its turn.
    outdated = tuple(broker(each, outdated=("listeners changed",)) for each in (1, 2))
    rolling = replace(seen, cluster=replace(waits, brokers=outdated))
    found = conditions(rolling, wanted, wanted.cluster.key)["Ready"]
    assert found.message.endswith("listeners changed; Service c-a-1 has no address yet")


def test_a_partition_without_a_leader_is_not_ready_and_nobody_is_asked_to_act():
    wanted = topic()
    offline = existing().__class__(partitions=1, replicas=1, offline=(0,))
    found = conditions(observed(topics={"t": offline}), desired(wanted), wanted.key)
    assert found["Ready"].reason == Reason.PARTITIONS_OFFLINE
    assert found["Stalled"].status == "False"


def test_a_lost_broker_makes_the_cluster_unready():
    wanted = desired(cluster=cluster([{"name": "a", "replicas": 2}]))
    seen = observed(broker(1), broker(2, is_registered=False))
    ready = conditions(seen, wanted, wanted.cluster.key)["Ready"]
    assert ready.message == "not registered: broker 2"


def test_a_cluster_that_cannot_start_is_not_idle_and_says_why():
    why = "CrashLoopBackOff, exit code 1: unknown setting"
    wanted = desired(cluster=cluster([{"name": "a", "replicas": 2}]))
    key = wanted.cluster.key
    down = [broker(each, is_registered=False, failing=why) for each in (1, 2)]
    found = conditions(observed(*down), wanted, key)
    assert found["Ready"].message.endswith(f"do not answer yet; broker 1, 2: {why}")
    assert {kind: each.status for kind, each in found.items()} == IN_PROGRESS
    stuck = [replace(each, is_stuck=True) for each in down]
    found = conditions(observed(*stuck), wanted, key)
    assert found["Stalled"].reason == Reason.BROKERS_FAILING
    assert {kind: each.status for kind, each in found.items()} == STALLED
    # While others serve, one that fails is said and nobody is called.
    half = observed(broker(1), stuck[1])
    found = conditions(half, wanted, key)
    assert why in found["Ready"].message
    assert found["Stalled"].status == "False"


def test_a_cluster_of_no_brokers_says_so():
    wanted = desired(cluster=cluster([{"name": "a", "replicas": 0}]))
    seen = observed(broker(1, is_registered=False))
    empty = replace(seen, cluster=replace(seen.cluster, brokers=()))
    ready = conditions(empty, wanted, wanted.cluster.key)["Ready"]
    assert "replicas: 0" in ready.message


def test_reported_drift_is_said_in_a_ready_condition():
    wanted = topic(drift="Report")
    seen = observed(topics={"t": existing(1, retention_ms="5")})
    ready = conditions(seen, desired(wanted), wanted.key)["Ready"]
    assert ready.status == "True"
    assert "retention.ms 5 -> default" in ready.message


def test_the_time_of_a_condition_changes_only_with_its_status():
    wanted = topic(metadata={"generation": 1})
    seen = observed(topics={"t": existing()})
    first = status(seen, desired(wanted), plan(seen, desired(wanted)), now=NOW)[wanted.key]
    document = {
        **wanted.document,
        "status": {
            "observedGeneration": 1,
            "conditions": [
                {
                    "type": each.type,
                    "status": each.status,
                    "reason": each.reason,
                    "lastTransitionTime": each.last_transition_time,
                }
                for each in first
            ],
        },
    }
    again = parse_resource(document)
    second = status(seen, desired(again), plan(seen, desired(again)), now=LATER)[again.key]
    assert second == first


def test_a_lost_quorum_needs_a_person_and_says_where_the_way_out_is():
    wanted = cluster([{"name": "a", "replicas": 3}])

    def stalled(*lost):
        brokers = tuple(
            broker(each, is_registered=False, is_ready=False, is_disk_lost=each in lost)
            for each in (1, 2, 3)
        )
        seen = Observed(cluster=ObservedCluster(brokers=brokers, is_reachable=False))
        return conditions(seen, desired(cluster=wanted), wanted.key)["Stalled"]

    assert (stalled(2, 3).status, stalled(2, 3).reason) == ("True", Reason.QUORUM_LOST)
    assert "broker 2, 3 lost its volumes" in stalled(2, 3).message
    assert stalled(3).status == "False"


def stalled_by_nodes(replicas, gone, away=(), voters=()):
    """Return Stalled where brokers' nodes, with their volumes, are gone or away."""
    brokers = tuple(
        broker(
            each,
            is_registered=False,
            is_ready=False,
            is_voter=each in voters if voters else None,
            loss=NodeLoss(machine=f"node{each}", volumes=("v",), reason="x", is_gone=each in gone)
            if each in (*gone, *away)
            else None,
        )
        for each in range(1, replicas + 1)
    )
    wanted = cluster([{"name": "a", "replicas": replicas}])
    seen = Observed(cluster=ObservedCluster(brokers=brokers, is_reachable=False))
    return conditions(seen, desired(cluster=wanted), wanted.key)["Stalled"]


def test_a_quorum_that_is_lost_with_nodes_whose_claims_are_there_still_needs_a_person():
    found = stalled_by_nodes(3, gone=(2, 3))
    assert (found.status, found.reason) == ("True", Reason.QUORUM_LOST)
    assert "broker 2 (with node node2), 3 (with node node3) lost its volumes" in found.message
    assert "When the metadata quorum is lost" in found.message
    # A node that is only not ready may come back.
    assert stalled_by_nodes(3, gone=(3,), away=(2,)).status == "False"


def test_only_who_votes_counts_for_the_quorum():
    assert stalled_by_nodes(5, gone=(1, 3), voters=(1, 2, 3)).reason == Reason.QUORUM_LOST
    assert stalled_by_nodes(5, gone=(1, 4, 5), voters=(1, 2, 3)).status == "False"
