import sys
from pathlib import Path

import pytest
import yaml

from headrace_operator.local.formation import form_cluster, has_metadata, may_form
from headrace_operator.local.processes import RestartPolicy
from headrace_operator.local.properties import (
    BrokerNode,
    Formation,
    bootstrap_servers,
    render_broker_properties,
)
from headrace_operator.local.workloads import (
    NotLocalError,
    Surroundings,
    deployment_command,
    expand,
    spark_command,
)
from headrace_operator.resources import load_manifests, parse_resource

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "cpu-load"


def node(node_id: int, roles: tuple[str, ...] = ("broker", "controller")) -> BrokerNode:
    return BrokerNode(
        node_id=node_id,
        pool="brokers",
        roles=roles,
        client_port=9000 + node_id,
        controller_port=9100 + node_id,
        http_port=9200 + node_id,
        data_directory=Path(f"/data/{node_id}"),
    )


def render(one: BrokerNode, nodes: list[BrokerNode], config: dict[str, str]) -> str:
    return render_broker_properties(
        one, nodes, config, Formation(cluster_id="an-id", brokers=len(nodes))
    )


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def surroundings() -> Surroundings:
    return Surroundings(
        cluster="cpu",
        bootstrap_servers="127.0.0.1:9001",
        directory=Path("/jobs"),
        metrics_port=9301,
    )


def test_one_node_gets_all_that_a_broker_needs_to_start() -> None:
    rendered = settings(render(node(1), [node(1)], {}))
    assert rendered["process.roles"] == "broker,controller"
    assert rendered["controller.quorum.voters"] == "1@127.0.0.1:9101"
    assert rendered["listeners"] == "PLAINTEXT://127.0.0.1:9001,CONTROLLER://127.0.0.1:9101"
    assert rendered["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9001"
    assert rendered["headrace.http.listener"] == "127.0.0.1:9201"
    assert rendered["offsets.topic.replication.factor"] == "1"
    assert rendered["min.insync.replicas"] == "1"
    assert rendered["transaction.state.log.replication.factor"] == "1"
    assert rendered["transaction.state.log.min.isr"] == "1"


def test_a_broker_that_joins_later_gets_the_defaults_of_the_first_ones() -> None:
    nodes = [node(1), node(2, ("broker",)), node(3, ("broker",))]
    formation = Formation(cluster_id="an-id", brokers=1)
    rendered = [settings(render_broker_properties(each, nodes, {}, formation)) for each in nodes]
    assert {each["cluster.id"] for each in rendered} == {"an-id"}
    assert {each["min.insync.replicas"] for each in rendered} == {"1"}
    assert {each["controller.quorum.voters"] for each in rendered} == {"1@127.0.0.1:9101"}


def test_a_cluster_keeps_its_id_and_that_of_data_on_disk(tmp_path: Path) -> None:
    nothing = Formation(cluster_id="", brokers=0)
    made = form_cluster(nothing, [tmp_path], brokers=3)
    assert len(made.cluster_id) == 22
    assert made.brokers == 3
    assert form_cluster(made, [tmp_path], brokers=5) == made
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=old\nnode.id=1\n")
    assert form_cluster(nothing, [tmp_path], brokers=1).cluster_id == "old"


def test_who_votes_is_in_nobodys_settings_once_the_cluster_is_formed() -> None:
    nodes = [node(1), node(2), node(3), node(4, ("broker",))]
    formed = Formation(cluster_id="an-id", brokers=3, is_formed=True)
    for each in nodes:
        rendered = settings(render_broker_properties(each, nodes, {}, formed))
        assert "controller.quorum.voters" not in rendered
        servers = rendered["controller.quorum.bootstrap.servers"]
        assert servers == "127.0.0.1:9101,127.0.0.1:9102,127.0.0.1:9103"


def test_an_empty_disk_beside_others_with_metadata_does_not_learn_who_votes(tmp_path: Path) -> None:
    old = Formation(cluster_id="an-id", brokers=3)
    disks = [tmp_path / str(number) for number in (1, 2, 3)]
    # Nobody has anything: this is how a cluster begins.
    assert all(may_form(old, disk, disks) for disk in disks)
    log = disks[0] / "__cluster_metadata-0" / "00000000000000000000.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"")
    assert not has_metadata(disks[0])
    log.write_bytes(b"records")
    assert [may_form(old, disk, disks) for disk in disks] == [True, False, False]
    log.unlink()
    (log.parent / "00000000000000000007-0000000001.checkpoint").write_bytes(b"a snapshot")
    assert [may_form(old, disk, disks) for disk in disks] == [True, False, False]
    formed = Formation(cluster_id="an-id", brokers=3, is_formed=True)
    assert not any(may_form(formed, disk, disks) for disk in disks)


def test_our_own_broker_takes_every_setting_that_is_rendered(tmp_path: Path) -> None:
    from headrace_broker.server.config.broker_config import read_config

    file = tmp_path / "broker.properties"
    file.write_text(render(node(1), [node(1)], {"num.partitions": "3"}))
    assert read_config(file)


def test_three_nodes_replicate_three_times_and_know_each_other() -> None:
    nodes = [node(1), node(2), node(3)]
    rendered = settings(render(nodes[1], nodes, {}))
    assert rendered["node.id"] == "2"
    assert rendered["controller.quorum.voters"] == (
        "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    )
    assert rendered["default.replication.factor"] == "3"
    assert rendered["min.insync.replicas"] == "2"
    assert bootstrap_servers(nodes) == "127.0.0.1:9001,127.0.0.1:9002,127.0.0.1:9003"


def test_a_controller_has_no_listener_for_clients() -> None:
    nodes = [node(1, ("controller",)), node(2, ("broker",))]
    controller = settings(render(nodes[0], nodes, {}))
    broker = settings(render(nodes[1], nodes, {}))
    assert controller["listeners"] == "CONTROLLER://127.0.0.1:9101"
    assert "advertised.listeners" not in controller
    assert broker["listeners"] == "PLAINTEXT://127.0.0.1:9002"
    assert broker["controller.quorum.voters"] == "1@127.0.0.1:9101"
    assert bootstrap_servers(nodes) == "127.0.0.1:9002"


def test_the_manifests_config_wins_over_defaults_but_not_over_addresses() -> None:
    config = {
        "min.insync.replicas": "2",
        "listeners": "PLAINTEXT://0.0.0.0:1",
        "num.partitions": "7",
    }
    rendered = settings(render(node(1), [node(1)], config))
    assert rendered["min.insync.replicas"] == "2"
    assert rendered["num.partitions"] == "7"
    assert rendered["listeners"].startswith("PLAINTEXT://127.0.0.1:9001")


def test_line_breaks_and_backslashes_do_not_make_settings_of_their_own() -> None:
    text = render(node(1), [node(1)], {"a": "b\nnode.id=9\\"})
    assert "a=b\\nnode.id=9\\\\\n" in text
    assert settings(text)["node.id"] == "1"


def test_the_examples_producer_runs_this_installation_against_the_local_brokers() -> None:
    deployment = next(each for each in load_manifests(EXAMPLE) if each.kind == "Deployment")
    extra = {"produce-cpu-load": ("--rate", "5")}
    local = deployment_command(deployment, surroundings(), extra=extra)
    assert local.command == (
        *(sys.executable, "-m", "headrace_cli", "produce-cpu-load"),
        *("--topic", "cpu-load", "--bootstrap-servers", "127.0.0.1:9001"),
        *("--rate", "5"),
    )
    assert local.restart is RestartPolicy.ALWAYS


def test_the_bootstrap_service_is_the_local_brokers_in_arguments_too() -> None:
    manifest = """
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: reader}
      spec:
        template:
          spec:
            containers:
              - name: reader
                image: headrace/headrace
                command: [headrace, consume, t, --bootstrap-server, "cpu-bootstrap.ns.svc:9092"]
                args: ["--x=cpu-bootstrap:9092", "my-cpu-bootstrap:9092", "other-bootstrap:9092"]
    """
    local = deployment_command(parse_resource(yaml.safe_load(manifest)), surroundings(), extra={})
    assert local.command[5:] == (
        *("--bootstrap-server", "127.0.0.1:9001", "--x=127.0.0.1:9001"),
        *("my-cpu-bootstrap:9092", "other-bootstrap:9092"),
    )


def test_the_examples_job_goes_to_the_launcher_as_it_is() -> None:
    application = next(each for each in load_manifests(EXAMPLE) if each.kind == "SparkApplication")
    local = spark_command(application, Path("/jobs/cpu-load.yaml"), surroundings())
    assert local.command[1:4] == ("-m", "headrace_jobs.launch", "/jobs/cpu-load.yaml")
    assert local.command[local.command.index("--bootstrap-servers") + 1] == "127.0.0.1:9001"
    assert local.restart is RestartPolicy.ALWAYS


def test_a_deployment_of_an_image_that_is_not_ours_is_refused_with_a_reason() -> None:
    manifest = """
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: web}
      spec: {template: {spec: {containers: [{name: web, image: nginx}]}}}
    """
    deployment = parse_resource(yaml.safe_load(manifest))
    with pytest.raises(NotLocalError, match="command is headrace"):
        deployment_command(deployment, surroundings(), extra={})


def test_variables_expand_as_in_kubernetes() -> None:
    assert expand(["$(A)-$(B)", "$$(A)", "$A"], {"A": "1"}) == ["1-$(B)", "$(A)", "$A"]
