"""Which names of columns a fold cannot take, because it has others of these names. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["OF_ROWS", "refuse_names"]

#: What a fold's rows have beside its keys and values (`key_groups`).
OF_ROWS = frozenset(
    (
        *("partition", "offset", "event_us", "reason", "turn", "key_group", "now_ms"),
        *("record_topic", "record_key", "record_value", "record_headers", "payload_row"),
    )
)


def refuse_names(
    *, keys: Sequence[str], given: Sequence[str], results: Sequence[str], taken: Collection[str]
) -> None:
    """Raise `ValueError` for a name that means something else to a fold.

    `keys` and `given` are columns of its rows, `keys` and `results` those that it returns, of which
    `taken` are its own. One that begins with `_` would be left out of the results without a word.
    """
    if isinstance(keys, str) or not keys:
        raise ValueError("keys: a tuple of one column or more, as in keys=('name',)")
    own = {name for name in (*keys, *given) if name in OF_ROWS}
    own |= {name for name in (*keys, *results) if name in taken or name.startswith("_")}
    if own:
        raise ValueError(f"{min(own)}: the fold has such a column itself, give yours another name")
    twice = {name for name in (*keys, *results) if [*keys, *results].count(name) > 1}
    if twice:
        raise ValueError(f"{min(twice)}: two columns of the results have that name")
