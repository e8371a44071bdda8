"""What brokers refused is tried again ever more seldom, however often the passes come."""

from headrace_operator.apply import Failure
from headrace_operator.kubernetes.refused import AGAIN_SECONDS_MAX, Refused
from headrace_operator.plan import CreateTopic

KEY = ("Topic", "default", "t")
FIRST, SECOND, AGAIN = ("uid", 1), ("uid", 2), ("another", 1)
CREATE = CreateTopic(resource=KEY, topic="t", partitions=1, replicas=1)


def tries(refused: Refused, seconds: int, *, is_retriable: bool = False) -> int:
    """Count how often it is tried where a pass comes every second."""
    count = 0
    for now in range(seconds):
        tried, held = refused.split([CREATE], {KEY: FIRST}, now)
        if tried:
            count += 1
            failure = Failure(action=CREATE, message="no", is_retriable=is_retriable)
            refused.note(tried, [failure], {KEY: FIRST}, now)
        else:
            # Its status goes on saying what the brokers said.
            assert [each.message for each in held] == ["no"]
    return count


def test_a_refused_topic_is_tried_ever_more_seldom() -> None:
    refused = Refused()
    assert tries(refused, 600) == 10
    assert refused.next_at() is not None
    assert tries(Refused(), 600, is_retriable=True) > 70


def test_a_changed_spec_is_tried_at_once_and_success_forgets() -> None:
    refused = Refused()
    tries(refused, 100)
    assert refused.split([CREATE], {KEY: FIRST}, 100)[0] == []
    for version in (SECOND, AGAIN):
        assert refused.split([CREATE], {KEY: version}, 100)[0] == [CREATE]
    refused.note([CREATE], [], {KEY: SECOND}, 100)
    assert refused.next_at() is None
    assert refused.split([CREATE], {KEY: SECOND}, 101)[0] == [CREATE]


def test_a_clusters_own_failures_are_not_held() -> None:
    refused = Refused()
    action = CreateTopic(resource=("Cluster", "default", "c"), topic="t", partitions=1, replicas=1)
    refused.note([action], [Failure(action=action, message="no")], {}, 0)
    assert refused.split([action], {}, 1)[0] == [action]
    assert AGAIN_SECONDS_MAX > 60
