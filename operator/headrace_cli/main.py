"""Entry point of `headrace`.

A broker must be ready in under a second, so `headrace broker FILE` branches off here, before the
command line's libraries (typer, rich) are imported.
"""

from __future__ import annotations

import sys

BROKER_ARGUMENT_COUNT = 3


def main() -> None:
    """Run one command and exit: 0 done, 1 failed, 2 bad input."""
    arguments = sys.argv
    if (
        len(arguments) == BROKER_ARGUMENT_COUNT
        and arguments[1] == "broker"
        and not arguments[2].startswith("-")
    ):
        from headrace_cli.commands.broker import run_broker

        sys.exit(run_broker(arguments[2]))
    from headrace_cli.app import run

    sys.exit(run())


def kubectl_main() -> None:
    """Run one command as kubectl's plugin."""
    from headrace_cli.app import run
    from headrace_cli.plugin import PROGRAM, with_place_first

    sys.argv = [PROGRAM, *with_place_first(sys.argv[1:])]
    sys.exit(run())


if __name__ == "__main__":
    main()
