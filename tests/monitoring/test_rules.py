"""Alerts fire when they should and are quiet otherwise, by `promtool test rules`.

A case is series in promtool's notation (`0x5 1x20`: six times 0, twenty-one times 1, a minute
apart), when the alert must be quiet, and when it must fire.
"""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.monitoring import every_rule, program, rule_files, rule_groups, write_rules

DOCS = Path(__file__).parents[2] / "docs" / "monitoring.md"
AT = 'namespace="prod", headrace_cluster="main"'
OF = f'{AT}, consumergroup="g", topic="t"'
JOB = 'namespace="prod", job="j", query="q"'
CLUSTER = {"namespace": "prod", "headrace_cluster": "main"}
GROUP = {**CLUSTER, "consumergroup": "g", "topic": "t"}
QUERY = {"namespace": "prod", "job": "j", "query": "q"}
POD = {**CLUSTER, "pod": "main-0", "log_directory": "/data"}
POD_AT = f'{AT}, pod="main-0", log_directory="/data"'


class Case(NamedTuple):
    """One alert: its series, its labels, the minutes at which it is quiet and at which it fires."""

    alert: str
    severity: str
    labels: dict[str, str]
    series: dict[str, str]
    quiet: list[int]
    fires: list[int]


def broker(name: str) -> str:
    return f"headrace_broker_{name}{{{AT}}}"


def produce_series(errors: str, requests: str) -> dict[str, str]:
    return {
        f'headrace_broker_requests_total{{{AT}, api="Produce"}}': requests,
        f'headrace_broker_request_errors_total{{{AT}, api="Produce", error="REQUEST_TIMED_OUT"}}': (
            errors
        ),
    }


def slow_series(fast: str, every: str) -> dict[str, str]:
    name, of = "headrace_broker_request_duration_seconds", f'{AT}, api="Produce"'
    return {
        f'{name}_bucket{{{of}, le="0.5"}}': fast,
        f"{name}_count{{{of}}}": every,
        f"headrace_broker_requests_total{{{of}}}": every,
    }


def group_series(lag: str, committed: str, commits: str) -> dict[str, str]:
    return {
        f"kafka_consumergroup_lag_sum{{{OF}}}": lag,
        f"kafka_consumergroup_current_offset_sum{{{OF}}}": committed,
        f"headrace_consumergroup_last_commit_timestamp_seconds{{{OF}}}": commits,
    }


DAY = 24 * 60
CASES = [
    Case(
        "HeadraceOfflinePartitions",
        "critical",
        CLUSTER,
        {f"headrace_cluster_offline_partitions{{{AT}}}": "0x5 2x10"},
        [4, 6],
        [8],
    ),
    Case(
        "HeadraceUnderMinIsr",
        "critical",
        CLUSTER,
        {broker("under_min_isr_partitions"): "0x5 1x10"},
        [4, 6],
        [8],
    ),
    Case(
        "HeadraceUnderReplicated",
        "warning",
        CLUSTER,
        {broker("under_replicated_partitions"): "0x5 3x30"},
        [4, 12],
        [18],
    ),
    Case(
        "HeadraceControllerCount",
        "critical",
        CLUSTER,
        {
            f'headrace_broker_active_controller{{{AT}, pod="a"}}': "1x5 0x10",
            f'headrace_broker_active_controller{{{AT}, pod="b"}}': "0x15",
        },
        [5, 7],
        [9],
    ),
    Case(
        "HeadraceBrokerFenced",
        "warning",
        CLUSTER,
        {f"headrace_cluster_brokers_fenced{{{AT}}}": "0x5 1x20"},
        [4, 9],
        [12],
    ),
    Case(
        "HeadraceBrokerNotScraped",
        "warning",
        CLUSTER,
        {
            f"headrace_cluster_brokers_active{{{AT}}}": "2x40",
            f'headrace_broker_partitions{{{AT}, pod="a"}}': "5x40",
            f'headrace_broker_partitions{{{AT}, pod="b"}}': "5x5 _x35",
        },
        [4, 12],
        [25],
    ),
    Case(
        "HeadraceLogDirectoryOffline",
        "critical",
        POD,
        {f"headrace_broker_log_directory_online{{{POD_AT}}}": "1x5 0x10"},
        [5],
        [8],
    ),
    Case(
        "HeadraceDescriptorsRunOut",
        "critical",
        {**CLUSTER, "pod": "main-0"},
        {f'headrace_broker_descriptor_shortages_total{{{AT}, pod="main-0"}}': "0x5 5x20"},
        [5, 20],
        [7],
    ),
    Case(
        "HeadraceDiskAlmostFull",
        "critical",
        POD,
        {
            f"headrace_broker_disk_free_bytes{{{POD_AT}}}": "50x5 5x10",
            f"headrace_broker_disk_total_bytes{{{POD_AT}}}": "100x15",
        },
        [5, 9],
        [12],
    ),
    Case(
        "HeadraceDiskFullSoon",
        "warning",
        POD,
        {
            # 38,000 bytes of 100,000 are left, and 30 go each minute: 43,200 in a day.
            f"headrace_broker_disk_free_bytes{{{POD_AT}}}": "38000-30x120",
            f"headrace_broker_disk_total_bytes{{{POD_AT}}}": "100000x120",
        },
        [20],
        [60],
    ),
    Case(
        "HeadraceIsrFlapping",
        "warning",
        CLUSTER,
        {broker("isr_shrinks_total"): "0x10 0+2x60", broker("isr_expands_total"): "0x10 0+2x60"},
        [10, 20],
        [60],
    ),
    Case(
        "HeadraceUncleanLeaderElection",
        "critical",
        CLUSTER,
        {broker("unclean_leader_elections_total"): "0x5 1x40"},
        [5, 30],
        [8],
    ),
    Case(
        "HeadraceEventLoopSlow",
        "warning",
        CLUSTER,
        {broker("event_loop_delay_seconds"): "0.01x5 0.5x30"},
        [5, 12],
        [20],
    ),
    Case(
        "HeadraceSeriesOmitted",
        "info",
        {**CLUSTER, "kind": "groups"},
        {
            f'headrace_broker_metrics_omitted{{{AT}, kind="groups"}}': "0x5 7x100",
            f'headrace_broker_metrics_omitted{{{AT}, kind="partitions"}}': "900x105",
        },
        [5, 60],
        [70],
    ),
    Case(
        "HeadraceConsumerGroupStopped",
        "warning",
        GROUP,
        group_series("0x30 5+5x60", "1000x90", "1800x90"),
        [25, 38],
        [60],
    ),
    Case(
        "HeadraceConsumerGroupStalled",
        "warning",
        GROUP,
        group_series("0x30 5+5x60", "1000x90", "0+60x90"),
        [25, 38],
        [60],
    ),
    Case(
        "HeadraceConsumerGroupFallingBehind",
        "warning",
        GROUP,
        group_series("0x30 5+5x60", "0+100x90", "0+60x90"),
        [25, 45],
        [70],
    ),
    Case(
        "HeadraceConsumerGroupLagSeconds",
        "warning",
        GROUP,
        {f"kafka_consumergroup_group_lag_seconds{{{OF}}}": "60x5 1000x20"},
        [5, 9],
        [14],
    ),
    Case(
        "HeadraceConsumerGroupDrainSlow",
        "info",
        GROUP,
        # 60 records a minute, one a second, for 5,000 that wait.
        group_series("0x10 5000x60", "0+60x70", "0+60x70"),
        [10, 20],
        [40],
    ),
    Case(
        "HeadraceConsumerGroupNearRetention",
        "critical",
        GROUP,
        {
            f"kafka_consumergroup_group_lag_seconds{{{OF}}}": "700x5 850x20",
            f'headrace_topic_retention_seconds{{{AT}, topic="t"}}': "1000x25",
        },
        [5, 9],
        [14],
    ),
    Case(
        "HeadraceConsumerGroupRecordsExpired",
        "critical",
        GROUP,
        {f"headrace_consumergroup_expired_records{{{OF}}}": "0x5 12x5"},
        [5],
        [7],
    ),
    Case(
        "HeadraceShareGroupRecordsGivenUp",
        "warning",
        {**CLUSTER, "sharegroup": "g", "reason": "delivery_limit"},
        {
            f'headrace_sharegroup_archived_records_total{{{AT}, sharegroup="g",'
            ' reason="delivery_limit"}': "0x10 3x20",
            f'headrace_sharegroup_archived_records_total{{{AT}, sharegroup="g",'
            ' reason="rejected"}': "0+1x30",
        },
        [5, 10, 25],
        [12],
    ),
    Case(
        "HeadraceShareGroupDeadLettersLost",
        "critical",
        {**CLUSTER, "sharegroup": "g", "outcome": "lost"},
        {
            f'headrace_sharegroup_dead_letter_records_total{{{AT}, sharegroup="g",'
            ' outcome="lost"}': "0x10 3x20",
            f'headrace_sharegroup_dead_letter_records_total{{{AT}, sharegroup="g",'
            ' outcome="written"}': "0+1x30",
        },
        [5, 10, 25],
        [12],
    ),
    Case(
        "HeadraceShareGroupStopped",
        "warning",
        {**CLUSTER, "sharegroup": "g", "topic": "t"},
        {
            f'headrace_sharegroup_lag{{{AT}, sharegroup="g", topic="t"}}': "5x60",
            f'headrace_sharegroup_start_offset_sum{{{AT}, sharegroup="g", topic="t"}}': (
                "0+7x20 140x40"
            ),
        },
        [10, 20, 30],
        [40],
    ),
    Case(
        "HeadraceJobStopped",
        "critical",
        QUERY,
        {f"headrace_job_running{{{JOB}}}": "1x5 0x15"},
        [5, 9],
        [12],
    ),
    Case(
        "HeadraceJobNoProgress",
        "critical",
        QUERY,
        {
            f"headrace_job_running{{{JOB}}}": "1x40",
            f"headrace_job_last_progress_timestamp_seconds{{{JOB}}}": "0+60x10 600x30",
        },
        [10, 18],
        [25],
    ),
    Case(
        "HeadraceJobWatermarkStalled",
        "warning",
        QUERY,
        {
            f"headrace_job_watermark_timestamp_seconds{{{JOB}}}": "60+60x10 660x40",
            f"headrace_job_input_rows_total{{{JOB}}}": "0+10x50",
        },
        [10, 20],
        [40],
    ),
    Case(
        "HeadraceJobBatchSlow",
        "warning",
        QUERY,
        {f"headrace_job_trigger_delay_seconds{{{JOB}}}": "0x5 3x30"},
        [5, 14],
        [25],
    ),
    Case(
        "HeadraceJobOffsetCommitsFail",
        "warning",
        QUERY,
        {f"headrace_job_offset_commit_failures_total{{{JOB}}}": "0x10 1+1x10 11x40"},
        [10, 50],
        [18],
    ),
    Case(
        "HeadraceJobMalformedRecords",
        "warning",
        QUERY,
        {
            f"headrace_job_malformed_records_total{{{JOB}}}": "0x20 0+5x40",
            f"headrace_job_input_rows_total{{{JOB}}}": "0+100x60",
        },
        [20],
        [45],
    ),
    Case(
        "HeadraceJobLateRecords",
        "info",
        QUERY,
        {
            f"headrace_job_late_records_total{{{JOB}}}": "0x20 0+10x60",
            f"headrace_job_input_rows_total{{{JOB}}}": "0+100x80",
        },
        [20, 30],
        [70],
    ),
    Case(
        "HeadraceOperatorNoLeader",
        "critical",
        {},
        {'headrace_operator_leader{namespace="ops", pod="a"}': "1x5 0x20"},
        [5, 9],
        [13],
    ),
    Case(
        "HeadraceOperatorTwoLeaders",
        "critical",
        {"namespace": "ops"},
        {
            'headrace_operator_leader{namespace="ops", pod="a"}': "1x20",
            'headrace_operator_leader{namespace="ops", pod="b"}': "0x5 1x15",
        },
        [5, 7],
        [10],
    ),
    Case(
        "HeadraceOperatorReconcileErrors",
        "warning",
        {"namespace": "ops", "kind": "Cluster"},
        {
            'headrace_operator_reconciliations_total{namespace="ops", kind="Cluster", '
            'result="error"}': "0x10 0+1x60"
        },
        [10, 16],
        [40],
    ),
    Case(
        "HeadraceOperatorQueueStuck",
        "warning",
        {"namespace": "ops"},
        {'headrace_operator_queue_depth{namespace="ops"}': "0x5 50x30"},
        [5, 14],
        [25],
    ),
    Case(
        "HeadraceOperatorRunawayWrites",
        "warning",
        {"namespace": "ops", "kind": "Topic", "verb": "apply"},
        {
            'headrace_operator_kubernetes_writes_total{namespace="ops", kind="Topic", '
            'verb="apply", status="200"}': "0x10 0+120x60"
        },
        [10, 20],
        [50],
    ),
    Case(
        "HeadraceOperatorWatchStale",
        "warning",
        {"namespace": "ops", "kind": "Topic"},
        {'headrace_operator_watch_stale_seconds{namespace="ops", kind="Topic"}': "0x5 300x10"},
        [5, 7],
        [10],
    ),
    Case(
        "HeadraceResourceNotReady",
        "warning",
        {"namespace": "ops", "kind": "Topic", "reason": "ClusterNotFound"},
        {
            'headrace_operator_resources_not_ready{namespace="ops", kind="Topic", '
            'reason="ClusterNotFound"}': "0x5 2x30"
        },
        [5, 15],
        [25],
    ),
    # Burn rates: 2% of requests fail for an hour; 0.8% for six; 0.2% for three days.
    Case(
        "HeadraceProduceErrorsFastBurn",
        "critical",
        CLUSTER,
        produce_series("0x60 0+2x120", "0+100x180"),
        [60, 70],
        [130],
    ),
    Case(
        "HeadraceProduceErrorsSteadyBurn",
        "critical",
        CLUSTER,
        produce_series("0x60 0+8x600", "0+1000x660"),
        [60, 80],
        [500],
    ),
    Case(
        "HeadraceProduceErrorsSlowBurn",
        "warning",
        CLUSTER,
        produce_series(f"0x60 0+2x{3 * DAY}", f"0+1000x{3 * DAY + 60}"),
        [60],
        [3 * DAY],
    ),
    Case(
        "HeadraceProduceSlowFastBurn",
        "critical",
        CLUSTER,
        slow_series("0+100x60 6000+70x120", "0+100x180"),
        [60, 70],
        [130],
    ),
    Case(
        "HeadraceProduceSlowSteadyBurn",
        "critical",
        CLUSTER,
        slow_series("0+100x60 6000+92x600", "0+100x660"),
        [60, 80],
        [500],
    ),
    Case(
        "HeadraceProduceSlowSlowBurn",
        "warning",
        CLUSTER,
        slow_series(f"0+100x60 6000+98x{3 * DAY}", f"0+100x{3 * DAY + 60}"),
        [60],
        [3 * DAY],
    ),
]

# What must never fire, whatever else does.
SILENCES = [
    ("HeadraceProduceErrorsFastBurn", produce_series("0x60 0+1x60", "0+1x120"), [110]),
    ("HeadraceConsumerGroupStalled", group_series("0x60", "1000x60", "0x60"), [30, 50]),
    ("HeadraceConsumerGroupStopped", group_series("0x60", "1000x60", "0x60"), [30, 50]),
    # A saw: it works in batches, and catches up in between.
    (
        "HeadraceConsumerGroupFallingBehind",
        group_series(" ".join(["5+5x6 3"] * 8), "0+10x60", "0+60x60"),
        [40],
    ),
    # Seen for less than the window: no verdict yet.
    ("HeadraceConsumerGroupStalled", group_series("_x30 9x9", "_x30 5x9", "_x30 1800x9"), [38]),
]


def unit_test(alert: str, series: dict[str, str]) -> dict[str, Any]:
    return {
        "name": alert,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [],
    }


def run(directory: Path, tests: list[dict[str, Any]], *, interval: str, rules: str) -> str:
    """Run promtool's unit tests; return what it says of those that fail."""
    promtool = program("promtool", "prometheus")
    names = [path.name for path in write_rules(directory, has_annotations=False)]
    paths = [path for path in rule_files() if path.name.startswith(rules)]
    document = {
        "rule_files": [name for name in names if name.startswith(rules)],
        # Recordings before the alerts that rest on them; without it promtool's order is random.
        "group_eval_order": [group["name"] for path in paths for group in rule_groups(path)],
        "evaluation_interval": interval,
        "tests": tests,
    }
    path = directory / "tests.yaml"
    path.write_text(yaml.safe_dump(document))
    ran = subprocess.run(
        [promtool, "test", "rules", path.name],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def run_by_file(directory: Path, tests: list[dict[str, Any]], *, interval: str) -> str:
    """Run each test with the rules of its alert's own file: most of promtool's time is rules."""
    said = ""
    for path in rule_files():
        alerts = {rule.get("alert") for group in rule_groups(path) for rule in group["rules"]}
        own = [test for test in tests if test["name"] in alerts]
        if own:
            said += run(directory, own, interval=interval, rules=path.name)
    return said


def unit_tests(cases: list[Case]) -> list[dict[str, Any]]:
    tests = []
    for case in cases:
        test = unit_test(case.alert, case.series)
        expected = [{"exp_labels": {**case.labels, "severity": case.severity}}]
        for minutes, alerts in ((case.quiet, []), (case.fires, expected)):
            for minute in minutes:
                test["alert_rule_test"].append(
                    {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": alerts}
                )
        tests.append(test)
    return tests


def test_every_rule_is_valid(tmp_path: Path) -> None:
    promtool = program("promtool", "prometheus")
    files = [str(path) for path in write_rules(tmp_path)]
    checked = subprocess.run(
        [promtool, "check", "rules", *files], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_fires_when_it_should_and_is_quiet_before(tmp_path: Path) -> None:
    short = [case for case in CASES if not is_long(case)]
    assert run_by_file(tmp_path, unit_tests(short), interval="30s") == ""


def test_burn_rates_of_days_fire_when_they_should(tmp_path: Path) -> None:
    long = [case for case in CASES if is_long(case)]
    assert run(tmp_path, unit_tests(long), interval="10m", rules="rules-slo") == ""


def is_long(case: Case) -> bool:
    return max(case.fires) >= 500


def test_alerts_keep_silent_where_nothing_is_wrong(tmp_path: Path) -> None:
    tests = []
    for alert, series, minutes in SILENCES:
        test = unit_test(alert, series)
        for minute in minutes:
            test["alert_rule_test"].append({"eval_time": f"{minute}m", "alertname": alert})
        tests.append(test)
    assert run_by_file(tmp_path, tests, interval="30s") == ""


def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.alert == "HeadraceUnderMinIsr")
    wrong = case._replace(fires=case.quiet)
    assert "FAILED" in run(tmp_path, unit_tests([wrong]), interval="30s", rules="rules-")


def test_no_alert_is_without_a_case_a_severity_or_a_section_in_the_documentation() -> None:
    alerts = {rule["alert"]: rule for rule in every_rule() if "alert" in rule}
    assert alerts.keys() == {case.alert for case in CASES}
    headings = {
        re.sub(r"[^a-z0-9-]", "", line.lstrip("# ").lower())
        for line in DOCS.read_text().splitlines()
        if line.startswith("#")
    }
    for name, rule in alerts.items():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, name
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/monitoring.md", name
        assert anchor in headings, name


@pytest.mark.parametrize("rule", list(every_rule()), ids=lambda rule: rule.get("alert", ""))
def test_rules_need_no_series_of_single_partitions(rule: dict[str, Any]) -> None:
    of_partitions = r"kafka_topic_partition_|kafka_consumergroup_(lag|current_offset)(?!_sum)\b"
    assert not re.search(of_partitions, rule["expr"])
