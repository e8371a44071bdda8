"""Delivery semantics: what a job asks for, and what its sinks can give."""

from enum import StrEnum

__all__ = ["Delivery"]


class Delivery(StrEnum):
    """How often a record counts in what a sink holds, whatever is killed and started again."""

    #: Progress is stored before the rows: a crash loses the batch in work, and repeats nothing.
    AT_MOST_ONCE = "at-most-once"
    #: Progress is stored after the rows: a crash loses nothing, and may repeat the batch in work.
    AT_LEAST_ONCE = "at-least-once"
    #: Progress is stored with the rows, in one atomic step.
    EXACTLY_ONCE = "exactly-once"
