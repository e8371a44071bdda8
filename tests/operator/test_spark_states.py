"""What becomes of a SparkApplication, from state to state, in the words of the published API."""

import copy
import datetime as dt
from dataclasses import replace

import pytest

from headrace_operator.kubernetes.spark.seen import State, timestamp
from headrace_operator.kubernetes.spark.states import (
    BACKOFF_SECONDS_MAX,
    LOST_SECONDS,
    STABLE_SECONDS,
    Decision,
    Step,
    decide,
    overdue_executors,
)
from headrace_operator.kubernetes.spark.status import render_status
from headrace_operator.render.spark_submission import EXECUTORS_ANNOTATION, SUBMISSION_LABEL
from support.spark_world import OURS, World, application

ALWAYS = {"type": "Always"}
NEVER = {"type": "Never"}


def on_failure(**policy):
    return {"type": "OnFailure", **policy}


def test_an_application_is_submitted_runs_and_completes():
    world = World().settle().runs(60).ends(0)
    assert world.states == ["SUBMITTED", "RUNNING", "COMPLETED"]
    assert world.status["executionAttempts"] == 1
    assert world.status["submissionAttempts"] == 1
    assert world.status["terminationTime"] == "2026-01-31T12:01:00Z"
    assert world.message == ""


def test_a_final_application_asks_for_nothing_more():
    world = World().settle().runs().ends(0)
    assert decide(world.seen()).step is Step.NOTHING
    assert world.again_seconds is None
    assert world.pass_seconds(3600).states[-1] == "COMPLETED"
    assert world.made == 1


def test_never_means_that_a_failure_is_the_end_and_says_why():
    world = World(restartPolicy=NEVER).settle().runs().ends(1, "ValueError: no topic")
    assert world.states[-1] == "FAILED"
    assert world.message == "driver failed (Error, exit status 1): ValueError: no topic"
    assert world.made == 1


def test_a_policy_that_is_not_given_is_never():
    assert World().settle().runs().ends(1).state == "FAILED"


def test_on_failure_does_not_run_again_what_completed():
    world = World(restartPolicy=on_failure(onFailureRetries=3)).settle().runs().ends(0)
    assert (world.state, world.made) == ("COMPLETED", 1)


def test_on_failure_retries_as_often_as_it_says_at_its_interval():
    policy = on_failure(onFailureRetries=2, onFailureRetryInterval=30)
    world = World(restartPolicy=policy).settle()
    for attempt in (1, 2):
        world.runs().ends(1)
        assert world.state == "PENDING_RERUN"
        assert world.status["executionAttempts"] == attempt
        assert world.pass_the_wait() == 30
        assert world.state == "SUBMITTED"
    world.runs().ends(1)
    assert (world.state, world.made) == ("FAILED", 3)
    assert world.status["executionAttempts"] == 3


@pytest.mark.parametrize("is_pod_there", [True, False])
def test_a_clock_that_is_set_back_delays_no_restart(*, is_pod_there):
    policy = on_failure(onFailureRetries=2, onFailureRetryInterval=30)
    world = World(restartPolicy=policy).settle().runs().ends(1)
    if not is_pod_there:
        world.loses_its_driver()
    world.now -= dt.timedelta(hours=1)
    assert decide(world.seen()).again_seconds == 30


def test_on_failure_without_retries_is_over_with_the_first_failure():
    assert World(restartPolicy=on_failure()).settle().runs().ends(1).state == "FAILED"


def test_the_older_names_of_retries_and_interval_count_too():
    world = World(restartPolicy=on_failure(), failureRetries=1, retryInterval=7).settle()
    world.runs().ends(1)
    assert world.pass_the_wait() == 7
    assert world.runs().ends(1).state == "FAILED"


def test_always_runs_again_at_once_what_completed():
    world = World(restartPolicy=ALWAYS).settle().runs().ends(0)
    assert world.states == ["SUBMITTED", "RUNNING", "PENDING_RERUN", "SUBMITTED"]
    assert (world.made, world.status["executionAttempts"]) == (2, 2)


def test_short_failures_one_after_the_other_wait_twice_as_long_each_time():
    world = World(restartPolicy=ALWAYS).settle()
    waits = []
    for _ in range(9):
        world.runs().ends(1)
        waits.append(world.pass_the_wait())
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, BACKOFF_SECONDS_MAX]
    assert world.made == 10


def test_the_pod_of_a_failed_driver_stays_until_its_turn_so_that_its_logs_can_be_read():
    world = World(restartPolicy=on_failure(onFailureRetries=1, onFailureRetryInterval=30)).settle()
    world.runs().ends(1)
    failed = world.driver
    assert failed is not None
    assert world.pass_seconds(29).driver is failed
    assert world.pass_seconds(1).driver is not failed


def test_failures_are_counted_in_the_status_while_the_next_driver_runs():
    world = World(restartPolicy=ALWAYS).settle().runs().ends(1)
    world.pass_the_wait()
    assert (world.state, world.status["failures"]) == ("SUBMITTED", 1)
    assert world.runs().status["failures"] == 1


def test_a_deleted_driver_counts_as_one_more_failure():
    world = World(restartPolicy=ALWAYS).settle().runs().ends(1)
    world.pass_the_wait()
    world.runs().loses_its_driver()
    assert (world.state, world.status["failures"]) == ("PENDING_RERUN", 2)
    assert world.message == "the driver's pod is gone"
    assert world.pass_the_wait() == 2
    assert (world.state, world.status["failures"]) == ("SUBMITTED", 2)


def test_a_driver_that_ran_for_long_is_run_again_at_once():
    world = World(restartPolicy=ALWAYS).settle().runs().ends(1)
    world.pass_the_wait()
    world.runs(STABLE_SECONDS).ends(1)
    assert (world.state, world.made) == ("SUBMITTED", 3)
    assert "failures" not in world.status
    world.runs(STABLE_SECONDS).loses_its_driver()
    assert (world.state, world.made) == ("SUBMITTED", 4)


def test_a_driver_that_vanishes_fails_an_application_that_is_never_run_again():
    world = World(restartPolicy=NEVER).settle().runs().loses_its_driver()
    assert (world.state, world.message) == ("FAILED", "the driver's pod is gone")


def test_a_refused_submission_is_tried_again_as_often_as_the_policy_says():
    policy = on_failure(onSubmissionFailureRetries=2, onSubmissionFailureRetryInterval=10)
    world = World(restartPolicy=policy)
    world.refusals = 3
    world.settle()
    assert (world.state, world.message) == ("SUBMISSION_FAILED", "no quota")
    assert world.pass_the_wait() == 10
    assert world.status["submissionAttempts"] == 2
    assert world.pass_the_wait() == 20
    assert (world.state, world.made) == ("FAILED", 0)
    assert world.status["submissionAttempts"] == 3


def test_a_submission_that_succeeds_starts_the_count_again():
    policy = on_failure(onFailureRetries=5, onSubmissionFailureRetries=1)
    world = World(restartPolicy=policy)
    world.refusals = 1
    world.settle()
    world.pass_the_wait()
    assert (world.state, world.status["executionAttempts"]) == ("SUBMITTED", 1)
    world.refusals = 1
    world.runs().ends(1)
    world.pass_the_wait()
    assert (world.state, world.status["submissionAttempts"]) == ("SUBMISSION_FAILED", 1)
    assert world.status["failures"] == 1
    world.pass_the_wait()
    assert (world.state, world.status["executionAttempts"]) == ("SUBMITTED", 2)
    assert world.status["failures"] == 1


def test_a_refused_submission_is_the_end_where_nothing_is_run_again():
    world = World(restartPolicy=NEVER)
    world.refusals = 1
    assert world.settle().state == "FAILED"


def test_suspend_stops_the_driver_and_resume_begins_a_new_run():
    world = World(restartPolicy=ALWAYS).settle().runs().ends(1)
    world.pass_the_wait()
    world.runs().edit(suspend=True)
    assert world.driver is None
    assert world.states[-2:] == ["SUSPENDING", "SUSPENDED"]
    world.edit(suspend=False)
    assert (world.state, world.status["executionAttempts"]) == ("SUBMITTED", 1)
    assert "failures" not in world.status


def test_a_driver_that_stops_in_grace_is_waited_for():
    world = World(restartPolicy=ALWAYS).settle().runs()
    assert world.application is not None
    assert world.driver is not None
    world.driver["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:45Z"
    world.edit(suspend=True)
    assert (world.state, decide(world.seen()).step) == ("SUSPENDING", Step.NOTHING)
    world.driver["status"] = {"phase": "Succeeded"}
    assert decide(world.seen()).state is State.SUSPENDING
    assert world.loses_its_driver().state == "SUSPENDED"


def test_an_application_that_is_made_suspended_waits():
    world = World(suspend=True).settle()
    assert (world.state, world.made) == ("SUSPENDED", 0)
    assert world.edit(suspend=False).state == "SUBMITTED"


def test_suspending_what_is_finished_leaves_it_finished():
    world = World().settle().runs().ends(0)
    assert world.edit(suspend=True).state == "COMPLETED"


def test_a_driver_that_was_done_before_it_was_suspended_has_completed():
    world = World().settle().runs()
    assert world.driver is not None
    world.driver["status"] = {"phase": "Succeeded"}
    assert world.edit(suspend=True).state == "COMPLETED"


def test_a_changed_spec_stops_the_driver_and_begins_a_new_run():
    world = World(restartPolicy=ALWAYS).settle().runs().ends(1)
    world.pass_the_wait()
    world.runs().edit(arguments=["--window", "20s"])
    assert world.states[-2:] == ["INVALIDATING", "SUBMITTED"]
    assert world.status["executionAttempts"] == 1
    assert "failures" not in world.status


@pytest.mark.parametrize(
    "change",
    [
        {"timeToLiveSeconds": 3600},
        {"restartPolicy": ALWAYS},
        {"failureRetries": 3},
        {"executor": {"cores": 1, "memory": "512m", "instances": 4}},
    ],
)
def test_what_needs_no_new_driver_leaves_it_alone(change):
    world = World().settle().runs()
    driver = world.driver
    assert world.edit(**change).driver is driver
    assert world.state == "RUNNING"


def test_what_failed_for_good_is_run_again_when_its_spec_is_corrected():
    world = World(restartPolicy=NEVER).settle().runs().ends(1)
    assert world.edit(arguments=["--right"]).state == "SUBMITTED"
    world.runs().ends(1)
    world.loses_its_driver()
    assert world.edit(timeToLiveSeconds=3600).state == "FAILED"
    assert world.edit(arguments=["--better"]).state == "SUBMITTED"


def test_other_executors_are_written_where_the_driver_reads_them():
    world = World().settle().runs()
    assert world.driver is not None
    world.edit(executor={"cores": 1, "memory": "512m", "instances": 5})
    assert world.driver["metadata"]["annotations"][EXECUTORS_ANNOTATION] == "5"


def test_a_job_that_is_not_ours_is_started_again_to_get_other_executors():
    world = World(mainApplicationFile="local:///opt/other.py").settle().runs()
    world.edit(executor={"cores": 1, "memory": "512m", "instances": 5})
    assert (world.states[-2:], world.made) == (["INVALIDATING", "SUBMITTED"], 2)


def test_where_spark_allocates_executors_nobody_else_does():
    world = World(dynamicAllocation={"enabled": True, "maxExecutors": 9}).settle().runs()
    driver = copy.deepcopy(world.driver)
    world.edit(executor={"cores": 1, "memory": "512m", "instances": 5})
    assert world.driver == driver


def test_time_to_live_deletes_what_is_finished_and_nothing_before():
    world = World(timeToLiveSeconds=100).settle().runs(500).ends(0)
    assert world.again_seconds == 100
    assert world.pass_seconds(99).application is not None
    assert world.pass_seconds(1).application is None


def test_time_to_live_counts_from_the_end_also_when_the_pod_is_gone():
    world = World(timeToLiveSeconds=100).settle().runs().ends(1)
    assert world.pass_seconds(60).loses_its_driver().state == "FAILED"
    assert world.again_seconds == 40
    world.pass_the_wait()
    assert world.application is None


def test_an_evicted_driver_ended_when_that_was_noticed():
    world = World(restartPolicy=NEVER, timeToLiveSeconds=100).settle().runs(3600)
    assert world.driver is not None
    world.driver["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    world.settle()
    assert world.message == "driver failed (Evicted): low on memory"
    assert world.again_seconds == 100


def test_a_driver_that_cannot_start_says_why():
    world = World().settle()
    assert world.driver is not None
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    world.driver["status"] = {
        "phase": "Pending",
        "conditions": [{**condition, "message": "0/3 nodes are available"}],
    }
    world.settle()
    assert world.state == "SUBMITTED"
    assert world.message == "driver waits (Unschedulable): 0/3 nodes are available"


def test_an_image_that_cannot_be_had_is_named():
    world = World().settle()
    assert world.driver is not None
    name = world.driver["spec"]["containers"][0]["name"]
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    world.driver["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": name, "state": {"waiting": waiting}}],
    }
    assert world.settle().message == "driver waits (ImagePullBackOff): not found"


def test_a_pod_of_something_else_is_waited_for_and_not_touched():
    world = World().settle().runs()
    assert world.driver is not None
    world.driver["metadata"]["ownerReferences"][0]["uid"] = "an older application"
    world.application = application()
    found = decide(world.seen())
    assert (found.state, found.step) == (State.NEW, Step.NOTHING)
    assert found.again_seconds is not None
    assert "job-driver" in found.message


def executor(name, submission_id, phase, **metadata):
    labels = {SUBMISSION_LABEL: submission_id}
    return {"metadata": {"name": name, "labels": labels, **metadata}, "status": {"phase": phase}}


def test_only_executors_of_this_submission_are_listed():
    world = World().settle().runs()
    mine = world.status["submissionID"]
    world.executors = [
        executor("old-exec-1", "another", "Running"),
        executor("new-exec-1", mine, "Running"),
        executor("new-exec-2", mine, "Pending"),
        executor("new-exec-3", mine, "Running", deletionTimestamp="2026-01-31T12:00:00Z"),
    ]
    world.settle()
    assert world.status["executorState"] == {"new-exec-1": "RUNNING", "new-exec-2": "PENDING"}
    assert world.status["executors"] == 1


def test_a_status_that_nothing_changed_is_the_same_again():
    world = World().settle().runs()
    for seconds in (1, 100, 100_000):
        before = copy.deepcopy(world.status)
        assert world.pass_seconds(seconds).status == before


def test_a_crd_that_drops_our_fields_loses_no_driver_and_no_run():
    world = World(restartPolicy=on_failure(onFailureRetries=1)).settle().runs()
    ours = {"fingerprint", "failures", "executors", "observedGeneration"}
    assert world.application is not None
    world.application["status"] = {k: v for k, v in world.status.items() if k not in ours}
    seen = world.seen()
    assert decide(seen).step is Step.NOTHING
    assert world.edit(arguments=["--new"]).states[-2:] == ["INVALIDATING", "SUBMITTED"]


def test_a_state_of_another_controller_is_taken_for_new():
    manifest = application()
    manifest["status"] = {"applicationState": {"state": "SUCCEEDING"}}
    world = World()
    world.application = manifest
    assert world.settle().state == "SUBMITTED"


def test_no_message_is_longer_than_a_status_should_hold():
    world = World(restartPolicy=NEVER).settle().runs().ends(1, "x" * 5000)
    assert len(world.message) < 600
    seen = world.seen()
    long = render_status(seen, decide(seen).__class__(state=State.FAILED, message="y" * 5000))
    assert len(long["applicationState"]["errorMessage"]) == 1000


def test_the_example_is_one_of_our_jobs():
    assert application()["spec"]["mainApplicationFile"] == OURS


def test_a_driver_on_a_lost_node_is_taken_for_gone_in_the_end():
    world = World(restartPolicy=ALWAYS).settle().runs(LOST_SECONDS)
    assert world.driver is not None
    world.driver["metadata"]["deletionTimestamp"] = timestamp(world.now)
    # While its node answers, whoever ends it there says so.
    world.pass_seconds(10 * LOST_SECONDS)
    assert (world.made, world.again_seconds) == (1, LOST_SECONDS)
    lost = decide(replace(world.seen(), is_node_lost=True))
    assert lost.step is Step.REMOVE
    assert "node does not answer" in lost.message
    # A node that was lost a moment ago may be back in the next.
    early = replace(world.seen(), is_node_lost=True, now=world.now - dt.timedelta(seconds=290))
    assert decide(early).step is Step.NOTHING
    world.loses_its_driver().pass_the_wait()
    assert (world.made, world.state) == (2, "SUBMITTED")


def test_an_executor_on_a_lost_node_is_overdue_once_its_grace_is_long_over():
    world = World().settle().runs()
    pods = [{"metadata": {"name": name}, "spec": {"nodeName": "n"}} for name in ("stays", "goes")]
    world.executors = pods
    assert overdue_executors(world.seen()) == []
    # Kubernetes writes here when the grace period ends.
    pods[1]["metadata"]["deletionTimestamp"] = timestamp(world.now + dt.timedelta(seconds=30))
    early = replace(world.seen(), now=world.now + dt.timedelta(seconds=29 + LOST_SECONDS))
    assert overdue_executors(early) == []
    late = replace(world.seen(), now=world.now + dt.timedelta(seconds=30 + LOST_SECONDS))
    assert overdue_executors(late) == [pods[1]]


def test_a_refused_application_goes_on_once_it_is_corrected_in_whatever_field():
    for spec in ({}, {"suspend": False}, {"arguments": ["--other"]}):
        world = World()
        assert world.application is not None
        refused = Decision(state=State.FAILED, message="spec.restartPolicy.recovery: no")
        status = render_status(world.seen(), refused)
        # A published CRD drops the fingerprint.
        status.pop("fingerprint" if not spec else "", None)
        world.application = {**world.application, "status": status}
        assert world.edit(**spec).state == "SUBMITTED"


def test_an_application_that_failed_is_not_refused():
    world = World().settle().runs().ends(1)
    world.driver = None
    assert world.settle().state == "FAILED"
