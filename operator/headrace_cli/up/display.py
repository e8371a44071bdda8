"""The screen of `up`: a live panel on a terminal, plain lines otherwise (a pipe, a CI log).

Both get the same calls. Event lines scroll away above the panel and stay readable.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from headrace_cli.up.views import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_cli.up.views import ResultRow

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "Status", "open_display"]

RESULT_ROWS_KEPT = 12
PLAIN_ROWS_AT_ONCE = 8
PANEL_REFRESH_PER_SECOND = 4


@dataclass(kw_only=True)
class Status:
    """The present state; each line is a name and its text."""

    cluster: str
    began: float = field(default_factory=time.monotonic)
    lines: dict[str, str] = field(default_factory=dict)
    results_title: str = "results"
    results: deque[ResultRow] = field(default_factory=lambda: deque(maxlen=RESULT_ROWS_KEPT))


class Display(Protocol):
    """What a session shows its user."""

    def event(self, text: str, *, is_problem: bool = False) -> None:
        """Show an event."""

    def status(self, name: str, text: str | None) -> None:
        """Set or remove one line of the current state."""

    def results(self, title: str, rows: Sequence[ResultRow]) -> None:
        """Show new results of a job."""

    def close(self) -> None:
        """Leave the screen in its final state."""


class PlainDisplay:
    """One line for each event, with the time; nothing is ever overwritten."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def event(self, text: str, *, is_problem: bool = False) -> None:
        """Print a line."""
        mark = "! " if is_problem else ""
        sys.stdout.write(f"{datetime.now().astimezone():%H:%M:%S} {mark}{text}\n")
        sys.stdout.flush()

    def status(self, name: str, text: str | None) -> None:
        """Do nothing: a log shows only events."""

    def results(self, title: str, rows: Sequence[ResultRow]) -> None:
        """Print the newest rows of a batch, and how many more there were."""
        for row in rows[:PLAIN_ROWS_AT_ONCE]:
            self.event(f"{title}: {row.line}")
        if len(rows) > PLAIN_ROWS_AT_ONCE:
            self.event(f"{title}: … and {len(rows) - PLAIN_ROWS_AT_ONCE} more")

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""


class LiveDisplay:
    """Events above, the state and the newest results below."""

    def __init__(self, status: Status) -> None:
        from rich.console import Console
        from rich.live import Live

        self._status = status
        self._terminal = _silence_keys()
        self._live: Live = Live(
            console=Console(highlight=False),
            get_renderable=self._render,
            refresh_per_second=PANEL_REFRESH_PER_SECOND,
            transient=True,
        )
        self._live.start()

    def event(self, text: str, *, is_problem: bool = False) -> None:
        """Print a line above the panel."""
        from rich.markup import escape

        style = "bold red" if is_problem else "default"
        moment = f"{datetime.now().astimezone():%H:%M:%S}"
        self._live.console.print(f"[dim]{moment}[/dim] [{style}]{escape(text)}[/{style}]")

    def status(self, name: str, text: str | None) -> None:
        """Set or remove one line of the panel."""
        if text is None:
            self._status.lines.pop(name, None)
        else:
            self._status.lines[name] = text

    def results(self, title: str, rows: Sequence[ResultRow]) -> None:
        """Add rows to the panel's table."""
        self._status.results_title = title
        self._status.results.extend(rows)

    def close(self) -> None:
        """Remove the panel; the last results stay as an ordinary table."""
        self._live.stop()
        _restore_keys(self._terminal)
        if self._status.results:
            self._live.console.print(_results_table(self._status))

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        state = Table.grid(padding=(0, 2))
        state.add_column(style="bold", no_wrap=True)
        state.add_column(overflow="fold")
        for name, text in self._status.lines.items():
            state.add_row(name, Text(text))
        parts: list[Any] = [state]
        if self._status.results:
            parts += [Text(), _results_table(self._status)]
        elapsed = format_seconds(time.monotonic() - self._status.began)
        return Panel(
            Group(*parts),
            title=f"headrace · cluster [bold]{self._status.cluster}[/bold] · {elapsed}",
            title_align="left",
            subtitle="Ctrl-C stops everything; data stays",
            subtitle_align="left",
            border_style="cyan",
        )


def open_display(status: Status) -> Display:
    """Choose a display for the kind of standard output."""
    return LiveDisplay(status) if sys.stdout.isatty() else PlainDisplay(status)


def _silence_keys() -> list[Any] | None:
    """Stop the terminal from echoing keys: `^C` would wrap at the panel's edge and break it."""
    import termios

    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):
        return None
    silent = list(before)
    silent[3] &= ~termios.ECHO  # the fourth field has the local modes, see termios(3)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    return before


def _restore_keys(before: list[Any] | None) -> None:
    import termios

    if before is not None:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _results_table(status: Status) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=status.results_title, title_justify="left", box=box.SIMPLE_HEAD)
    names = list(status.results[-1].cells)
    for name in names:
        last = status.results[-1].cells[name]
        table.add_column(
            name, justify="right" if last[:1].isdigit() and name != "window" else "left"
        )
    for row in sorted(status.results, key=lambda row: row.order):
        table.add_row(*(row.cells.get(name, "") for name in names))
    return table
