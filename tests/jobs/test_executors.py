"""Which executors end when fewer are wanted. With Spark itself: tests/end_to_end_kubernetes."""

import pytest

from headrace_jobs.executors import surplus_of


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
