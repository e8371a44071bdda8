"""At most once: a batch that was begun before writes nothing again, dead letters included."""

import pytest

from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.outputs import Outputs
from headrace_jobs.progress.metrics import JobMetrics
from headrace_jobs.transforms.tagged import SIDE

pytestmark = pytest.mark.spark


class Sink:
    """A sink without progress that keeps what it is given."""

    keeps_progress = False

    def __init__(self):
        self.rows = []

    def unfit(self, frame):
        del frame

    def write(self, frame, batch):
        self.rows += [(batch.batch_id, row["k"]) for row in frame.collect()]

    def close(self):
        """Nothing is open."""


class Letters:
    """Counts dead letters by batch."""

    def __init__(self):
        self.written = []

    def write(self, rows, batch_id, metrics):
        assert metrics is not None
        self.written += [batch_id] * rows.count()


@pytest.mark.parametrize(
    ("delivery", "times"), [(Delivery.AT_MOST_ONCE, 1), (Delivery.AT_LEAST_ONCE, 2)]
)
def test_the_dead_letters_of_a_batch_come_as_often_as_its_rows(spark, tmp_path, delivery, times):
    (tmp_path / "offsets").mkdir()
    sink, letters = Sink(), Letters()
    metrics = JobMetrics("app", "query", trigger_interval_seconds=1)
    frame = spark.createDataFrame(
        [("a", "result", None), (None, "rejected", "it is late")],
        "k STRING, _kind STRING, _reason STRING",
    ).selectExpr(
        "k",
        *(
            f"CAST({name if name in ('_kind', '_reason') else 'NULL'} AS {kind}) AS {name}"
            for name, kind in (each.split(" ") for each in SIDE.split(", "))
        ),
    )
    for _ in range(2):  # the second time by the next driver
        outputs = Outputs(writers=[sink], delivery=delivery, driver=None)
        outputs.checkpoint, outputs.metrics = str(tmp_path), metrics
        outputs.dead_letters = letters
        outputs.write(frame, 7)
    assert sink.rows == [(7, "a")] * times
    assert letters.written == [7] * times
