from headrace_operator.kubernetes.freshness import compare

A, B = ("n", "a"), ("n", "b")


def test_what_a_watch_delivered_is_neither_late_nor_gone():
    seen = {A: ("u1", 7), B: ("u2", 9)}
    assert compare(seen, seen, 9) == ({}, set())


def test_an_object_that_was_never_delivered_and_one_that_changed_since_are_late():
    late, gone = compare({A: ("u1", 7), B: ("u2", 9)}, {B: ("u2", 8)}, 9)
    assert late == {A: ("u1", 7), B: ("u2", 9)}
    assert not gone


def test_what_came_after_the_list_was_made_is_not_gone():
    assert compare({}, {A: ("u1", 7), B: ("u2", 12)}, 9) == ({}, {A})
