"""The follower's side of a fetch session."""

from headrace_broker.replication.fetch_state import FetchState, Position

AT_0 = Position(0, -1, 1, 0)
AT_5 = Position(5, 1, 1, 0)


def test_a_request_names_only_what_changed_since_the_one_before():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.set("b", AT_0)
    first = state.take()
    assert (first.session_id, first.epoch, first.dirty) == (0, 0, [("a", AT_0), ("b", AT_0)])
    state.session_id = 77
    state.set("b", AT_5)
    second = state.take()
    assert (second.session_id, second.epoch, second.dirty) == (77, 1, [("b", AT_5)])
    assert not state.is_dirty
    assert state.take().dirty == []


def test_a_removed_partition_is_forgotten_once():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.take()
    state.remove("a")
    state.remove("never")
    assert state.take().forgotten == ["a"]
    assert state.take().forgotten == []
    assert len(state) == 0


def test_a_partition_taken_back_before_the_next_request_is_not_forgotten():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.take()
    state.remove("a")
    state.set("a", AT_5)
    taken = state.take()
    assert (taken.dirty, taken.forgotten) == ([("a", AT_5)], [])


def test_an_answer_counts_only_while_nothing_newer_was_said():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    first = state.take()
    assert state.answered("a", first.number) == AT_0
    state.set("a", AT_5)
    assert state.answered("a", first.number) is None
    second = state.take()
    assert state.answered("a", first.number) is None
    assert state.answered("a", second.number) == AT_5
    assert state.answered("unknown", second.number) is None


def test_a_lost_session_names_everything_again():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.set("b", AT_0)
    state.take()
    state.session_id = 9
    state.set("b", AT_5)
    state.restart()
    again = state.take()
    assert (again.session_id, again.epoch) == (0, 0)
    assert dict(again.dirty) == {"a": AT_0, "b": AT_5}


def test_a_new_session_has_nothing_to_forget():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.set("b", AT_0)
    state.take()
    state.remove("a")
    state.restart()
    again = state.take()
    assert (again.dirty, again.forgotten) == ([("b", AT_0)], [])


def test_a_partition_that_is_held_is_in_no_request_until_it_is_released():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.set("b", AT_0)
    first = state.take()
    state.set("a", AT_5)
    state.hold("a")
    assert not state.is_dirty
    assert state.answered("a", first.number) is None
    state.set("b", AT_5)
    assert state.take().dirty == [("b", AT_5)]
    state.release("a")
    assert state.take().dirty == [("a", AT_5)]


def test_a_new_session_does_not_name_what_is_held_either():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.set("b", AT_0)
    state.take()
    state.set("a", AT_5)
    state.hold("a")
    state.restart()
    assert state.take().dirty == [("b", AT_0)]
    state.release("a")
    assert state.take().dirty == [("a", AT_5)]


def test_a_partition_that_was_removed_is_not_held_when_it_comes_back():
    state: FetchState[str] = FetchState()
    state.set("a", AT_0)
    state.hold("a")
    state.remove("a")
    state.set("a", AT_5)
    assert state.take().dirty == [("a", AT_5)]
