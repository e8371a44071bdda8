"""The register of Topics and groups keeps nothing of those that are gone."""

from headrace_operator.kubernetes.register import Register
from support.operator_resources import group, topic


def test_names_that_come_and_go_leave_nothing_behind() -> None:
    register = Register()
    empty = str(vars(register))
    for number in range(3):
        for resource in (topic(f"t-{number}"), topic(f"u-{number}", topicName="shared"), group()):
            register.upsert(resource)
            assert register.describing(resource) == [resource]
            assert register.clusters() == {("default", "c")}
            register.remove(resource.key)
            assert register.describing(resource) == []
    assert register.of_cluster(("default", "c")) == register.of_cluster(("n", "none")) == []
    assert register.groups_of(("n", "other"), lambda _: True) == set()
    assert register.clusters() == set()
    assert str(vars(register)) == empty
