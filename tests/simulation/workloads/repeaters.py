"""What comes late, or beside a transaction, in the seeds from `REPEATERS_SINCE` on.

A producer's EndTxn arrives once more when its next transaction is open (KIP-890 refuses it by its
epoch). And a group's offset is committed by a transaction and without one, in either order: what is
later in the log counts, whenever the marker comes (KAFKA-5247).
"""

from collections.abc import Callable
from functools import partial

from headrace_broker.protocol.errors import ErrorCode
from simulation.atomicity import Atomicity, Key, Transaction
from simulation.client import FAILURES, Client
from simulation.workloads.offsets import GroupOffsets
from simulation.workloads.transactional import (
    ORDERS,
    AbortableError,
    FencedError,
    TransactionalProducer,
    Worker,
    newer_versions,
)

LATE = "an EndTxn comes again when the next transaction is open"
BETWEEN = "an offset is committed between a transaction's and its marker"
DELETED_BETWEEN = "an offset is deleted between a transaction's and its marker"
_GROUP = "between"
_NOTHING = -1
_MISSING_MAX = 5
_KEY = ORDERS[0]


class LateEnder(Worker):
    """Repeats the end of its former transaction in the middle of the next."""

    def __init__(self, client: Client, checks: Atomicity, transactional_id: str) -> None:
        super().__init__(client, checks, transactional_id)
        client.generations = None
        client.versions.update(newer_versions(client))

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Write and repeat until it is over."""
        await self.repeat(is_over, self._transact, partial(self._transact, is_first=True))

    async def _transact(self, producer: TransactionalProducer, *, is_first: bool = False) -> bool:
        """Return whether the producer may go on."""
        rng, transaction = self.client.rng, producer.begin()
        try:
            await producer.write(transaction, self._records(transaction, 0))
            if not is_first:
                code = await producer.end_again(commits=rng.random() < 0.5)
                if code is ErrorCode.NONE:
                    self.client.history.violate(
                        "late-end", f"{transaction} is open, and an end before it is taken"
                    )
                elif code is not ErrorCode.NETWORK_EXCEPTION:
                    self.client.history.reach(LATE)
                await producer.write(transaction, self._records(transaction, 1))
            await producer.end(transaction, commits=rng.random() < 0.5)
        except FencedError:
            return False
        except AbortableError:
            return await self.give_up(producer, transaction)
        return True

    def _records(self, transaction: Transaction, step: int) -> dict[Key, list[bytes]]:
        key = self.client.rng.choice(ORDERS)
        name = f"late.{transaction.life[1]}#{transaction.number}/{key[1]}/{step}"
        return {key: [name.encode()]}


class BetweenCommits(Worker):
    """Commits offsets of its own group in a transaction and beside it, and reads which one counts.

    Each is larger than those before. Where a request was sent twice, either commit may be the later
    one in the log.
    """

    def __init__(self, client: Client, now: Callable[[], float], *, deletes: bool) -> None:
        """`deletes` has it delete the offset, or the group, instead of a commit now and then."""
        super().__init__(client, Atomicity(client.history, now), "between")
        self._deletes = deletes
        self._offsets = GroupOffsets(client, _GROUP, is_stable=True)
        self._newest = 0
        self._known = -1
        """The offset that counts; all that was committed before is below."""
        self._late: set[int] = set()
        """Offsets whose commit was sent more than once, so that one may come at any time."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Commit until it is over."""
        await self.repeat(is_over, self._transact)

    async def _transact(self, producer: TransactionalProducer) -> bool:
        """Return whether the producer may go on."""
        producer.moves_groups_alone = True
        rng, transaction = self.client.rng, producer.begin()
        moved, plain = self._newest + 1, self._newest + 2
        self._newest += 2
        is_between = rng.random() < 0.7
        commits = rng.random() < 0.7
        allowed = {self._known}
        try:
            if not is_between:
                allowed = {await self._commit(plain)}
            await producer.commit_offsets(_GROUP, {_KEY: moved})
            if is_between and self._deletes and rng.random() < 0.3:
                allowed = await self._delete({self._known, moved})
            elif is_between:
                allowed = {await self._commit(plain)}
                self.client.history.reach(BETWEEN)
            elif commits:
                allowed = {moved}
            if producer.is_unsure:
                allowed |= {moved, plain}
            await producer.end(transaction, commits=commits)
        except FencedError:
            allowed |= {moved, plain}
            may_go_on = False
        except AbortableError:
            may_go_on = await self.give_up(producer, transaction)
            if not is_between:
                allowed.add(plain)
            if not may_go_on:
                allowed |= {moved, plain}
        else:
            may_go_on = True
        await self._judge(allowed)
        return may_go_on

    async def _commit(self, offset: int) -> int:
        """Commit without a transaction, whatever it takes."""
        while (code := (await self._offsets.commit({_KEY: offset}))[_KEY]) is not ErrorCode.NONE:
            if code is None or code is ErrorCode.REQUEST_TIMED_OUT:
                self._late.add(offset)
            await self.client.pause()
        return offset

    async def _delete(self, before: set[int]) -> set[int]:
        """Delete what is committed and what the transaction commits; return what may be left."""
        missing = 0
        while missing < _MISSING_MAX:
            try:
                if self.client.rng.random() < 0.5:
                    code, _ = await self._offsets.delete_group()
                else:
                    codes, _ = await self._offsets.delete([_KEY])
                    code = codes[_KEY]
            except FAILURES:
                await self.client.pause()
                continue
            if code is ErrorCode.NONE:
                self.client.history.reach(DELETED_BETWEEN)
                return {_NOTHING}
            if code is ErrorCode.GROUP_ID_NOT_FOUND:
                missing += 1
            else:
                self._late.add(_NOTHING)
            await self.client.pause()
        # An earlier request was heard, or the transaction took too long, or no coordinator answers.
        return before | {_NOTHING}

    async def _judge(self, allowed: set[int]) -> None:
        found = await self._offsets.committed(_KEY, -1)
        if found not in allowed | self._late:
            self.client.history.violate(
                "later-commit", f"{_GROUP} is at {found}, and not at {sorted(allowed)}"
            )
        self._known = found
