"""Writes the state diagrams of docs/protocols.md from the tables of legal moves in the code.

python -m support.protocols     (in tests/)
"""

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from pathlib import Path

from headrace_broker.coordinator.consumer.states import GROUP_TRANSITIONS
from headrace_broker.coordinator.share_partition.states import RECORD_TRANSITIONS, RecordState
from headrace_broker.coordinator.states import TRANSITIONS, GroupState
from headrace_broker.coordinator.transactions import states as transactions
from headrace_broker.raft.roles import LEGAL_MOVES, Role

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocols.md"
MARK = "<!-- From here on the page is made by `make protocols` from the tables in the code"

Moves = Mapping[Enum, Iterable[Enum]]


def diagram(moves: Moves, first: Enum) -> str:
    """Return a Mermaid state diagram of a table of legal moves."""
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {_name(first)}"]
    for before, afters in moves.items():
        # In the order of the enumeration: a set's would differ from run to run.
        lines += [
            f"  {_name(before)} --> {_name(after)}" for after in type(before) if after in afters
        ]
        if not afters:
            lines.append(f"  {_name(before)} --> [*]")
    return "\n".join([*lines, "```"])


def _name(state: Enum) -> str:
    value = state.name if isinstance(state, IntEnum) else str(state.value)
    words = value.lower().split("_") if isinstance(state, IntEnum) else [value]
    return "".join(word[0].upper() + word[1:] for word in words)


def generated() -> str:
    """Return the generated end of the page."""
    return f"""
## The roles of a Raft replica

What each move needs is said beside the table, `raft/roles.py`. An illegal move raises.

{diagram(LEGAL_MOVES, Role.UNATTACHED)}

## The states of a classic group

`coordinator/states.py`.

{diagram(TRANSITIONS, GroupState.EMPTY)}

## The states of a consumer group (KIP-848)

`coordinator/consumer/states.py`. One heartbeat may pass through several.

{diagram(GROUP_TRANSITIONS, next(iter(GROUP_TRANSITIONS)))}

## The states of a transactional id

`coordinator/transactions/states.py`; see [transactions](transactions.md).

{diagram(transactions.TRANSITIONS, transactions.TransactionStatus.EMPTY)}

## The states of a share group's record (KIP-932)

`coordinator/share_partition/states.py`; see [share groups](share-groups.md).

{diagram(RECORD_TRANSITIONS, RecordState.AVAILABLE)}
"""


def page() -> str:
    """Return the whole page: what is written by hand, and what is made."""
    text = PAGE.read_text()
    end = text.index("\n", text.index(MARK)) + 1
    return text[:end] + generated()


if __name__ == "__main__":
    PAGE.write_text(page())
