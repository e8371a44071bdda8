"""Arguments that every job has, with defaults from the environment, and their meaning."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_jobs.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JobSettings", "add_common_arguments", "common_settings", "duration"]


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """What every job is told."""

    name: str
    bootstrap_servers: str
    input_topic: str
    output_topic: str
    dead_letter_topic: str | None
    group: str | None
    checkpoint: str
    trigger_ms: int
    output_mode: str
    is_available_now: bool
    has_console: bool
    starting_offsets: str
    fail_on_data_loss: bool
    max_offsets_per_trigger: int
    metrics_address: str
    metrics_port: int
    metrics_address_file: Path | None
    startup_timeout_seconds: float
    stop_timeout_seconds: float

    @property
    def topics(self) -> set[str]:
        """Topics that have to exist before the query starts."""
        optional = {self.dead_letter_topic} if self.dead_letter_topic is not None else set()
        return {self.input_topic, self.output_topic} | optional


def add_common_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Add the arguments of `JobSettings`; `environment` has defaults for some."""
    _add_data_arguments(parser, environment)
    _add_process_arguments(parser, environment)


def common_settings(arguments: argparse.Namespace) -> JobSettings:
    """Return what `add_common_arguments` was given."""
    a = arguments
    return JobSettings(
        name=a.name,
        bootstrap_servers=a.bootstrap_servers,
        input_topic=a.input_topic,
        output_topic=a.output_topic,
        dead_letter_topic=a.dead_letter_topic or None,
        group=a.group or None,
        checkpoint=a.checkpoint,
        trigger_ms=a.trigger,
        output_mode=a.output_mode,
        is_available_now=a.available_now,
        has_console=a.console,
        starting_offsets=a.starting_offsets,
        fail_on_data_loss=a.fail_on_data_loss,
        max_offsets_per_trigger=a.max_offsets_per_trigger,
        metrics_address=a.metrics_address,
        metrics_port=a.metrics_port,
        metrics_address_file=a.metrics_address_file,
        startup_timeout_seconds=a.startup_timeout / 1000,
        stop_timeout_seconds=a.stop_timeout / 1000,
    )


def duration(text: str) -> int:
    """Parse an argument that is a duration, into milliseconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_data_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    data = parser.add_argument_group("data")
    _add(
        data,
        "--bootstrap-servers",
        environment.get("HEADRACE_BOOTSTRAP_SERVERS") or environment.get("HEADRACE_BOOTSTRAP"),
        help="brokers, host:port[,host:port…] (HEADRACE_BOOTSTRAP_SERVERS)",
    )
    data.add_argument("--input-topic", required=True, metavar="TOPIC")
    data.add_argument("--output-topic", required=True, metavar="TOPIC")
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
        help="folder of the query's checkpoint: its position and its state "
        "(HEADRACE_CHECKPOINT_DIR)",
    )
    _add_batch_arguments(data)


def _add_batch_arguments(data: argparse._ArgumentGroup) -> None:
    data.add_argument(
        "--output-mode",
        choices=("append", "update"),
        default="append",
        help="append: a window once, when the watermark passes its end (default); "
        "update: a window whenever it changed",
    )
    data.add_argument(
        "--trigger",
        type=duration,
        default="2s",
        help="interval between batches; 0s is as fast as possible (default: 2s)",
    )
    data.add_argument(
        "--available-now", action="store_true", help="process what is there, then end"
    )
    data.add_argument(
        "--starting-offsets",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a new checkpoint begins (default: earliest)",
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
        default=True,
        help="show results on standard output as well (default)",
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
        default=environment.get("HEADRACE_METRICS_PORT", "0"),
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
        help="how long to wait for brokers and topics (default: 2m)",
    )
    process.add_argument(
        "--stop-timeout",
        type=duration,
        default="20s",
        help="how long the running batch may take to finish on SIGTERM (default: 20s)",
    )


def _add(group: Any, flag: str, default: str | None, *, help: str) -> None:  # noqa: A002 - argparse's
    """Add an argument that is required unless the environment has it."""
    group.add_argument(flag, required=not default, default=default, help=help)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65_535:  # noqa: PLR2004 - TCP's ports
        raise argparse.ArgumentTypeError(f"{text} is not a port: 0 to 65535")
    return value
