"""A generation said by annotations: the same arguments under `headrace up` and in Kubernetes."""

from pathlib import Path

import pytest

from headrace_jobs.launch import LaunchError, render_command
from headrace_operator.plan import fingerprint as local_fingerprint
from headrace_operator.render.spark_submission import fingerprint, refusal_of
from headrace_operator.resources import parse_resource
from support.spark_world import application, rendered

TIME = "2026-01-31T12:00:00Z"


def annotated(arguments=(), **annotations):
    found = application(arguments=list(arguments))
    names = {f"headrace.dev/{name}": value for name, value in annotations.items()}
    return found | {"metadata": found["metadata"] | {"annotations": names}}


def here(manifest):
    """The driver's arguments under `headrace up`, without those of this machine."""
    command = render_command(
        manifest,
        bootstrap_servers=None,
        data_directory=Path("/data"),
        environment={},
        jars=[],
    )
    words = list(command.argv)
    return words[words.index("headrace_jobs.jobs.cpu_load") + 1 : words.index("--checkpoint")]


def there(manifest):
    """The driver's arguments in Kubernetes."""
    (container,) = rendered(manifest, "Pod")["spec"]["containers"]
    return container["args"][3:]


@pytest.mark.parametrize(
    ("arguments", "annotations", "expected"),
    [
        ([], {}, []),
        ([], {"generation": "2"}, ["--generation", "2"]),
        (
            ["--trigger", "2s"],
            {"generation": "2", "from": TIME, "shadow": "true"},
            ["--trigger", "2s", "--generation", "2", "--from", TIME, "--shadow"],
        ),
        ([], {"shadow": "false"}, ["--no-shadow"]),
        # Said twice, and the same.
        (["--generation", "2"], {"generation": "2"}, ["--generation", "2"]),
        (["--generation=2"], {"generation": "2"}, ["--generation=2"]),
        (["--starting-offsets", "latest"], {"from": "latest"}, ["--starting-offsets", "latest"]),
        (["--shadow"], {"shadow": "true"}, ["--shadow"]),
        ([], {"scaled-by": "group"}, []),
    ],
)
def test_annotations_are_arguments_here_and_in_kubernetes(arguments, annotations, expected):
    manifest = annotated(arguments, **annotations)
    assert refusal_of(manifest) == ""
    assert here(manifest) == there(manifest) == expected


@pytest.mark.parametrize(
    ("arguments", "annotations", "reason"),
    [
        (["--generation", "3"], {"generation": "2"}, "spec.arguments say --generation 3"),
        (["--generation=$(N)"], {"generation": "2"}, r"say --generation \$\(N\): say it in one"),
        (["--starting-offsets", "latest"], {"from": "earliest"}, "say --from latest"),
        (["--no-shadow"], {"shadow": "true"}, "say --no-shadow"),
        (["--generation", "2", "--generation", "4"], {"generation": "2"}, "say --generation 4"),
        ([], {"generation": "two"}, "is 'two': write a number from 1"),
        ([], {"generation": "0"}, "is '0': write a number from 1"),
        ([], {"shadow": "yes"}, "is 'yes': write 'true' or 'false'"),
        ([], {"from": ""}, "is '': write earliest, latest or a time"),
    ],
)
def test_what_annotations_and_arguments_say_differently_is_refused(arguments, annotations, reason):
    manifest = annotated(arguments, **annotations)
    with pytest.raises(LaunchError, match=reason) as refused:
        here(manifest)
    assert refusal_of(manifest) == str(refused.value)


def test_a_changed_annotation_begins_a_new_driver_and_others_do_not():
    one, two = annotated(generation="1"), annotated(generation="2")
    plain, other = annotated(), annotated(**{"scaled-by": "group"})
    for of in (fingerprint, lambda manifest: local_fingerprint(parse_resource(manifest))):
        assert of(one) != of(two)
        assert of(plain) == of(other) != of(one)
