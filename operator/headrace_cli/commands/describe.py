"""`headrace describe topic|group|cluster|job NAME`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import (
    BootstrapServers,
    ClusterName,
    DataDirectory,
    Http,
    Output,
    OutputFormat,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_cli.clients import Target
    from headrace_operator.plan import ObservedGroup, TopicPartition

__all__ = ["describe"]


class Kind(StrEnum):
    """What can be described."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    JOB = "job"


def describe(  # noqa: PLR0913 - each is an option of the command line
    kind: Annotated[Kind, typer.Argument(help="What it is.")],
    name: Annotated[str | None, typer.Argument(help="Which one.")] = None,
    *,
    output: Output = OutputFormat.TABLE,
    http: Http = None,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Print everything about one topic, group, cluster or job."""
    from headrace_cli.clients import admin_client, find_cluster

    if name is None and kind is not Kind.CLUSTER:
        raise BadInputError(f"describe {kind.value}: which one? NAME is missing")
    from headrace_cli.output import as_document

    target = find_cluster(data_dir, cluster, bootstrap_server)
    if kind is Kind.JOB:
        with as_document(output):
            _describe_job(target, str(name))
        return
    with as_document(output), admin_client(target) as admin:
        match kind:
            case Kind.TOPIC:
                _describe_topic(admin, str(name))
            case Kind.GROUP:
                _describe_group(admin, target, http, str(name))
            case _:
                _describe_cluster(admin, target)


def _describe_topic(admin: Any, name: str) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType

    from headrace_cli.objects import EARLIEST, LATEST
    from headrace_cli.output import print_fields, print_remark, print_table, print_title
    from headrace_operator.observe import list_offsets

    topic = admin.describe_topics([name])[0]
    if topic["error_code"]:
        raise CommandError(f"topic {name} does not exist")
    keys = [(name, each["partition_index"]) for each in topic["partitions"]]
    starts = list_offsets(admin, dict.fromkeys(keys, EARLIEST))
    ends = list_offsets(admin, dict.fromkeys(keys, LATEST))
    print_fields({"Name": name, "Id": str(topic.get("topic_id", "-")), "Partitions": ""})
    rows = []
    for each in sorted(topic["partitions"], key=lambda each: int(each["partition_index"])):
        key = (name, each["partition_index"])
        rows.append(
            {
                "PARTITION": str(each["partition_index"]),
                "LEADER": str(each["leader_id"]),
                "REPLICAS": ",".join(map(str, each["replica_nodes"])),
                "IN-SYNC": ",".join(map(str, each["isr_nodes"])),
                "START": str(starts.get(key, "-")),
                "END": str(ends.get(key, "-")),
            }
        )
    print_table(rows, indent="  ")
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    configs = admin.describe_configs([resource], config_filter="all")["topic"][name]
    print_title("Config")
    settings = [
        {"NAME": key, "VALUE": str(entry["value"]), "FROM": _source(entry["config_source"])}
        for key, entry in sorted(configs.items())
        if entry["config_source"] != "DEFAULT_CONFIG"
    ]
    print_table(settings, indent="  ")
    print_remark(f"  ({len(configs) - len(settings)} more at their defaults)")


def _describe_group(admin: Any, target: Target, http: list[str] | None, name: str) -> None:
    from headrace_cli.objects import load_groups
    from headrace_cli.output import print_fields, print_remark, print_table, print_title
    from headrace_cli.up.views import describe_age

    group = load_groups(admin, [name]).get(name)
    if group is None or (group.state in {"", "Dead"} and not group.offsets):
        raise CommandError(f"group {name} does not exist")
    lag = f"{group.lag_records:,} records, {describe_age(group.lag_seconds)}"
    fields = {"Name": name, "Type": group.type, "State": group.state}
    if group.assignor:
        fields["Assignor"] = group.assignor
    if group.epoch is not None:
        fields |= {"Epoch": str(group.epoch), "Assignment epoch": str(group.assignment_epoch)}
    fields |= {"Members": str(len(group.members)), "Lag": lag if group.offsets else "-"}
    remark = ""
    if group.is_share:
        told, remark = _share_fields(http or target.http_addresses, name)
        fields |= told
    print_fields(fields)
    if remark:
        print_remark(remark)
    print_title("Partitions", is_shown=False)
    print_table(_partition_rows(group))
    if group.members:
        print_title("Members")
        print_table(_member_rows(group), indent="  ")


def _share_fields(addresses: Sequence[str], name: str) -> tuple[dict[str, str], str]:
    """Return what a share group's records went through, and what is to be known of that."""
    from headrace_cli.share_records import read_share_records

    found = read_share_records(addresses, name)
    if found is None:
        reason = "no broker's HTTP answers" if addresses else "no broker's HTTP is known"
        return dict.fromkeys(("In flight", "Redelivered", "Archived"), "-"), (
            f"({reason}: say where it is with --http for what is in flight, redelivered, archived)"
        )
    fields = {
        "In flight": f"{found.in_flight:,}",
        "Redelivered": f"{found.redelivered:,}",
        "Archived": f"{found.rejected:,} rejected, {found.undeliverable:,} delivered too often",
    }
    if found.dead_lettered or found.dead_letters_lost:
        fields["Dead letters"] = (
            f"{found.dead_lettered:,} written, {found.dead_letters_lost:,} lost"
        )
    since = "(redelivered and archived since the leaders' processes began)"
    if found.silent:
        since = f"(without what is led by {', '.join(found.silent)}: no answer) {since}"
    return fields, since


def _partition_rows(group: ObservedGroup) -> list[dict[str, str]]:
    # Members of a share group read a partition together.
    owners: dict[TopicPartition, list[str]] = {}
    for member in sorted(group.members, key=lambda member: member.member_id):
        for key in member.assignment:
            owners.setdefault(key, []).append(member.member_id)
    return [
        {
            "TOPIC": topic,
            "PARTITION": str(index),
            # A share group commits nothing: it has a start, and acknowledged records beyond it.
            "START" if group.is_share else "COMMITTED": str(group.offsets.get((topic, index), "-")),
            "END": str(group.end_offsets.get((topic, index), "-")),
            "LAG": str(group.lag.get((topic, index), "-")),
            "MEMBER": ",".join(owners.get((topic, index), ["-"])),
        }
        for topic, index in sorted({*group.offsets, *owners})
    ]


def _member_rows(group: ObservedGroup) -> list[dict[str, str]]:
    is_static = any(member.instance_id for member in group.members)
    return [
        {"MEMBER": member.member_id}
        | ({"INSTANCE": member.instance_id or "-"} if is_static else {})
        | {"CLIENT": member.client_id, "HOST": member.host}
        | ({} if member.epoch is None else {"EPOCH": str(member.epoch)})
        | {"ASSIGNMENT": ",".join(f"{topic}-{index}" for topic, index in member.assignment) or "-"}
        for member in sorted(group.members, key=lambda member: member.member_id)
    ]


def _describe_job(target: Target, name: str) -> None:
    """Print what a job of the local cluster says of itself, on its own `/metrics`."""
    from headrace_cli.output import print_fields
    from headrace_cli.up.monitor import read_job_info, read_job_metrics

    applications = target.state.applications if target.state is not None else []
    url = next((each.metrics for each in applications if each.name == name), None)
    info = read_job_info(url) if url else {}
    if url is None or not info:
        raise CommandError(f"no job {name} runs in the local cluster and serves its metrics")
    values = read_job_metrics(url)

    def count(series: str) -> str:
        return f"{values.get(f'headrace_job_{series}', 0.0):,.0f}"

    print_fields(
        {
            "Name": name,
            "Delivery": info["delivery"],
            "Generation": info["generation"] + (" (shadow)" if info["shadow"] == "true" else ""),
            "Batches": count("batches_total"),
            "Rows": f"{count('input_rows_total')} in, {count('output_rows_total')} out",
            "Set aside": f"{count('malformed_records_total')} malformed,"
            f" {count('late_rows_total')} late",
            "Lag": f"{count('lag_records')} records, {count('lag_seconds')} s",
            "Metrics": url,
        }
    )


def _describe_cluster(admin: Any, target: Target) -> None:
    from headrace_cli.objects import (
        broker_items,
        cluster_item,
        group_items,
        load_groups,
        load_topics,
        topic_items,
    )
    from headrace_cli.output import print_fields, print_items, print_title

    item = cluster_item(admin, target)
    fields = {"Name": item.name} | {
        key.capitalize(): text for key, text in (dict(item.columns) | dict(item.wide)).items()
    }
    if target.state is not None:
        fields["Jobs"] = ", ".join(
            f"{each.name} ({each.metrics})" for each in target.state.applications if each.metrics
        )
    if target.layout is not None:
        fields["Files"] = str(target.layout.root)
    print_fields(fields)
    for title, items in (
        ("Brokers", broker_items(admin, target)),
        ("Topics", topic_items(admin, load_topics(admin), target)),
        ("Groups", group_items(load_groups(admin), target)),
    ):
        print_title(f"\n{title}")
        print_items(items, OutputFormat.TABLE, is_single=False)


def _source(config_source: str) -> str:
    return config_source.removesuffix("_CONFIG").replace("_", " ").lower()
