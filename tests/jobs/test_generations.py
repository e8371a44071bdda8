"""A reset of the group begins a new generation of the checkpoint; going back takes the old one."""

import json
from pathlib import Path

import pytest

from headrace_jobs.progress.generations import (
    POINTER_FILE,
    RESET_NOTE,
    GenerationError,
    Generations,
    Reset,
)
from headrace_jobs.progress.offsets import TopicPartition
from headrace_operator.apply import apply_actions
from headrace_operator.plan import ResetOffsets

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def commit_batch(generation, batch_id, offsets):
    """Write what Spark writes of a committed batch."""
    by_index = {str(at.partition): offset for at, offset in offsets.items()}
    for folder, text in (
        ("offsets", f"v1\n{{}}\n{json.dumps({'t': by_index})}"),
        ("commits", "v1\n{}"),
        ("state", ""),
    ):
        path = Path(generation.path) / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / str(batch_id)).write_text(text)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoint"


def reset(offset, request_id="r1", at=FIRST):
    return {at: Reset(offset, request_id)}


def test_without_a_reset_the_checkpoint_is_the_folder_itself(root):
    generation = Generations(str(root)).follow({}, {FIRST: 0})
    assert (generation.number, generation.path) == (1, str(root))
    assert generation.starting_offsets == {}
    assert not root.exists()


def test_a_reset_begins_a_generation_that_starts_at_its_offsets_and_the_rest_goes_on(root):
    generations = Generations(str(root))
    commit_batch(generations.current, 4, {FIRST: 70, SECOND: 80})
    generation = generations.follow(reset(10), {FIRST: 70, SECOND: 80})
    assert (generation.number, generation.path) == (2, f"{root}/generation-2")
    assert generation.starting_offsets == {FIRST: 10, SECOND: 80}
    assert generation.position == {FIRST: 10, SECOND: 80}
    assert (root / "state").exists()


def test_a_reset_is_followed_once_also_by_a_start_after_a_crash(root):
    Generations(str(root)).follow(reset(10), {FIRST: 70})
    again = Generations(str(root)).follow(reset(10), {FIRST: 10})
    assert (again.number, again.position) == (2, {FIRST: 10})
    commit_batch(again, 0, {FIRST: 30})
    later = Generations(str(root)).follow(reset(10), {FIRST: 30})
    assert (later.number, later.position) == (2, {FIRST: 30})


def test_the_offsets_from_before_the_reset_go_back_to_the_old_generation_with_its_state(root):
    generations = Generations(str(root))
    commit_batch(generations.current, 4, {FIRST: 70, SECOND: 80})
    generation = generations.follow(reset(10), {FIRST: 70, SECOND: 80})
    commit_batch(generation, 0, {FIRST: 25, SECOND: 80})
    undone = Generations(str(root)).follow(reset(70, "undo"), {FIRST: 25, SECOND: 80})
    assert (undone.number, undone.path) == (1, str(root))
    assert Generations(str(root)).current == undone
    # And forward again, to where the second one was left.
    redone = Generations(str(root)).follow(reset(25, "redo"), {FIRST: 70, SECOND: 80})
    assert redone.number == 2


def test_a_reset_to_anywhere_else_begins_empty(root):
    generations = Generations(str(root))
    commit_batch(generations.current, 4, {FIRST: 70})
    commit_batch(generations.follow(reset(10), {FIRST: 70}), 0, {FIRST: 20})
    assert generations.follow(reset(69, "r2"), {FIRST: 20}).number == 3


def test_old_generations_are_removed_but_for_two(root):
    generations = Generations(str(root))
    commit_batch(generations.current, 0, {FIRST: 100})
    for turn in range(5):
        generation = generations.follow(reset(turn, f"r{turn}"), {FIRST: 100 + turn})
        commit_batch(generation, 0, {FIRST: 101 + turn})
    assert sorted(path.name for path in root.iterdir()) == [
        "generation-4",
        "generation-5",
        "generation-6",
        POINTER_FILE,
    ]
    assert Generations(str(root)).current.number == 6


def test_what_a_crash_left_of_a_generation_is_not_gone_on_with(root):
    (root / "generation-2" / "offsets").mkdir(parents=True)
    Generations(str(root)).follow(reset(1), {FIRST: 5})
    assert not (root / "generation-2").exists()


def test_partitions_that_the_query_does_not_read_are_no_reset_of_it(root):
    other = reset(1, at=TopicPartition("other", 0))
    assert Generations(str(root)).follow(other, {FIRST: 5}).number == 1


def test_a_checkpoint_that_is_no_folder_refuses_a_reset_and_says_why():
    generations = Generations("s3a://bucket/checkpoint")
    assert generations.follow({}, {FIRST: 5}).path == "s3a://bucket/checkpoint"
    with pytest.raises(GenerationError, match="s3a://bucket/checkpoint is no folder"):
        generations.follow(reset(1), {FIRST: 5})


@pytest.mark.parametrize("text", ["", "[]", '{"current": 2}', '{"current": "x"}'])
def test_a_broken_pointer_is_reported_and_never_guessed(root, text):
    root.mkdir()
    (root / POINTER_FILE).write_text(text)
    with pytest.raises(GenerationError, match=POINTER_FILE):
        Generations(str(root))


class RecordingAdmin:
    """Takes what the operator commits."""

    def alter_group_offsets(self, _group, offsets):
        self.notes = {entry.metadata for entry in offsets.values()}
        return {}


def test_the_operators_note_is_the_one_that_jobs_look_for():
    admin = RecordingAdmin()
    action = ResetOffsets(
        resource=("ConsumerGroup", "default", "g"),
        group="g",
        request_id="r-7",
        offsets={("t", 0): 1},
    )
    assert apply_actions(admin, [action]) == ()
    assert admin.notes == {f"{RESET_NOTE}r-7"}
