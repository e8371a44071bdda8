"""How `up` shows jobs and results. Pure: values in, text out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.plan import Key
    from headrace_operator.resources import SparkApplication

__all__ = [
    "JobView",
    "ResultRow",
    "describe_age",
    "format_seconds",
    "job_view",
    "parse_result",
]


@dataclass(frozen=True, kw_only=True)
class JobView:
    """What a job reads and writes, from its arguments."""

    name: str
    key: Key
    input_topic: str | None
    output_topic: str | None
    group: str | None


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One result of a job: column names and values."""

    cells: dict[str, str]
    #: Windows in their order, then the columns in theirs.
    order: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The row as one line of text."""
        return "  ".join(f"{name} {text}" for name, text in self.cells.items())


def job_view(application: SparkApplication) -> JobView:
    """Find topics and group in `--input-topic X` or `--input-topic=X`."""
    arguments = application.spec.arguments
    return JobView(
        name=application.metadata.name,
        key=application.key,
        input_topic=_argument(arguments, "--input-topic"),
        output_topic=_argument(arguments, "--output-topic"),
        group=_argument(arguments, "--group"),
    )


def parse_result(value: bytes | None) -> ResultRow | None:
    """Turn a result's JSON object into cells; a window's two ends become one. None: no object."""
    try:
        fields = json.loads(value or b"")
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    cells: dict[str, str] = {}
    start, end = fields.pop("window_start", None), fields.pop("window_end", None)
    if start is not None and end is not None:
        cells["window"] = f"{_clock(str(start))} to {_clock(str(end))}"
    for name, content in fields.items():
        cells[_TITLES.get(str(name), str(name))] = _text(name, content)
    return ResultRow(cells=cells, order=(str(start or ""), *cells.values()))


def format_seconds(seconds: float) -> str:
    """`42s`, `3m05s`, `1h02m`."""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes of an hour
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def describe_age(seconds: int | None) -> str:
    """Return `3m05s`; - if it is not known."""
    return "-" if seconds is None else format_seconds(seconds)


_TITLES = {"hostname": "host", "usage_avg": "avg", "usage_max": "max"}


def _argument(arguments: Sequence[str], name: str) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


def _clock(moment: str) -> str:
    """Time of day of an ISO 8601 moment, in this machine's time zone."""
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{parsed.astimezone():%H:%M:%S}"


def _text(name: str, content: Any) -> str:
    if isinstance(content, float):
        return f"{content:.1f}" + ("%" if name.startswith("usage") else "")
    return str(content)
