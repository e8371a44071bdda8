"""A SparkApplication, unchanged, becomes a local command."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headrace_jobs.launch import LaunchError, render_command

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


def application(**spec):
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "app"},
        "spec": {
            "type": "Python",
            "mainApplicationFile": "local:///opt/headrace/jobs/cpu_load.py",
            **spec,
        },
    }


def render(document, environment=None):
    return render_command(
        document,
        bootstrap_servers="127.0.0.1:9092",
        data_directory=Path("/data"),
        environment=environment or {"PATH": "/bin"},
        jars=JARS,
    )


def options(command):
    """The options that spark-submit gets: flags by name, settings under `--conf`."""
    words = shlex.split(command.env["PYSPARK_SUBMIT_ARGS"])
    assert words.pop() == "pyspark-shell"
    pairs = list(zip(words[::2], words[1::2], strict=True))
    settings = dict(value.split("=", 1) for flag, value in pairs if flag == "--conf")
    return {flag: value for flag, value in pairs if flag != "--conf"}, settings


def test_the_example_runs_our_module_with_local_addresses(example_application):
    command = render(yaml.safe_load(example_application.read_text()))
    assert command.argv[:3] == (sys.executable, "-m", "headrace_jobs.jobs.cpu_load")
    assert command.argv[command.argv.index("--bootstrap-servers") + 1] == "127.0.0.1:9092"
    assert command.argv[command.argv.index("--checkpoint") + 1] == "/data/cpu-load/checkpoint"
    assert "$(" not in " ".join(command.argv)
    flags, settings = options(command)
    assert flags["--jars"] == "/jars/a.jar,/jars/b.jar"
    assert flags["--driver-memory"] == "512m"
    assert settings["spark.sql.shuffle.partitions"] == "4"
    assert command.env["PYSPARK_PYTHON"] == sys.executable


def test_our_jobs_are_found_by_both_paths_of_the_image():
    for path in ("jobs", "headrace_jobs/jobs"):
        document = application(mainApplicationFile=f"local:///opt/headrace/{path}/cpu_load.py")
        assert render(document).argv[2] == "headrace_jobs.jobs.cpu_load"


def test_variables_in_arguments_expand_as_kubernetes_does():
    document = application(
        arguments=["$(A)-$(B)", "$$(A)", "$(NONE)"],
        driver={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}]},
    )
    assert render(document).argv[3:6] == ("1-12", "$(A)", "$(NONE)")


def test_the_clusters_settings_stay_in_the_cluster_and_all_others_are_passed_on():
    document = application(
        sparkConf={
            "spark.kubernetes.namespace": "x",
            "spark.dynamicAllocation.enabled": "true",
            "spark.ui.enabled": "true",
            "spark.sql.streaming.stateStore.compression.codec": "zstd",
            "spark.driver.extraJavaOptions": "-Dmine=1 2",
        },
        driver={"javaOptions": "-XX:TieredStopAtLevel=4"},
    )
    _, settings = options(render(document))
    assert not any(key.startswith(("spark.kubernetes", "spark.dynamic")) for key in settings)
    assert settings["spark.ui.enabled"] == "true"
    _, plain = options(render(application()))
    assert plain["spark.ui.enabled"] == "false"
    assert settings["spark.sql.streaming.stateStore.compression.codec"] == "zstd"
    java = shlex.split(settings["spark.driver.extraJavaOptions"])
    assert java.index("-XX:TieredStopAtLevel=4") > java.index("-XX:TieredStopAtLevel=1")
    assert "-Dmine=1" in java


def test_jars_of_the_image_are_ours_and_others_are_kept():
    document = application(
        deps={"jars": ["local:///opt/headrace/jars/kafka-clients.jar", "local:///opt/x.jar"]},
        sparkConf={"spark.jars": "/opt/y.jar"},
    )
    flags, settings = options(render(document))
    assert flags["--jars"] == "/jars/a.jar,/jars/b.jar,/opt/x.jar,/opt/y.jar"
    assert "spark.jars" not in settings


def test_a_value_from_the_cluster_must_be_given_here():
    variable = {"name": "REGION", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    document = application(driver={"env": [variable]})
    with pytest.raises(LaunchError, match=r"spec\.driver\.env\[0\] \(REGION\)"):
        render(document)
    assert render(document, {"REGION": "given"}).env["REGION"] == "given"


def test_another_sparks_home_and_settings_do_not_reach_the_job():
    foreign = {
        "SPARK_HOME": "/opt/old",
        "SPARK_CONF_DIR": "/etc/spark",
        "PYSPARK_GATEWAY_PORT": "1",
    }
    env = render(application(), foreign).env
    assert Path(env["SPARK_HOME"], "bin/spark-submit").is_file()
    assert "SPARK_CONF_DIR" not in env
    assert "PYSPARK_GATEWAY_PORT" not in env


def test_a_java_application_is_given_to_spark_submit(tmp_path):
    jar = tmp_path / "app.jar"
    jar.touch()
    document = application(
        type="Scala", mainClass="org.Main", mainApplicationFile=f"local://{jar}", arguments=["1"]
    )
    argv = render(document).argv
    assert argv[0].endswith("/bin/spark-submit")
    assert argv[-4:] == ("--class", "org.Main", str(jar), "1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mainApplicationFile": None}, r"spec\.mainApplicationFile is missing"),
        ({"mainApplicationFile": "local:///opt/headrace/jobs/nope.py"}, "has no job nope"),
        ({"mainApplicationFile": "local:///nope.py"}, "no such file on this machine: /nope.py"),
    ],
)
def test_what_cannot_run_here_is_an_error_that_names_the_field(change, message):
    with pytest.raises(LaunchError, match=message):
        render(application(**change))


def test_another_kind_of_resource_is_refused():
    with pytest.raises(LaunchError, match="not a SparkApplication"):
        render({**application(), "kind": "Deployment"})


def test_launch_becomes_the_application(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(
        "import json, os, sys\n"
        "print(json.dumps([os.getpid(), sys.argv[1:], os.environ['HEADRACE_BOOTSTRAP_SERVERS']]))\n"
        "sys.exit(7)\n"
    )
    manifest = tmp_path / "app.yaml"
    document = application(
        mainApplicationFile=f"local://{script}", arguments=["$(HEADRACE_JOB_NAME)"]
    )
    manifest.write_text(yaml.safe_dump_all([{"kind": "Service"}, document]))
    command = [sys.executable, "-m", "headrace_jobs.launch", str(manifest)]
    process = subprocess.Popen(
        [*command, "--bootstrap-servers", "b:1", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(timeout=30)
    assert json.loads(output) == [process.pid, ["app"], "b:1"]
    assert process.returncode == 7


def test_a_file_without_an_application_is_an_error(tmp_path):
    manifest = tmp_path / "app.yaml"
    manifest.write_text("kind: Service\n")
    command = [sys.executable, "-m", "headrace_jobs.launch", str(manifest)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has 0 SparkApplications" in done.stderr
