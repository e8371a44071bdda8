"""`RaftNode`: one replica of the metadata quorum as a state machine without IO."""

from collections.abc import Sequence

from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset

from .effects import Effect
from .events import Event
from .types import Chance, Endpoint, LogState, QuorumState, RaftConfig, VotersAt


class RaftNode:
    """One replica. `start` once, then `step` for everything that happens."""

    # Added to now_ms for the timestamps in control records and DescribeQuorum; the driver's to set.
    unix_time_offset_ms: int = 0

    def __init__(
        self,
        config: RaftConfig,
        chance: Chance,
        *,
        state: QuorumState,
        log: LogState,
        control: Sequence[VotersAt] = (),
    ) -> None:
        """Take over what is durable.

        `control`: what `find_control` found in the latest snapshot (only the last, with the offset
        before the snapshot's end) and in the log, ascending.
        """
        raise NotImplementedError

    def start(self, now_ms: int) -> list[Effect]:
        """Begin; a quorum of one elects itself at once."""
        raise NotImplementedError

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at a time that never goes back (a monotonic clock's)."""
        raise NotImplementedError

    @property
    def next_deadline_ms(self) -> int:
        """When the next Tick is due."""
        raise NotImplementedError

    @property
    def epoch(self) -> LeaderEpoch:
        """The quorum's epoch as far as this replica knows."""
        raise NotImplementedError

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of the epoch, if known."""
        raise NotImplementedError

    @property
    def leader_endpoint(self) -> Endpoint | None:
        """Where the leader is, if known."""
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        raise NotImplementedError

    @property
    def high_watermark(self) -> Offset:
        """Records below are committed."""
        raise NotImplementedError

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record gets."""
        raise NotImplementedError

    @property
    def voters(self) -> VotersAt:
        """The voters that count now."""
        raise NotImplementedError

    def voters_at(self, end_offset: Offset) -> VotersAt:
        """The control state that a snapshot at an offset must hold."""
        raise NotImplementedError
