"""The arguments of every job, with defaults from the environment."""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_jobs.declaration import topic_sinks
from headrace_jobs.delivery import Delivery
from headrace_jobs.durations import parse_duration, parse_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_jobs.declaration import Job

__all__ = ["JobSettings", "add_common_arguments", "common_settings", "duration"]

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_SERVER = re.compile(r"(\w+://)?(\[[\w:.%]+\]|[^\s:\[\]/]+):\d{1,5}", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """The settings of every job."""

    name: str
    bootstrap_servers: str
    #: In the order of the job's sources.
    input_topics: tuple[str, ...]
    #: In the order of the job's sinks.
    output_topics: tuple[str, ...]
    delivery: Delivery
    generation: int
    is_shadow: bool
    adopts_checkpoint: bool
    dead_letter_topic: str | None
    group: str | None
    checkpoint: str
    trigger_ms: int
    #: How long a batch lasts in which each record is written as it comes; None is batch by batch.
    real_time_ms: int | None
    output_mode: str
    is_available_now: bool
    #: Whether to end with the records available now; later ones are not awaited.
    ends_input: bool
    #: 0 is never.
    idle_timeout_seconds: float
    has_console: bool
    #: `earliest`, `latest`, or milliseconds since 1970: the first records of that time or later.
    starting_offsets: str | int
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    metrics_address: str
    metrics_port: int
    metrics_address_file: Path | None
    startup_timeout_seconds: float
    stop_timeout_seconds: float
    #: The group of the generation that readers see; `group` is this driver's.
    live_group: str | None = None

    @property
    def output_topic(self) -> str | None:
        """The topic of the results, if there is exactly one."""
        return self.output_topics[0] if len(self.output_topics) == 1 else None

    @property
    def trigger_interval_seconds(self) -> float:
        """The interval that a batch may overrun; 0 where no batch waits for its time."""
        has_none = self.is_available_now or self.real_time_ms is not None
        return 0.0 if has_none else self.trigger_ms / 1000

    @property
    def topics(self) -> set[str]:
        """Topics that must exist before the query starts."""
        dead_letters = () if self.dead_letter_topic is None else (self.dead_letter_topic,)
        return {*self.input_topics, *self.output_topics, *dead_letters}


def add_common_arguments(
    parser: argparse.ArgumentParser, job: Job, environment: Mapping[str, str]
) -> None:
    """Add the arguments of `JobSettings`; `environment` has defaults for some."""
    _add_data_arguments(parser, job, environment)
    _add_process_arguments(parser, environment)


def common_settings(job: Job, arguments: argparse.Namespace) -> JobSettings:
    """Return the settings from the common arguments. Raises `ValueError` for wrong topics."""
    a = arguments
    settings = JobSettings(
        name=a.name,
        bootstrap_servers=a.bootstrap_servers,
        input_topics=_input_topics(job, a.input_topic or ()),
        output_topics=_output_topics(job, a),
        delivery=Delivery(a.delivery),
        generation=a.generation,
        is_shadow=a.shadow,
        adopts_checkpoint=a.adopt_checkpoint,
        dead_letter_topic=a.dead_letter_topic or None,
        group=_group_of(a),
        live_group=a.group or None,
        checkpoint=_checkpoint_of(a),
        trigger_ms=a.trigger,
        real_time_ms=a.real_time,
        output_mode=a.output_mode,
        is_available_now=a.available_now or a.end_of_input,
        ends_input=a.end_of_input,
        # A job in real time has no state, so nothing waits for more.
        idle_timeout_seconds=0 if a.real_time is not None else a.idle_timeout / 1000,
        has_console=a.console and a.real_time is None,
        starting_offsets=a.starting_offsets,
        fail_on_data_loss=a.fail_on_data_loss,
        max_offsets_per_trigger=None if a.real_time is not None else a.max_offsets_per_trigger,
        metrics_address=a.metrics_address,
        metrics_port=a.metrics_port,
        metrics_address_file=a.metrics_address_file,
        startup_timeout_seconds=a.startup_timeout / 1000,
        stop_timeout_seconds=a.stop_timeout / 1000,
    )
    _check_topics(settings)
    return settings


def duration(text: str) -> int:
    """Parse an argument that is a duration, into milliseconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _starting_point(text: str) -> str | int:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        moment = parse_moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"neither earliest nor latest, and {error}") from error
    if moment > time.time() * 1000:
        raise argparse.ArgumentTypeError(
            f"{text} is in the future: latest begins with the records that are still to come"
        )
    return moment


def _input_topics(job: Job, given: Sequence[str]) -> tuple[str, ...]:
    """Return a topic for each source: the given one, else the declared one."""
    if len(job.sources) == 1:
        return tuple(given[-1:]) or tuple(source.topic or "" for source in job.sources)
    named = {name: topic for name, _, topic in (text.partition("=") for text in given)}
    unknown = named.keys() - {source.name for source in job.sources}
    topics = tuple(named.get(source.name, source.topic) or "" for source in job.sources)
    if unknown or "" in topics:
        names = ", ".join(f"{source.name}=TOPIC" for source in job.sources)
        raise ValueError(f"argument --input-topic: this job has several, write {names}")
    return topics


def _checkpoint_of(arguments: argparse.Namespace) -> str:
    """Return the generation's own folder: its batches start at 0, with new state."""
    root: str = arguments.checkpoint
    generation = arguments.generation
    return root if generation == 1 else f"{root.rstrip('/')}/job-generation-{generation}"


def _group_of(arguments: argparse.Namespace) -> str | None:
    """Return the group; a shadow has its own, so that the live group's lag stays true."""
    group: str | None = arguments.group or None
    return f"{group}-g{arguments.generation}" if group and arguments.shadow else group


def _output_topics(job: Job, arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return all topics that the job writes, dead letters aside."""
    given: str | None = getattr(arguments, "output_topic", None)
    if given:
        return (given,)
    return tuple(sink.topic for sink in topic_sinks(job) if sink.topic is not None)


def _add_topics(data: argparse._ArgumentGroup, job: Job) -> None:
    data.add_argument(
        "--input-topic",
        action="append",
        required=any(source.topic is None for source in job.sources),
        metavar="TOPIC",
        help="what to read, in place of the declared topic; NAME=TOPIC in a job with several",
    )
    outputs = topic_sinks(job)
    if len(outputs) == 1:
        required = outputs[0].topic is None
        data.add_argument("--output-topic", required=required, metavar="TOPIC")


def _add_data_arguments(
    parser: argparse.ArgumentParser, job: Job, environment: Mapping[str, str]
) -> None:
    data = parser.add_argument_group("data")
    _add(
        data,
        "--bootstrap-servers",
        environment.get("HEADRACE_BOOTSTRAP_SERVERS") or environment.get("HEADRACE_BOOTSTRAP"),
        parse=_servers,
        help="brokers, host:port[,host:port…] (HEADRACE_BOOTSTRAP_SERVERS)",
    )
    _add_topics(data, job)
    data.add_argument(
        "--delivery",
        choices=[each.value for each in Delivery],
        default=job.delivery.value,
        help=f"how often a record counts (default: {job.delivery})",
    )
    data.add_argument(
        "--generation",
        type=_positive,
        default=job.generation,
        metavar="N",
        help="a new one begins beside the old one, with progress of its own"
        f" (default: {job.generation})",
    )
    data.add_argument(
        "--dead-letter-topic",
        default=environment.get("HEADRACE_DEAD_LETTER_TOPIC", ""),
        metavar="TOPIC",
        help="topic that malformed records go to, as they came, with the reason in a header; "
        "only counted without it (HEADRACE_DEAD_LETTER_TOPIC)",
    )
    data.add_argument(
        "--group",
        default=environment.get("HEADRACE_GROUP", ""),
        help="ConsumerGroup that progress is committed to; none without it (HEADRACE_GROUP)",
    )
    _add(
        data,
        "--checkpoint",
        environment.get("HEADRACE_CHECKPOINT_DIR"),
        parse=_folder,
        help="folder of the query's checkpoint: its position and its state "
        "(HEADRACE_CHECKPOINT_DIR)",
    )
    data.add_argument(
        "--shadow",
        action=argparse.BooleanOptionalAction,
        default=job.shadow,
        help="a new generation's rows go beside those that readers see, until `headrace jobs swap`",
    )
    data.add_argument(
        "--adopt-checkpoint",
        action="store_true",
        help="believe the checkpoint where a sink has no progress yet: what came before stays out",
    )
    _add_batch_arguments(data, job)


def _add_batch_arguments(data: argparse._ArgumentGroup, job: Job) -> None:
    data.add_argument(
        "--output-mode",
        choices=("append", "update"),
        default=job.output_mode,
        help="append: a window once, when the watermark passes its end; "
        f"update: a window whenever it changed (default: {job.output_mode})",
    )
    data.add_argument(
        "--trigger",
        type=duration,
        default="2s",
        help="interval between batches; 0s is as fast as possible (default: 2s)",
    )
    data.add_argument(
        "--real-time",
        type=duration,
        metavar="DURATION",
        help="write each record as it comes, at least once, and keep progress this often (5s at"
        " least): jobs without state, into one topic",
    )
    data.add_argument(
        "--available-now", action="store_true", help="process what is there, then end"
    )
    data.add_argument(
        "--end-of-input",
        action="store_true",
        help="like --available-now, and write what waits for more: nothing else is to come",
    )
    data.add_argument(
        "--idle-timeout",
        type=duration,
        default="1m",
        help="when all topics are silent for so long, windows that wait for more are written;"
        " 0s is never (default: 1m)",
    )
    data.add_argument(
        "--starting-offsets",
        "--from",
        type=_starting_point,
        default="earliest",
        metavar="WHERE",
        help="where a new checkpoint begins: earliest, latest, or with the first records of a time,"
        " as 2026-01-31T12:00:00Z (default: earliest)",
    )
    data.add_argument(
        "--fail-on-data-loss",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="fail when offsets that the checkpoint names are gone (default), or go on with a gap",
    )
    data.add_argument(
        "--max-offsets-per-trigger",
        type=_positive,
        default=500_000,
        metavar="N",
        help="records of one batch at most (default: 500000)",
    )


def _add_process_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    process = parser.add_argument_group("process")
    process.add_argument(
        "--name",
        default=environment.get("HEADRACE_JOB_NAME") or parser.prog,
        help="the job's name in metrics (HEADRACE_JOB_NAME)",
    )
    process.add_argument(
        "--console",
        action=argparse.BooleanOptionalAction,
        default=sys.stdout.isatty(),
        help="show results on standard output as well (default: where that is a terminal)",
    )
    process.add_argument(
        "--metrics-address",
        default=environment.get("HEADRACE_METRICS_ADDRESS") or "127.0.0.1",
        metavar="ADDRESS",
        help="address that /metrics listens on (default: 127.0.0.1; HEADRACE_METRICS_ADDRESS)",
    )
    process.add_argument(
        "--metrics-port",
        type=_port,
        default=environment.get("HEADRACE_METRICS_PORT") or "0",
        help="port of /metrics; 0 takes a free one (default; HEADRACE_METRICS_PORT)",
    )
    process.add_argument(
        "--metrics-address-file",
        type=Path,
        default=environment.get("HEADRACE_METRICS_ADDRESS_FILE") or None,
        metavar="FILE",
        help="file that the URL of /metrics is written to (HEADRACE_METRICS_ADDRESS_FILE)",
    )
    process.add_argument(
        "--startup-timeout",
        type=duration,
        default="2m",
        help="how long to wait for brokers and topics, and for the servers of sinks (default: 2m)",
    )
    process.add_argument(
        "--stop-timeout",
        type=duration,
        default="20s",
        help="how long the running batch may take to finish on SIGTERM (default: 20s)",
    )


def _add(
    group: Any,
    flag: str,
    default: str | None,
    *,
    parse: Callable[[str], str],
    help: str,  # noqa: A002 - argparse's
) -> None:
    """Add an argument that is required unless the environment provides it."""
    group.add_argument(flag, required=not default, default=default, type=parse, help=help)


def _positive(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _port(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > 65_535:  # noqa: PLR2004 - TCP's ports
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _servers(text: str) -> str:
    servers = [each.strip() for each in text.split(",") if each.strip()]
    if not servers or not all(map(_SERVER.fullmatch, servers)):
        raise argparse.ArgumentTypeError(f"{text!r}: write host:port, with commas between several")
    return ",".join(servers)


def _folder(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name the folder")
    return text


def _check_topics(settings: JobSettings) -> None:
    """Refuse names that no topic has, and a job that reads what it writes, for ever."""
    for topic in sorted(settings.topics):
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise ValueError(
                f"{topic!r} is no name of a topic: it has up to 249 letters, digits, '.', '_' and"
                " '-'; a job reads one for each of its sources"
            )
    outputs = set(settings.output_topics)
    read = set(settings.input_topics)
    if outputs & read:
        raise ValueError(f"topic {min(outputs & read)} is input and output: give another output")
    if settings.dead_letter_topic in outputs | read:
        raise ValueError(
            f"argument --dead-letter-topic: {settings.dead_letter_topic} is also the job's input or"
            " output: records that are set aside need a topic of their own"
        )
