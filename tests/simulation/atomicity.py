"""What transactions promise, from what clients saw: Adya's and Jepsen's terms.

aborted-read (G1a: what nobody asked to commit, or was refused), inconsistent-read (G1b: a reader
went past a transaction of which it saw a part), torn (not all of a transaction is visible),
lost-write, commit-after-a-fence, write-after-fence, reordered, exactly-once (the group's offsets
and the output agree, and each input record was taken once). A reader may be behind in the middle
of a transaction, as in Kafka; what is visible is judged when all is quiet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from simulation.history import History

Key = tuple[str, int]
Life = tuple[str, int]
"""A transactional id, and which of its producers."""


class Outcome(Enum):
    """What the producer knows of a transaction's end."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"

    @property
    def may_be_read(self) -> bool:
        """Whether somebody asked to commit and was not refused."""
        return self not in (Outcome.OPEN, Outcome.ABORTED)


@dataclass(eq=False, slots=True, kw_only=True)
class Consumed:
    """Input that a transaction takes: from the group's offset up to the one that it commits."""

    start: int
    end: int
    offsets: list[int]
    """The offsets of the records that were read."""


@dataclass(eq=False, slots=True, kw_only=True)
class Transaction:
    """One transaction of one producer."""

    life: Life
    number: int
    outcome: Outcome = Outcome.OPEN
    written: dict[Key, list[bytes]] = field(default_factory=dict)
    """Values in the order in which they were sent."""
    places: dict[bytes, int] = field(default_factory=dict)
    """The offsets of what was acknowledged."""
    consumed: dict[Key, Consumed] = field(default_factory=dict)
    commit_asked: float = -1.0

    def __str__(self) -> str:
        return f"{self.life[0]}.{self.life[1]}#{self.number} ({self.outcome.value})"


@dataclass(kw_only=True)
class _Reader:
    """What one reader of committed records saw, from the log's start on."""

    seen: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    positions: dict[Key, int] = field(default_factory=dict)
    starts: dict[Key, int] = field(default_factory=dict)


class Atomicity:
    """All transactions, and all that was read of them."""

    def __init__(self, history: History, now: Any) -> None:
        self.history = history
        self._now = now
        self.transactions: list[Transaction] = []
        self._written: dict[bytes, tuple[Transaction, Key]] = {}
        self._placed: dict[Key, dict[int, bytes]] = {}
        self._readers: dict[str, _Reader] = {}
        self._begun: dict[str, dict[int, tuple[float, float]]] = {}
        """By id and life: when InitProducerId was sent, and answered."""
        self._lives: dict[str, int] = {}

    # ---- producers

    @property
    def ids(self) -> list[str]:
        """Every transactional id."""
        return sorted(self._lives)

    def next_life(self, transactional_id: str) -> int:
        """Number the next producer of an id."""
        self._lives[transactional_id] = self._lives.get(transactional_id, 0) + 1
        return self._lives[transactional_id]

    def initialised(self, life: Life, sent_at: float) -> None:
        """Take the answer to a producer's InitProducerId: who was answered before is fenced."""
        self._begun.setdefault(life[0], {})[life[1]] = (sent_at, self._now())

    def fenced_at(self, life: Life) -> float:
        """Return when a successor heard that it has the id; infinity where there is none."""
        lives = self._begun.get(life[0], {})
        _, answered_at = lives.get(life[1], (0.0, float("inf")))
        later = [answered for sent, answered in lives.values() if sent >= answered_at]
        return min(later, default=float("inf"))

    def begin(self, life: Life, number: int) -> Transaction:
        """Begin a transaction."""
        transaction = Transaction(life=life, number=number)
        self.transactions.append(transaction)
        return transaction

    def send(self, transaction: Transaction, key: Key, value: bytes) -> None:
        """Note a record before it is sent for the first time."""
        transaction.written.setdefault(key, []).append(value)
        self._written[value] = (transaction, key)

    def acknowledged(
        self, transaction: Transaction, key: Key, first: int, values: list[bytes], sent_at: float
    ) -> None:
        """Take a batch's acknowledgement; `sent_at` is when it was sent for the first time."""
        for place, value in enumerate(values):
            transaction.places[value] = first + place
            self._place(key, first + place, value, "acknowledged")
        if sent_at > self.fenced_at(transaction.life):
            self.history.violate(
                "write-after-fence", f"{transaction} wrote {values[0]!r} to {key} at {first}"
            )
        self.history.on_acknowledged()

    def ask_commit(self, transaction: Transaction) -> None:
        """The producer is about to send EndTxn."""
        transaction.outcome = Outcome.COMMITTING
        transaction.commit_asked = self._now()
        if self.fenced_at(transaction.life) < transaction.commit_asked:
            self.history.reach("a fenced producer commits")

    def end(self, transaction: Transaction, outcome: Outcome) -> None:
        """The producer knows, or will never know."""
        transaction.outcome = outcome
        if outcome is Outcome.UNKNOWN:
            self.history.reach("a producer never hears whether it committed")
        if outcome is Outcome.COMMITTED and self._is_late(transaction):
            self.history.violate("commit-after-a-fence", f"{transaction} was acknowledged")
        self.history.on_acknowledged()

    def _is_late(self, transaction: Transaction) -> bool:
        return transaction.commit_asked > self.fenced_at(transaction.life)

    # ---- readers

    def begins_at(self, reader: str, positions: Mapping[Key, int]) -> None:
        """Note where a reader begins that does not begin at the log's start."""
        self._readers[reader] = _Reader(starts=dict(positions))

    def read(self, reader: str, key: Key, offset: int, value: bytes, *, is_committed: bool) -> None:
        """Take a record as a reader saw it; `is_committed` is its isolation level."""
        self.history.reads += 1
        found = self._written.get(value)
        if found is None or found[1] != key:
            self.history.violate("garbage", f"{key} offset {offset} holds {value!r}")
            return
        self._place(key, offset, value, f"read by {reader}")
        if not is_committed:
            return
        transaction = found[0]
        if not transaction.outcome.may_be_read:
            self.history.violate(
                "aborted-read", f"{reader} read {value!r} of {transaction} at {offset} of {key}"
            )
        seen = self._readers.setdefault(reader, _Reader()).seen.setdefault(key, {})
        seen[offset] = value

    def fetched(self, reader: str, key: Key, position: int, stable: int, watermark: int) -> None:
        """Take the end of a fetch of committed records: where it ends, and the two bounds."""
        if position > stable or stable > watermark:
            self.history.violate(
                "above-last-stable",
                f"{reader} reads {key} up to {position}, the last stable offset is {stable} and "
                f"the high watermark {watermark}",
            )
        known = self._readers.setdefault(reader, _Reader())
        known.positions[key] = max(position, known.positions.get(key, 0))

    def _place(self, key: Key, offset: int, value: bytes, how: str) -> None:
        before = self._placed.setdefault(key, {}).setdefault(offset, value)
        if before != value:
            self.history.violate(
                "inconsistent-offsets",
                f"{key} offset {offset} was {before!r} and is {value!r} ({how})",
            )

    # ---- when all is quiet

    def check(
        self, final: Mapping[Key, Mapping[int, bytes]], committed: Mapping[tuple[str, Key], int]
    ) -> None:
        """Compare with what can be read in the end, and with where the groups stand."""
        visible = {value: offset for records in final.values() for offset, value in records.items()}
        if len(visible) < sum(map(len, final.values())):
            self.history.violate("duplicate", "a record is visible twice")
        for transaction in self.transactions:
            self._check_transaction(transaction, visible)
        for name, reader in self._readers.items():
            self._check_reader(name, reader, final)
        for key, records in final.items():
            self._check_order(key, records)
        for (group, key), offset in committed.items():
            self._check_offsets(group, key, offset, final[key], visible)

    def _check_transaction(self, transaction: Transaction, visible: Mapping[bytes, int]) -> None:
        values = [value for values in transaction.written.values() for value in values]
        seen = [value for value in values if value in visible]
        if transaction.outcome is Outcome.COMMITTED and len(seen) < len(values):
            missing = [value for value in values if value not in visible]
            self.history.violate("lost-write", f"{transaction} lost {missing}")
        elif seen and not transaction.outcome.may_be_read:
            self.history.violate("aborted-read", f"{seen} of {transaction} is visible in the end")
        elif seen and len(seen) < len(values):
            self.history.violate("torn", f"{seen} of {values} of {transaction} is visible")
        elif seen and self._is_late(transaction):
            self.history.violate("commit-after-a-fence", f"{transaction} is visible in the end")
        for value in seen:
            if transaction.places.get(value, visible[value]) != visible[value]:
                self.history.violate(
                    "inconsistent-offsets",
                    f"{value!r} was acknowledged at {transaction.places[value]} and is at "
                    f"{visible[value]}",
                )

    def _check_reader(
        self, name: str, reader: _Reader, final: Mapping[Key, Mapping[int, bytes]]
    ) -> None:
        for key, position in reader.positions.items():
            seen = reader.seen.get(key, {})
            start = reader.starts.get(key, 0)
            wanted = {at: value for at, value in final[key].items() if start <= at < position}
            if seen != wanted:
                different = sorted(seen.items() ^ wanted.items())[:3]
                self.history.violate(
                    "inconsistent-read",
                    f"{name} up to {position} of {key} differs from the end at {different}",
                )

    def _check_order(self, key: Key, records: Mapping[int, bytes]) -> None:
        last: dict[Life, tuple[int, int]] = {}
        for offset in sorted(records):
            transaction, _ = self._written[records[offset]]
            place = (transaction.number, transaction.written[key].index(records[offset]))
            if place <= last.get(transaction.life, (-1, -1)):
                self.history.violate(
                    "reordered", f"{key} offset {offset} holds {records[offset]!r} too late"
                )
            last[transaction.life] = place

    def _check_offsets(
        self,
        group: str,
        key: Key,
        committed: int,
        records: Mapping[int, bytes],
        visible: Mapping[bytes, int],
    ) -> None:
        """The visible transactions took the input piece by piece, each record once."""
        taken = sorted(
            (
                (transaction.consumed[key], transaction)
                for transaction in self.transactions
                if key in transaction.consumed
                and any(
                    value in visible for values in transaction.written.values() for value in values
                )
            ),
            key=lambda each: each[0].start,
        )
        position = 0
        for consumed, transaction in taken:
            if consumed.start != position:
                self.history.violate(
                    "exactly-once",
                    f"{transaction} took {key} from {consumed.start}, others up to {position}",
                )
            inside = [at for at in sorted(records) if consumed.start <= at < consumed.end]
            if inside != consumed.offsets:
                self.history.violate(
                    "exactly-once", f"{transaction} took {consumed.offsets} of {key}, not {inside}"
                )
            position = consumed.end
        if max(committed, 0) != position:
            self.history.violate(
                "exactly-once",
                f"{group} stands at {committed} of {key}, the output at {position}",
            )
