from dataclasses import replace

from headrace_operator.plan import Observed, plan, status
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
