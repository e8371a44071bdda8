"""Failures that the command line explains in one line, and its exit statuses."""

from __future__ import annotations

__all__ = ["EXIT_BAD_INPUT", "EXIT_FAILURE", "EXIT_SUCCESS", "BadInputError", "CommandError"]

EXIT_SUCCESS = 0
EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2


class CommandError(Exception):
    """The command could not do its work; the message says why and what to do."""

    exit_status = EXIT_FAILURE


class BadInputError(CommandError):
    """What the user gave (an argument, a manifest) is wrong."""

    exit_status = EXIT_BAD_INPUT
