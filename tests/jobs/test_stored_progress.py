"""What stored progress says about a batch, and about where a job goes on. No Spark, no store."""

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_jobs.progress.drivers import DriverEpoch
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.resume import (
    RESUMED,
    CheckpointState,
    OpenSink,
    ResumeError,
    Resumption,
    resume,
)
from headrace_jobs.progress.stored import (
    Batch,
    FencedError,
    GapError,
    StoredProgress,
    Verdict,
    format_progress,
    judge,
    parse_progress,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(batch_id, begin, end, checkpoint="a"):
    return Batch(
        batch_id=batch_id,
        checkpoint=checkpoint,
        begin={P0: begin},
        end={P0: end},
        topics={"t": "AAE", "u": "AAI"},
    )


STORED = StoredProgress(epoch=3, batch_id=4, checkpoint="a", offsets={P0: 50})


@pytest.mark.parametrize(
    ("next_batch", "verdict"),
    [
        (batch(5, 50, 60), Verdict.APPLY),
        (batch(5, 50, 50), Verdict.APPLY),  # a batch without records moves the watermark
        (batch(4, 40, 50), Verdict.SKIP),
        (batch(2, 20, 30), Verdict.SKIP),
        (batch(0, 50, 60, checkpoint="b"), Verdict.APPLY),
    ],
)
def test_a_batch_is_applied_once_and_known_when_it_comes_again(next_batch, verdict):
    assert judge(STORED, 3, next_batch) is verdict


@pytest.mark.parametrize(
    "other",
    [
        batch(5, 51, 60),
        batch(5, 49, 60),
        batch(0, 0, 60, checkpoint="b"),
        batch(4, 40, 55),  # planned again, with other records in it
    ],
)
def test_a_batch_that_leaves_a_gap_or_overlaps_is_refused(other):
    with pytest.raises(GapError, match="not of one history"):
        judge(STORED, 3, other)


def test_a_driver_with_another_epoch_is_fenced_even_where_the_batch_is_known():
    for epoch in (2, 4):
        with pytest.raises(FencedError, match="another driver opened the sink"):
            judge(STORED, epoch, batch(4, 40, 50))


def test_a_partition_that_was_added_begins_wherever_it_does():
    grown = Batch(batch_id=5, checkpoint="a", begin={P0: 50}, end={P0: 60, P1: 7})
    assert judge(STORED, 3, grown) is Verdict.APPLY
    assert judge(STORED.after(grown), 3, grown) is Verdict.SKIP


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=12))
def test_whatever_is_replayed_every_batch_counts_once(sizes_and_replays):
    stored, counted, end = StoredProgress(epoch=1), 0, 0
    for batch_id, (size, replays) in enumerate(sizes_and_replays):
        planned = batch(batch_id, end, end + size)
        end += size
        # A crash before the checkpoint's entry: the same batch again.
        for _ in range(1 + replays):
            if judge(stored, 1, planned) is Verdict.APPLY:
                counted += size
                stored = stored.after(planned)
    assert counted == end
    assert stored.offsets.get(P0, 0) == end
    assert parse_progress(format_progress(stored)) == stored


NEW = CheckpointState(identity="", committed=-1, planned=-1, position={P0: 0})


def decide(stored, checkpoint, *, is_stateful=False, adopt=False, can_rewind=True):
    sink = OpenSink(name="table t", stored=stored, can_rewind=can_rewind)
    return resume([sink], checkpoint, is_stateful=is_stateful, adopt=adopt)


@pytest.mark.parametrize("is_stateful", [False, True])
@pytest.mark.parametrize(
    ("stored", "checkpoint"),
    [
        (StoredProgress(epoch=1), NEW),
        (STORED, CheckpointState(identity="a", committed=4, planned=4, position={P0: 50})),
        # Killed between the sink's commit and the checkpoint's, and before the sink's.
        (STORED, CheckpointState(identity="a", committed=3, planned=4, position={P0: 40})),
        (STORED, CheckpointState(identity="a", committed=4, planned=5, position={P0: 50})),
        # In the first batch, before the sink's commit.
        (
            StoredProgress(epoch=1),
            CheckpointState(identity="a", committed=-1, planned=0, position={P0: 0}),
        ),
    ],
)
def test_a_checkpoint_and_a_sink_of_one_history_go_on(stored, checkpoint, is_stateful):
    assert decide(stored, checkpoint, is_stateful=is_stateful) == Resumption()


LOST = [
    NEW,
    CheckpointState(identity="b", committed=7, planned=7, position={P0: 70}),
    CheckpointState(identity="a", committed=9, planned=9, position={P0: 90}),
    CheckpointState(identity="a", committed=1, planned=2, position={P0: 20}),
]


@pytest.mark.parametrize("checkpoint", LOST)
def test_a_stateless_job_without_its_checkpoint_goes_on_from_the_sink(checkpoint):
    assert decide(STORED, checkpoint).start_at == {P0: 50}


@pytest.mark.parametrize("checkpoint", LOST)
@pytest.mark.parametrize(
    ("known", "recreated"),
    [({"t": "old"}, ("t",)), ({"t": "new"}, ()), ({}, ()), ({"u": "x"}, ())],
)
def test_a_topic_made_again_is_noticed_without_the_checkpoint(checkpoint, known, recreated):
    now = replace(checkpoint, topics={"t": "new"})
    assert decide(replace(STORED, topics=known), now).recreated == recreated


def test_a_reset_is_answer_enough_to_a_topic_made_again():
    reset = CheckpointState(
        identity="", committed=-1, planned=-1, position={P0: 1}, reset="r", topics={"t": "new"}
    )
    found = decide(replace(STORED, topics={"t": "old"}), reset)
    assert found.recreated == ()
    assert found.rewinds["table t"].topics == {"t": "new"}


def test_progress_of_a_former_version_is_read():
    text = '{"epoch": 3, "batch": 4, "checkpoint": "a", "offsets": {"t": {"0": 50}}, "reset": ""}'
    assert parse_progress(text) == STORED


@pytest.mark.parametrize("checkpoint", LOST)
def test_a_stateful_job_without_its_checkpoint_is_refused_with_what_to_do(checkpoint):
    with pytest.raises(ResumeError, match=r"Restore the checkpoint.*--generation"):
        decide(STORED, checkpoint, is_stateful=True)


@pytest.mark.parametrize("is_stateful", [False, True])
def test_a_first_batch_that_some_sinks_have_is_finished_in_the_others(is_stateful):
    """Killed between the sinks of one batch: one has it, the others have nothing at all yet."""
    checkpoint = CheckpointState(identity="a", committed=-1, planned=0, position={P0: 0})
    has_it = StoredProgress(epoch=2, batch_id=0, checkpoint="a", offsets={P0: 10})
    sinks = [
        OpenSink(name=f"topic {number}", stored=stored, can_rewind=False)
        for number, stored in enumerate((has_it, StoredProgress(epoch=2)))
    ]
    assert resume(sinks, checkpoint, is_stateful=is_stateful, adopt=False) == Resumption()


def test_a_start_from_the_sink_that_ended_before_its_first_batch_is_taken_up():
    again = replace(NEW, position={P0: 50}, reset=f"{RESUMED}3")
    assert decide(STORED, again) == Resumption()


def test_an_empty_sink_beside_a_used_checkpoint_is_refused_unless_it_is_adopted():
    used = CheckpointState(identity="a", committed=4, planned=4, position={P0: 50})
    with pytest.raises(ResumeError, match="--adopt-checkpoint"):
        decide(StoredProgress(epoch=2), used)
    adopted = decide(StoredProgress(epoch=2), used, adopt=True)
    assert adopted.rewinds == {"table t": StoredProgress(epoch=2, offsets={P0: 50})}


def test_a_reset_of_the_group_rewinds_a_sink_whose_rows_replace_themselves():
    reset = replace(NEW, position={P0: 10}, reset="to-10")
    found = decide(STORED, reset, is_stateful=True)
    assert found.rewinds == {"table t": StoredProgress(epoch=3, offsets={P0: 10}, reset="to-10")}
    with pytest.raises(ResumeError, match="no key"):
        decide(STORED, reset, can_rewind=False)
    # It is followed once.
    rewound = found.rewinds["table t"]
    assert decide(rewound, reset, is_stateful=True) == Resumption()


def test_sinks_that_stand_apart_are_refused_without_the_checkpoint():
    sinks = [
        OpenSink(name="a", stored=STORED, can_rewind=True),
        OpenSink(name="b", stored=replace(STORED, offsets={P0: 40}), can_rewind=True),
    ]
    with pytest.raises(ResumeError, match="do not stand at the same offsets"):
        resume(sinks, NEW, is_stateful=False, adopt=False)


def test_the_next_driver_of_a_checkpoint_fences_the_one_before(tmp_path):
    drivers = [DriverEpoch(tmp_path) for _ in range(6)]
    assert [driver.epoch for driver in drivers] == [1, 2, 3, 4, 5, 6]
    drivers[-1].check()
    for driver in drivers[:-1]:
        with pytest.raises(FencedError, match="another driver started on this checkpoint"):
            driver.check()


def test_a_drivers_epoch_outlives_a_power_cut(tmp_path, monkeypatch):
    """Its file has no bytes: the folder that names it has to be on the disk, and its name."""
    synced, fsync = set(), os.fsync

    def note(handle):
        fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    DriverEpoch(tmp_path)
    assert {tmp_path.stat().st_ino, (tmp_path / "drivers").stat().st_ino} <= synced
