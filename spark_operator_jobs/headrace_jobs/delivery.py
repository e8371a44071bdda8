"""Delivery semantics: what a job asks for, and what its sinks can give."""

from enum import StrEnum

__all__ = ["Delivery"]


class Delivery(StrEnum):
    """How often a record counts in a sink's output, despite kills and restarts."""

    #: Progress is stored before the rows: a crash loses the batch in progress, and repeats nothing.
    AT_MOST_ONCE = "at-most-once"
    #: Progress is stored after the rows: a crash loses nothing, and may repeat the batch in
    #: progress.
    AT_LEAST_ONCE = "at-least-once"
    #: Progress is stored with the rows, in one atomic step.
    EXACTLY_ONCE = "exactly-once"
