"""`headrace jobs`: make a job, run one on this machine, compare and swap its generations."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.kubernetes.choice import refuse_kubernetes
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory
from headrace_cli.report import Report, ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_jobs.sinks.generations import OutputGenerations

__all__ = ["jobs_app"]

jobs_app = typer.Typer(
    name="jobs",
    help="Declare and run stream jobs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Of a SparkApplication: its driver's Service has a longer one.
_NAME_LENGTH_MAX = 56


@jobs_app.command(
    name="run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def run(
    context: typer.Context,
    module: Annotated[str, typer.Argument(help="Module with a JOB, or its file.")],
    *,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Run a declared job on this machine, against the local cluster or brokers that are named.

    What follows MODULE goes to the job: `headrace jobs run orders.py -- --help` lists it.
    Its checkpoint is kept in the data directory unless --checkpoint, or HEADRACE_CHECKPOINT_DIR,
    names another place.
    """
    _become("run", module, list(context.args), (data_dir, cluster, bootstrap_server))


@jobs_app.command(
    name="replay-late", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def replay_late(
    context: typer.Context,
    module: Annotated[str, typer.Argument(help="Module with a JOB, or its file.")],
    *,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Correct late records: compute the results that they belong to again, from the whole input.

    What follows MODULE are the job's own arguments, --dead-letter-topic among them. The job may run
    meanwhile. What was replayed is noted in the group JOB.late.
    """
    _become("replay_late", module, list(context.args), (data_dir, cluster, bootstrap_server))


def _become(
    program: str, module: str, arguments: list[str], place: tuple[Path, str | None, str | None]
) -> None:
    """Exec the process of a job; arguments that nothing else says come from the local cluster."""
    from headrace_cli.clients import find_cluster

    data_dir, cluster, bootstrap_server = place
    if not {"-h", "--help"} & set(arguments):
        if not (
            _names(arguments, "--bootstrap-servers")
            or _names(arguments, "--bootstrap-server")
            or (_are_brokers_set() and not cluster and not bootstrap_server)
        ):
            refuse_kubernetes("a SparkApplication")
            target = find_cluster(data_dir, cluster, bootstrap_server)
            arguments += ["--bootstrap-servers", target.bootstrap_servers]
        if not (_names(arguments, "--checkpoint") or os.environ.get("HEADRACE_CHECKPOINT_DIR")):
            # Of a module in a package its whole name: by_day.orders is not by_hour.orders.
            name = Path(module).stem if module.endswith(".py") else module
            folder = data_dir.absolute() / "jobs" / name / "checkpoint"
            arguments += ["--checkpoint", str(folder)]
    command = [sys.executable, "-m", f"headrace_jobs.jobs.{program}", module, *arguments]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The job handles signals itself; nothing is left to do here.
    os.execv(sys.executable, command)  # noqa: S606 - we become it


@jobs_app.command(name="new")
def new(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and -.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Where to; a folder of that name by default.")
    ] = None,
) -> None:
    """Make a job: its module, a test of its transform, and its manifest."""
    from headrace_jobs.scaffold import is_taken, job_files

    if not _NAME.fullmatch(name) or len(name) > _NAME_LENGTH_MAX:
        raise BadInputError(
            f"{name!r} is no name for a job: up to {_NAME_LENGTH_MAX} lower-case letters, digits"
            " and -"
        )
    if is_taken(name):
        raise BadInputError(
            f"{name!r} is no name for a job: its module would hide Python's, or a library's, of"
            " that name, or be a test of pytest's, or YAML would take it for another value; take"
            f" one like {name.removeprefix('test-')}-job"
        )
    target = folder or Path(name)
    files = {target / file: text for file, text in job_files(name).items()}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise CommandError(f"nothing was written: {', '.join(there)} exists")
    target.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text)
        typer.echo(f"wrote {path}")
    module = f"{name.replace('-', '_')}.py"
    typer.echo(f"Test it: pytest {target}. Run it: headrace jobs run {target / module}")


Module = Annotated[str, typer.Argument(help="Module with a JOB, or its file.")]
Generation = Annotated[int, typer.Argument(help="Number of the generation.")]


@jobs_app.command(name="generations")
def generations(module: Module, *, output: ReportOutput = ReportFormat.TABLE) -> None:
    """List the generations of a job in each sink: where their rows are, and how far they go."""
    with reporting(output) as report, _refusals():
        for sink, found in _outputs(module, report):
            report.remark(f"{sink}:")
            _print_generations(sink, found, report)


def _print_generations(sink: str, found: OutputGenerations, report: Report) -> None:
    from headrace_cli.output import print_table
    from headrace_jobs.progress.offsets import format_offsets

    rows = []
    for each in found.all():
        offsets = format_offsets(each.offsets)
        report.add(
            None,
            sink=sink,
            generation=each.generation,
            isLive=each.is_live,
            output=each.output,
            delivery=each.delivery,
            batch=each.batch_id,
            offsets=json.loads(offsets),
        )
        rows.append(
            {
                "GENERATION": str(each.generation),
                "READERS": "see it" if each.is_live else "-",
                "OUTPUT": each.output,
                "DELIVERY": each.delivery,
                "BATCH": str(each.batch_id),
                "OFFSETS": offsets,
            }
        )
    if not report.is_document:
        print_table(rows, indent="  ")


@jobs_app.command(name="diff")
def diff(
    module: Module,
    old: Generation,
    new: Generation,
    *,
    examples: Annotated[int, typer.Option(help="How many rows that differ to show.")] = 10,
    output: ReportOutput = ReportFormat.TABLE,
) -> None:
    """Compare the rows of two generations. Exit status 1 when they differ."""
    is_equal = True
    with reporting(output, is_dry_run=True) as report, _refusals():
        for sink, found in _outputs(module, report):
            result = found.diff(old, new, examples_max=examples)
            is_equal = is_equal and result.is_none
            report.add(
                f"{sink}: {result.same:,} rows alike, {result.changed:,} changed,"
                f" {result.only_old:,} in generation {old} only, {result.only_new:,} in generation"
                f" {new} only",
                sink=sink,
                same=result.same,
                changed=result.changed,
                onlyOld=result.only_old,
                onlyNew=result.only_new,
                columnsOnlyOld=list(result.columns_old),
                columnsOnlyNew=list(result.columns_new),
                examples=[{"old": was, "new": now} for was, now in result.examples],
            )
            sides = ((old, result.columns_old), (new, result.columns_new))
            for number, columns in sides:
                if columns:
                    report.remark(f"  columns of generation {number} only: {', '.join(columns)}")
            for was, now in result.examples:
                report.remark(
                    "\n".join(f"  {sign} {row}" for sign, row in (("-", was), ("+", now)) if row)
                )
    if not is_equal:
        raise typer.Exit(1)


@jobs_app.command(name="swap")
def swap(
    module: Module, generation: Generation, *, output: ReportOutput = ReportFormat.TABLE
) -> None:
    """Make a generation the one that readers see, in one step; the other stays beside it.

    The same command with the number of the one before goes back. Drivers of both may run.
    """
    with reporting(output) as report, _refusals():
        for sink, found in _outputs(module, report):
            found.swap(generation)
            line = f"{sink}: readers see generation {generation}"
            report.add(line, sink=sink, generation=generation, result="swapped")


@jobs_app.command(name="discard")
def discard(
    module: Module,
    generation: Generation,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: ReportOutput = ReportFormat.TABLE,
) -> None:
    """Throw away a generation that readers do not see: its rows and its progress."""
    with reporting(output) as report, _refusals():
        for sink, found in _outputs(module, report):
            if not yes:
                question = f"{sink}: delete the rows of generation {generation}?"
                typer.confirm(question, abort=True, err=True)
            found.discard(generation)
            line = f"{sink}: generation {generation} is gone; remove its SparkApplication"
            report.add(line, sink=sink, generation=generation, result="discarded")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Report a sink's refusal as an error of the command."""
    from headrace_jobs.sinks.protocol import SinkError

    try:
        yield
    except SinkError as error:
        raise CommandError(str(error)) from error


def _outputs(module: str, report: Report) -> Iterator[tuple[str, OutputGenerations]]:
    """Yield each sink of a job that has generations."""
    from headrace_jobs.jobs.run import DeclarationError, load_job
    from headrace_jobs.sinks.generations import shadowing

    try:
        job = load_job(module)
    except DeclarationError as error:
        raise BadInputError(str(error)) from error
    sinks = [(sink.describe(), shadowing(sink)) for sink in job.sinks]
    if not any(found for _, found in sinks):
        names = ", ".join(name for name, _ in sinks)
        raise CommandError(f"no sink of {job.name} has generations side by side: {names}")
    for name, sink in sinks:
        if sink is None:
            line = f"{name}: has no generations side by side; compare it by its own name"
            report.add(line, sink=name, result="without generations")
            continue
        yield name, sink.output_generations(job.name)


def _are_brokers_set() -> bool:
    """Whether the job itself takes them from the environment (`jobs.arguments`)."""
    from headrace_cli.kubernetes.choice import chosen
    from headrace_cli.profiles import selected

    names = ("HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_BOOTSTRAP")
    return selected() is None and chosen() is None and any(map(os.environ.get, names))


def _names(arguments: list[str], flag: str) -> bool:
    return any(each == flag or each.startswith(f"{flag}=") for each in arguments)
