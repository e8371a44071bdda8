"""Which refusals of a dry run say that a pod could not be made again."""

from headrace_operator.kubernetes.brokers.returning import is_only_full

EXCEEDED = 'pods "c-a-0" is forbidden: exceeded quota: q, requested: '


def test_a_quota_that_is_full_has_room_for_the_pod_that_leaves():
    asked, used = "limits.memory=1Gi,pods=1", "limits.memory=3Gi,pods=3"
    full = f"{asked}, used: {used}, limited: {used}"
    assert is_only_full(EXCEEDED + full)


def test_a_quota_that_is_exceeded_takes_nobody_back():
    assert not is_only_full(EXCEEDED + "pods=1, used: pods=3, limited: pods=2")
    assert not is_only_full(
        EXCEEDED + "requests.cpu=100m, used: requests.cpu=1100m, limited: requests.cpu=1"
    )


def test_what_else_is_refused_is_no_matter_of_room():
    assert not is_only_full('pods "c-a-0" is forbidden: no PriorityClass with name gold was found')
