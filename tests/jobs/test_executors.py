"""Which executors end when fewer are wanted. With Spark itself: tests/end_to_end_kubernetes."""

import pytest

from headrace_jobs.executors import surplus_of
from headrace_jobs.session import SHUFFLE_PARTITIONS
from headrace_jobs.transforms.key_groups import KEY_GROUPS


@pytest.mark.parametrize(
    ("there", "ending", "wanted", "surplus"),
    [
        (["1", "2", "3"], [], 3, []),
        (["1", "2", "3"], [], 1, ["2", "3"]),
        # Asked to end and still there: nobody else has to go for it.
        (["3", "1"], ["3"], 1, []),
        # Came up after fewer were asked for.
        (["1", "2", "4"], ["2"], 1, ["4"]),
        ([], [], 2, []),
    ],
)
def test_the_busiest_stay_and_no_executor_ends_for_one_that_is_ending(
    there, ending, wanted, surplus
):
    assert surplus_of(there, ending, wanted) == surplus


def test_a_job_is_given_as_many_shuffle_partitions_as_there_are_groups_of_keys():
    """A checkpoint keeps their number, so it bounds how far the job is ever scaled."""
    assert int(SHUFFLE_PARTITIONS) == KEY_GROUPS
