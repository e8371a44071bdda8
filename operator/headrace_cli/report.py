"""What a command changed, or would change: lines for people, or one document for programs.

The document has the same fields for every command, its errors among them (docs/kubernetes.md).
"""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import CommandError
from headrace_cli.options import OutputFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Report", "ReportFormat", "ReportOutput", "reporting"]


class ReportFormat(StrEnum):
    """How a report is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


ReportOutput = Annotated[
    ReportFormat, typer.Option("--output", "-o", help="Format of what is printed.")
]


class Report:
    """Results of one command, in the order in which they come about."""

    def __init__(self, output: ReportFormat, *, is_dry_run: bool) -> None:
        """`is_dry_run`: nothing is changed."""
        self._output = output
        self._results: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._more: dict[str, Any] = {}
        self._is_dry_run = is_dry_run

    @property
    def is_document(self) -> bool:
        """Whether nothing but the document may be printed on standard output."""
        return self._output is not ReportFormat.TABLE

    def add(self, line: str | None, **result: Any) -> None:
        """Add a result. `line`: what people read, printed at once; None: nothing.

        An empty message is left out.
        """
        if not result.get("message", "-"):
            del result["message"]
        self._results.append(result)
        if line is not None:
            self.remark(line)

    def remark(self, line: str) -> None:
        """Print something only for people."""
        if not self.is_document:
            typer.echo(line)

    def set(self, **fields: Any) -> None:
        """Add fields to the document, beside its results."""
        self._more |= fields

    def fail(self, text: str) -> None:
        """Add an error for each line; people read them on standard error."""
        self._errors += [line.strip() for line in text.splitlines()]

    def print(self) -> None:
        """Print the document, if one is wanted."""
        from headrace_cli.output import print_document

        if self.is_document:
            document = {
                "dryRun": self._is_dry_run,
                "results": self._results,
                **self._more,
                "errors": self._errors,
            }
            print_document(document, OutputFormat(self._output.value))


@contextlib.contextmanager
def reporting(output: ReportFormat, *, is_dry_run: bool = False) -> Iterator[Report]:
    """Collect a report, and print it also if the command fails."""
    report = Report(output, is_dry_run=is_dry_run)
    try:
        yield report
    except CommandError as error:
        report.fail(str(error))
        report.print()
        raise
    except typer.Abort:
        report.fail("aborted")
        report.print()
        raise
    except typer.Exit:
        # An exit status that says something, as that of `diff`.
        report.print()
        raise
    report.print()
