"""Which state a streaming query keeps between batches, read from its logical plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["has_sparks_watermark", "is_stateful", "unbounded_joins"]

# Any watermark, above 32 bits: py4j has to pass it as Java's long.
_SOME_WATERMARK_US = 2**40

# The nodes of a logical plan that Spark runs with a state store (`IncrementalExecution`).
_STATEFUL = (
    "Aggregate",
    "Deduplicate",
    "Distinct",
    "FlatMapGroups",
    "GlobalLimit",
    "TransformWithState",
)


def is_stateful(frame: DataFrame) -> bool:
    """Return whether a query over this streaming frame would have state."""
    java: Any = frame._jdf  # noqa: SLF001 - pyspark offers no public way to the plan
    return _has_state(java.queryExecution().analyzed())


def has_sparks_watermark(frame: DataFrame) -> bool:
    """Return whether a query over this frame drops what is behind Spark's own watermark."""
    java: Any = frame._jdf  # noqa: SLF001 - pyspark offers no public way to the plan
    return _has_watermark(java.queryExecution().analyzed())


def unbounded_joins(frame: DataFrame) -> list[str]:
    """Return the conditions of stream-stream joins that would keep rows of a side forever.

    A join is bounded if a watermark on both sides tells when a row can no longer match: by the
    times in its condition, or by a window among its keys. Spark's own helper decides this, on the
    optimised plan, where a `where` after the join is part of its condition.
    """
    session: Any = frame.sparkSession
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - pyspark offers no public way to the JVM
    java: Any = frame._jdf  # noqa: SLF001 - nor to the plan
    optimizer = session._jsparkSession.sessionState().optimizer()  # noqa: SLF001 - the same
    plan = optimizer.execute(java.queryExecution().analyzed())
    return [_condition(join) for join in _stream_joins(plan) if not _is_bounded(jvm, join)]


def _stream_joins(node: Any) -> list[Any]:
    if not node.isStreaming():
        return []
    inputs = _inputs(node)
    is_join = str(node.nodeName()) == "Join" and all(each.isStreaming() for each in inputs)
    return [
        *([node] if is_join else []),
        *(join for each in inputs for join in _stream_joins(each)),
    ]


def _is_bounded(jvm: Any, join: Any) -> bool:
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    if helper.isWatermarkInJoinKeys(join):
        return True
    left, right = join.left().outputSet(), join.right().outputSet()
    watermark = jvm.scala.Some(_SOME_WATERMARK_US)
    return all(
        helper.getStateValueWatermark(own, other, join.condition(), watermark).isDefined()
        for own, other in ((left, right), (right, left))
    )


def _condition(join: Any) -> str:
    condition = join.condition()
    return str(condition.get().sql()) if condition.isDefined() else "no condition"


def _inputs(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]


def _has_state(node: Any) -> bool:
    if not node.isStreaming():
        return False
    inputs = _inputs(node)
    name = str(node.nodeName())
    if name.startswith(_STATEFUL):
        return True
    if name == "Join" and all(each.isStreaming() for each in inputs):
        return True
    return any(_has_state(each) for each in inputs)


def _has_watermark(node: Any) -> bool:
    return str(node.nodeName()) == "EventTimeWatermark" or any(map(_has_watermark, _inputs(node)))
