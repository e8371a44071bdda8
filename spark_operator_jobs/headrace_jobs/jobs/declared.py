"""Runs a declared job as a process: its arguments, its parameters, then the runner."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import re
from typing import TYPE_CHECKING, Any

from headrace_jobs import logs
from headrace_jobs.declaration import Delivery, problems
from headrace_jobs.jobs.arguments import add_common_arguments, common_settings
from headrace_jobs.jobs.real_time import refusals
from headrace_jobs.jobs.runner import run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_jobs.declaration import Job, Parameter
    from headrace_jobs.jobs.arguments import JobSettings

__all__ = ["parse_declared", "run_declared"]

_PERCENT = re.compile(r"%(?![(%])")


def run_declared(job: Job, arguments: Sequence[str] | None = None) -> int:
    """Run the job until it is stopped. Returns the exit status; bad arguments exit with 2."""
    job, settings, parameters = parse_declared(job, arguments)
    logs.configure()
    return run_query(job, settings, parameters)


def parse_declared(
    job: Job, arguments: Sequence[str] | None = None
) -> tuple[Job, JobSettings, dict[str, Any]]:
    """Return the job as requested, and its parameters. Bad arguments exit with 2."""
    parser = _parser(job, os.environ)
    parsed = parser.parse_args(arguments)
    fields = [_field(each.name) for each in job.parameters]
    parameters = {field: getattr(parsed, field) for field in fields}
    job = dataclasses.replace(
        job,
        delivery=Delivery(parsed.delivery),
        generation=parsed.generation,
        shadow=parsed.shadow,
        output_mode=parsed.output_mode,
    )
    try:
        job.check(parameters)
        settings = common_settings(job, parsed)
    except ValueError as error:
        parser.error(str(error))
    if "output_mode" in inspect.signature(job.transform).parameters:
        parameters["output_mode"] = job.output_mode
    found = [*problems(job), *refusals(job, settings)]
    if found:
        parser.error("; ".join(found))
    return job, settings, parameters


def _parser(job: Job, environment: Mapping[str, str]) -> argparse.ArgumentParser:
    # In full: what only begins an argument's name would miss those that a launcher adds.
    parser = argparse.ArgumentParser(prog=job.name, description=job.description, allow_abbrev=False)
    add_common_arguments(parser, job, environment)
    if job.parameters:
        group = parser.add_argument_group("parameters of the job")
        for each in job.parameters:
            options: dict[str, Any] = {"type": _parse(each), "default": each.default}
            try:
                # A share in % is no format of argparse's.
                text = _PERCENT.sub("%%", each.help)
                group.add_argument(f"--{_flag(each.name)}", help=text, **options)
            except argparse.ArgumentError:
                parser.error(
                    f"parameters: there is an argument --{_flag(each.name)} already: give the"
                    " parameter another name"
                )
    return parser


def _parse(parameter: Parameter) -> Callable[[str], Any]:
    """Return what parses a parameter, and says why it does not; argparse says that of types."""
    if isinstance(parameter.parse, type):
        return parameter.parse

    def parse(text: str) -> Any:
        try:
            return parameter.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _field(name: str) -> str:
    return name.replace("-", "_")
