"""Faults that are aimed at share groups: at each write of their state, and at records in flight."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simulation.history import History
from simulation.loop import CURRENT

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node

_AIMED_MAX = 5
_LONG_CUTS = 0.1
_KEEPS_ONE, _KEPT = 0.5, 0.3
_HELD_SECONDS = 8.0
_LOOK_SECONDS = 0.1
SINCE = 7000
"""The first seed of the later moments; before it they would change what is drawn."""
FORMER_LEADERS_SINCE = 3_000_000
"""The first seed in which a leader is cut off for longer than its locks last."""
LATE_MEMBERS_SINCE = 4_000_000
"""The first seed in which that comes when nothing else strikes, and a member stays with it."""
PRUNINGS_SINCE = 12_000_000
"""The first seed in which a fault may be kept for a pruning of their state."""
GIVEN_TWICE = "a former leader delivers what its successor's members have"
ABOUT_TO_BE_APPENDED = "a dead letter is about to be appended"
COMMITTED = "a dead letter is committed"
PRUNED = "share state is pruned"
LOADED_UNCOMMITTED = "share state is loaded with what is not committed"
_PROBABILITIES = {
    "acquired": 0.03,
    "state is about to be appended": 0.03,
    "state is committed": 0.03,
}
_LATER_PROBABILITIES = {
    ABOUT_TO_BE_APPENDED: 0.1,
    COMMITTED: 0.1,
    PRUNED: 0.1,
    LOADED_UNCOMMITTED: 0.7,
}


class ShareFaults:
    """Ends, cuts off or stops the process in which a moment comes, shortly after it."""

    def __init__(self, cluster: "Cluster", history: History, is_over: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._history = history
        self._is_over = is_over
        self._rng = cluster.fork("share-faults")
        # Where a disk rots, the good copy must be somewhere: nothing more may end.
        self._left = 0 if cluster.rotting else self._rng.randint(0, _AIMED_MAX)
        is_aimed = cluster.seed >= FORMER_LEADERS_SINCE and not cluster.rotting and self._left > 0
        self._makes_former_leaders = is_aimed and cluster.seed < LATE_MEMBERS_SINCE
        self._ends_with_one = is_aimed and not self._makes_former_leaders
        self._wants_one = False
        # Prunings come when others have mostly had all the faults.
        may_keep_one = cluster.seed >= PRUNINGS_SINCE and not cluster.rotting
        self._keeps_one = may_keep_one and self._rng.random() < _KEEPS_ONE
        later = _LATER_PROBABILITIES if cluster.seed >= SINCE else {}
        self._probabilities = _PROBABILITIES | later

    def happened(self, moment: str) -> None:
        """Strike now and then."""
        rng, probability = self._rng, self._probabilities.get(moment)
        if probability is None or self._is_over():
            return
        process = CURRENT.get()
        node = next((item for item in self._cluster.nodes if item.process is process), None)
        if moment == "acquired" and self._makes_former_leaders and rng.random() < _LONG_CUTS:
            self._makes_former_leaders = False
            self._later(0.0, lambda: self._cut_off_for_long(node))
            return
        if moment == "acquired" and self._wants_one and node is not None:
            self._wants_one = False
            self._later(0.0, lambda: self._hold(node))
        is_kept = self._keeps_one and moment == PRUNED
        probability = _KEPT if is_kept else probability
        may_strike = self._left > 0 or is_kept
        if not may_strike or rng.random() >= probability or node is None:
            return
        if is_kept:
            self._keeps_one = False
        else:
            self._left -= 1
        self._history.reach(f"a fault strikes when {moment}")
        kinds = [
            self._end,
            self._end,
            self._stop_for_a_while,
            self._cut_off,
            self._cut_off_from_the_controller,
            self._hold_words_back,
        ]
        if moment == LOADED_UNCOMMITTED:
            # It stays uncommitted until another leads.
            kinds = kinds[3:]
        kind = rng.choice(kinds)
        self._cluster.say(f"{moment} at {node}: {kind.__name__.strip('_')}")
        self._later(rng.choice((0.0, 0.0005, 0.003, 0.02, 0.2)), lambda: kind(node))

    async def end(self) -> None:
        """Strike what the faults did not come to, before all is healed."""
        await self._strike_a_pruning()
        await self._make_a_former_leader()

    async def _strike_a_pruning(self) -> None:
        """Wait for one, where a fault was kept for it: with several brokers most come late."""
        if self._keeps_one:
            await self._look_for(lambda: not self._keeps_one)
        self._keeps_one = False

    async def _make_a_former_leader(self) -> None:
        """Cut off one that has just given records, until members of its successor have them."""
        if not self._ends_with_one or len(self._cluster.profile.brokers) == 1:
            return
        self._left, self._wants_one = 0, True
        await self._look_for(lambda: bool(self._history.reached[GIVEN_TWICE]))
        self._wants_one = False
        self._cluster.network.let_go()

    async def _look_for(self, has_come: Callable[[], bool]) -> None:
        for _ in range(round(_HELD_SECONDS / _LOOK_SECONDS)):
            await asyncio.sleep(_LOOK_SECONDS)
            if has_come():
                return

    def _hold(self, node: "Node") -> None:
        self._cluster.say(f"{node} is cut off from its peers until its locks have run out")
        self._history.shares.cut_off = node
        network = self._cluster.network
        for other in self._cluster.nodes:
            if other is not node:
                network.hold(other.host, node.host)
                network.hold(node.host, other.host)

    def _end(self, node: "Node") -> None:
        if not node.is_running:
            return
        if self._cluster.profile.loses_power and self._rng.random() < 0.5:
            node.cut_power()
        else:
            node.kill()
        self._later(self._rng.choice((0.001, 0.1, 1.0, 2.5)), node.start)

    def _stop_for_a_while(self, node: "Node") -> None:
        """Until another leads what it led."""
        node.pause(on=True)
        self._later(self._rng.choice((0.5, 2.0, 3.0)), lambda: node.pause(on=False))

    def _cut_off(self, node: "Node") -> None:
        """From its peers, not from its clients."""
        self._block(node, [other for other in self._cluster.nodes if other is not node])

    def _cut_off_for_long(self, node: "Node | None") -> None:
        """Until its locks have run out, and members of its successor are done with the records."""
        if node is not None:
            others = [other for other in self._cluster.nodes if other is not node]
            self._block(node, others, seconds=(5.0, 7.0))

    def _cut_off_from_the_controller(self, node: "Node") -> None:
        """It goes on as the leader, for its members and for whom else it knows."""
        controllers = self._cluster.profile.controllers
        self._block(
            node,
            [
                other
                for other in self._cluster.nodes
                if other is not node
                and other.node_id in controllers
                and getattr(getattr(other.broker, "controller", None), "is_active", False)
            ],
        )

    def _hold_words_back(self, node: "Node") -> None:
        """What it has sent arrives long after, when others have been decided."""
        self._cluster.network.stall(
            node.host, self._rng.choice((0.5, 1.5, 3.0)), share=self._rng.choice((0.5, 1.0))
        )

    def _block(
        self, node: "Node", others: "list[Node]", seconds: Sequence[float] = (0.5, 2.5, 4.0)
    ) -> None:
        network = self._cluster.network
        self._cluster.say(f"{node} is cut off from {others}")
        for other in others:
            if other is not node:
                network.block(other.host, node.host)
                network.block(node.host, other.host)
        self._later(self._rng.choice(seconds), network.heal)

    def _later(self, delay: float, action: Callable[[], object]) -> None:
        loop = self._cluster.loop
        loop.call_in(loop.kernel, delay, action)
