"""What a SparkApplication becomes: the driver's pod, its Service, settings and access."""

import json

import pytest

from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import broker_query
from headrace_operator.render.pods import render_pool
from headrace_operator.render.policies import render_pod_monitor, render_policies
from headrace_operator.render.services import render_services
from headrace_operator.render.spark import render_access, render_submission
from headrace_operator.render.spark_fields import ignored_fields
from headrace_operator.render.spark_pods import memory_mebibytes
from headrace_operator.render.spark_settings import render_properties, spark_settings
from headrace_operator.render.spark_submission import fingerprint
from support.operator_resources import cluster
from support.spark_world import application, rendered, submission


def driver_of(**spec):
    return rendered(application(**spec), "Pod")


def driver_container(**spec):
    return driver_of(**spec)["spec"]["containers"][0]


def executor_of(**spec):
    return json.loads(rendered(application(**spec), "ConfigMap")["data"]["executor.yaml"])


def settings_of(**spec):
    return spark_settings(submission(application(**spec)))


def environment(container):
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_the_drivers_pod_is_made_last_when_all_it_needs_is_there():
    kinds = [obj["kind"] for obj in render_submission(submission(application()))]
    assert kinds == ["ConfigMap", "Service", "Pod"]


def test_everything_is_deleted_with_the_application():
    for obj in render_submission(submission(application())):
        [owner] = obj["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (
            "SparkApplication",
            "uid-1",
            True,
        )


def test_shared_access_belongs_to_all_who_use_it_and_to_no_controller():
    for obj in render_access(submission(application())):
        [owner] = obj["metadata"]["ownerReferences"]
        assert "controller" not in owner


def test_a_driver_may_make_executors_and_nothing_else():
    account, role, binding = render_access(submission(application(driver={"serviceAccount": "me"})))
    assert (account["metadata"]["name"], role["metadata"]["name"]) == ("me", "headrace-me")
    assert binding["subjects"][0]["name"] == "me"
    granted = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert granted == {"pods", "configmaps", "persistentvolumeclaims"}
    assert "*" not in json.dumps(role)


@pytest.mark.parametrize("pod", [driver_of, executor_of])
def test_pods_are_restricted(pod):
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = spec["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True


def test_images_of_others_may_write_to_their_root():
    security = driver_container(mainApplicationFile="local:///opt/other.py")["securityContext"]
    assert "readOnlyRootFilesystem" not in security


def test_executors_have_no_token_for_the_kubernetes_api():
    assert executor_of()["spec"]["automountServiceAccountToken"] is False


def test_pods_carry_the_published_labels_but_not_the_one_that_another_operator_watches():
    labels = driver_of()["metadata"]["labels"]
    assert labels["sparkoperator.k8s.io/app-name"] == "job"
    assert labels["spark-role"] == "driver"
    assert executor_of()["metadata"]["labels"]["spark-role"] == "executor"
    assert not any("launched-by" in key for key in labels)


def test_the_applications_cluster_is_a_label_of_its_pods():
    manifest = application()
    manifest["metadata"]["labels"] = {"headrace.dev/cluster": "cpu"}
    assert rendered(manifest, "Pod")["metadata"]["labels"]["headrace.dev/cluster"] == "cpu"


def selects(selector, labels):
    """Whether a label selector takes a pod, or a Service's plain labels do."""
    wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    exists = [each["key"] for each in selector.get("matchExpressions", ())]
    return wanted.items() <= labels.items() and labels.keys() >= set(exists)


def test_nothing_of_a_cluster_takes_a_jobs_pods_for_brokers():
    """They have the cluster's label too: with a budget that counts them no drain would end."""
    found = cluster()
    node = Node(node_id=0, pool=found.spec.pools[0].name, ordinal=0)
    identity = Identity(cluster_id="id", image="headrace:1", version="4.2", nodes=(node,))
    manifest = application()
    manifest["metadata"]["labels"] = {"headrace.dev/cluster": found.metadata.name}
    job = rendered(manifest, "Pod")["metadata"]["labels"]
    broker = render_pool(found, identity, found.spec.pools[0])["spec"]["template"]["metadata"]
    objects = [*render_policies(found), *render_services(found, identity)]
    objects += [render_pod_monitor(found)]
    selectors = [
        each["spec"].get("selector") or each["spec"].get("podSelector")
        for each in objects
        if "spec" in each
    ]
    assert len(selectors) >= 4
    for selector in selectors:
        assert selects(selector, broker["labels"])
        assert not selects(selector, job)
    # As the command line asks for them: it wants to know each one's pool.
    asked = dict(part.partition("=")[::2] for part in broker_query(found.metadata.name).split(","))
    assert all(
        broker["labels"].get(key, "") == (value or broker["labels"][key])
        for key, value in asked.items()
    )
    assert not asked.keys() <= job.keys()


def test_labels_of_the_user_are_kept_and_do_not_replace_ours():
    labels = driver_of(driver={"labels": {"team": "a", "spark-role": "executor"}})["metadata"][
        "labels"
    ]
    assert (labels["team"], labels["spark-role"]) == ("a", "driver")


def test_our_job_is_python_with_the_jvm_as_its_child():
    arguments = driver_container(arguments=["--window", "10s"])["args"]
    path = "/opt/headrace/headrace_jobs/jobs/cpu_load.py"
    assert arguments == ["python", "-P", path, "--window", "10s"]


def test_other_jobs_are_started_by_spark_submit_with_their_class():
    arguments = driver_container(
        type="Scala", mainClass="org.example.Main", mainApplicationFile="local:///opt/a.jar"
    )["args"]
    assert arguments[0] == "driver"
    assert arguments[-3:] == ["--class", "org.example.Main", "local:///opt/a.jar"]


def test_the_memory_of_a_driver_is_its_heap_and_what_is_beside_it():
    assert driver_container()["resources"]["limits"]["memory"] == "896Mi"
    given = driver_container(driver={"memory": "2g", "memoryOverhead": "512m"})
    assert given["resources"]["requests"]["memory"] == "2560Mi"
    share = driver_container(driver={"memory": "4g"}, memoryOverheadFactor="0.25")
    assert share["resources"]["limits"]["memory"] == "5120Mi"


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("512m", 512), ("1g", 1024), ("1.5g", 1536), ("2048k", 2), ("700", 700)]
)
def test_amounts_of_memory_are_read_as_the_jvm_writes_them(text, mebibytes):
    assert memory_mebibytes(text) == mebibytes


def test_cores_asked_of_the_scheduler_may_be_fewer_than_spark_uses():
    resources = driver_container(driver={"cores": 2, "coreRequest": "250m", "coreLimit": "2"})[
        "resources"
    ]
    assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("250m", "2")


def test_a_gpu_is_a_limit():
    role = {"gpu": {"name": "nvidia.com/gpu", "quantity": 1}}
    assert driver_container(driver=role)["resources"]["limits"]["nvidia.com/gpu"] == 1
    [container] = executor_of(executor=role)["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_environment_comes_from_values_and_secrets():
    driver = {
        "env": [{"name": "A", "value": "1"}],
        "envVars": {"B": "2"},
        "envSecretKeyRefs": {"C": {"name": "secret", "key": "password"}},
    }
    found = environment(driver_container(driver=driver))
    assert (found["A"], found["B"]) == ("1", "2")
    assert found["C"] == {"secretKeyRef": {"name": "secret", "key": "password"}}


def test_what_refers_to_the_pods_address_comes_after_it():
    names = [each["name"] for each in driver_container()["env"]]
    assert names[0] == "HEADRACE_POD_IP"


def test_only_the_volumes_that_a_pod_mounts_are_in_it():
    spec = {
        "volumes": [
            {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "unused", "emptyDir": {}},
        ],
        "driver": {
            "volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}],
            "configMaps": [{"name": "settings", "path": "/settings"}],
            "secrets": [{"name": "key", "path": "/key", "secretType": "Generic"}],
        },
    }
    pod = driver_of(**spec)["spec"]
    volumes = {each["name"] for each in pod["volumes"]}
    assert volumes == {
        *("tmp", "checkpoint", "settings-vol", "key-vol"),
        *("headrace-settings", "headrace-pod"),
    }
    paths = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert {"/checkpoint", "/settings", "/key"} <= paths
    assert "checkpoint" not in {each["name"] for each in executor_of(**spec)["spec"]["volumes"]}


def test_a_template_lies_over_the_pod_and_its_first_container_is_sparks():
    template = {
        "metadata": {"labels": {"zone": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "priorityClassName": "high",
            "containers": [{"name": "mine", "env": [{"name": "X", "value": "1"}]}],
        },
    }
    pod = driver_of(driver={"template": template})
    [container] = pod["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-driver"
    assert environment(container)["X"] == "1"
    assert "HEADRACE_POD_IP" in environment(container)
    assert pod["spec"]["priorityClassName"] == "high"
    assert pod["metadata"]["labels"]["zone"] == "a"
    assert pod["metadata"]["annotations"]["note"] == "b"


def test_sidecars_and_scheduling_are_taken_as_they_are():
    driver = {
        "sidecars": [{"name": "proxy", "image": "proxy:1"}],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "nodeSelector": {"disk": "ssd"},
    }
    spec = driver_of(driver=driver)["spec"]
    assert [each["name"] for each in spec["containers"]] == ["spark-kubernetes-driver", "proxy"]
    assert spec["tolerations"][:1] == driver["tolerations"]
    assert spec["nodeSelector"] == {"disk": "ssd"}


NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def tolerated_seconds(spec):
    return {each["key"]: each.get("tolerationSeconds") for each in spec.get("tolerations", [])}


def test_a_lost_node_is_left_after_half_a_minute():
    for policy in ("Always", "OnFailure"):
        driver = driver_of(restartPolicy={"type": policy})
        assert tolerated_seconds(driver["spec"]) == {NOT_READY: 30, UNREACHABLE: 30}
    assert tolerated_seconds(executor_of()["spec"]) == {NOT_READY: 30, UNREACHABLE: 30}


def test_a_driver_that_nobody_starts_again_waits_for_its_node():
    assert tolerated_seconds(driver_of(restartPolicy={"type": "Never"})["spec"]) == {}
    assert tolerated_seconds(driver_of()["spec"]) == {}


@pytest.mark.parametrize("where", ["role", "template"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"key": UNREACHABLE, "operator": "Exists", "tolerationSeconds": 7},
            {UNREACHABLE: 7, NOT_READY: 30},
        ),
        ({"operator": "Exists"}, {None: None}),
        (
            {"operator": "Exists", "effect": "NoSchedule"},
            {None: None, NOT_READY: 30, UNREACHABLE: 30},
        ),
        (
            {"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"},
            {NOT_READY: 30, UNREACHABLE: 30},
        ),
    ],
)
def test_who_says_how_long_a_lost_node_is_tolerated_is_heard(where, given, expected):
    role = (
        {"tolerations": [given]}
        if where == "role"
        else {"template": {"spec": {"tolerations": [given]}}}
    )
    found = executor_of(executor=role)["spec"]["tolerations"]
    assert found[0] == given
    assert {each.get("key"): each.get("tolerationSeconds") for each in found} == expected


def test_the_service_leads_to_the_ui_and_the_metrics_of_this_driver():
    spec = rendered(application(sparkUIOptions={"servicePort": 8080}), "Service")["spec"]
    assert {port["name"]: port["port"] for port in spec["ports"]} == {
        "spark-driver-ui-port": 8080,
        "metrics": 8090,
    }
    labels = driver_of()["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items()


def test_prometheus_finds_the_metrics_on_the_port_that_the_application_names():
    monitoring = {"exposeDriverMetrics": True, "prometheus": {"port": 9000}}
    pod = driver_of(monitoring=monitoring)
    container = pod["spec"]["containers"][0]
    assert {"name": "metrics", "containerPort": 9000, "protocol": "TCP"} in container["ports"]
    assert environment(container)["HEADRACE_METRICS_PORT"] == "9000"
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9000"


def test_a_pod_is_not_annotated_for_prometheus_unasked():
    assert not any("prometheus" in key for key in driver_of()["metadata"]["annotations"])


def test_settings_of_the_application_come_over_defaults_and_under_what_makes_the_driver():
    settings = settings_of(
        sparkConf={
            "spark.ui.showConsoleProgress": "true",
            "spark.master": "local[1]",
            "spark.app.id": "mine",
        }
    )
    assert settings["spark.ui.showConsoleProgress"] == "true"
    assert settings["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert settings["spark.app.id"].startswith("spark-0000")


def test_java_options_are_joined_not_replaced():
    settings = settings_of(
        sparkConf={"spark.driver.extraJavaOptions": "-Da=1"},
        driver={"javaOptions": "-Db=2"},
    )
    options = settings["spark.driver.extraJavaOptions"].split()
    assert options[-2:] == ["-Da=1", "-Db=2"]
    assert options[0].startswith("-Dlog4j2.configurationFile=")


def test_our_jvms_share_classes_and_those_of_others_start_as_they_always_did():
    given = {"spark.executor.extraClassPath": "/opt/mine.jar"}
    settings = settings_of(sparkConf=given)
    # An archive is taken for a class path that begins as it was archived.
    assert settings["spark.driver.extraClassPath"] == "/opt/headrace/classpath.jar"
    joined = "/opt/headrace/classpath.jar:/opt/mine.jar"
    assert settings["spark.executor.extraClassPath"] == joined
    shared = "-XX:SharedArchiveFile=/opt/headrace/classes.jsa"
    assert shared in settings["spark.executor.extraJavaOptions"]
    theirs = settings_of(mainApplicationFile="local:///opt/other.py", sparkConf=given)
    assert theirs["spark.executor.extraClassPath"] == "/opt/mine.jar"
    assert shared not in theirs.get("spark.driver.extraJavaOptions", "")


def test_dynamic_allocation_follows_shuffles_since_there_is_no_shuffle_service():
    settings = settings_of(
        dynamicAllocation={"enabled": True, "minExecutors": 1, "maxExecutors": 4}
    )
    assert settings["spark.dynamicAllocation.enabled"] == "true"
    assert settings["spark.dynamicAllocation.shuffleTracking.enabled"] == "true"
    assert settings["spark.dynamicAllocation.maxExecutors"] == "4"
    assert "spark.dynamicAllocation.initialExecutors" not in settings
    off = settings_of(dynamicAllocation={"enabled": False, "maxExecutors": 4})
    assert not any("dynamicAllocation" in key for key in off)


def test_dependencies_are_settings_and_our_jars_are_not_named_twice():
    ours = "local:///opt/headrace/jars/spark-sql-kafka.jar"
    deps = {"jars": [ours, "https://example.org/a.jar"], "packages": ["g:a:1"], "pyFiles": ["b.py"]}
    settings = settings_of(deps=deps)
    assert settings["spark.jars"] == "https://example.org/a.jar"
    assert settings["spark.jars.packages"] == "g:a:1"
    assert settings["spark.submit.pyFiles"] == "b.py"


def test_names_of_executors_leave_room_for_their_numbers():
    manifest = application()
    manifest["metadata"]["name"] = "a" * 56
    settings = spark_settings(submission(manifest))
    prefix = settings["spark.kubernetes.executor.podNamePrefix"]
    assert len(f"{prefix}-exec-9999") <= 63


def test_properties_are_written_so_that_java_reads_them_as_they_were():
    text = render_properties({"a b": "x=y", "c:d": " space\nline", "e": "back\\slash"})
    assert text.splitlines() == [
        "a\\ b x=y",
        "c\\:d \\ space\\nline",
        "e back\\\\slash",
    ]


def test_the_fingerprint_names_what_needs_a_new_driver():
    of = fingerprint
    base = of(application())
    assert of(application(suspend=True, timeToLiveSeconds=5, restartPolicy={"type": "Always"})) == (
        base
    )
    resized = {"cores": 1, "memory": "512m", "instances": 9}
    assert of(application(executor=resized)) == base
    assert of(application(executor={**resized, "memory": "1g"})) != base
    other = "local:///opt/other.py"
    assert of(application(mainApplicationFile=other, executor=resized)) != of(
        application(mainApplicationFile=other)
    )


def test_fields_that_are_not_acted_on_are_named():
    found = ignored_fields(
        application(
            batchScheduler="volcano",
            monitoring={"prometheus": {"jmxExporterJar": "/a.jar"}},
        )
    )
    assert found == ["spec.batchScheduler", "spec.monitoring.prometheus.jmxExporterJar"]
    assert ignored_fields(application()) == []
