"""The faults of a run: what is drawn, when it strikes, and how everything is healed.

A fault strikes at a random moment or, half of the time, right after something that bugs are near
of: an acknowledgement, a truncation, a new leader, a voter change.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from simulation.cluster import Cluster, Node
from simulation.profile import TRUNCATION, Profile
from simulation.rot import Rot
from simulation.share_faults import FORMER_LEADERS_SINCE
from simulation.workloads.workload import STRANGERS_SINCE, is_aimed

# What a broker logs, and the next fault waits for.
MOMENTS = (
    "acknowledged",
    "acknowledged",
    "log truncated to the leader's",
    "metadata log truncated",
    "became the active controller",
    "broker fenced",
    "broker registered",
)
_FOCUS_SECONDS = 2.0
_LONG_FOCUS_SECONDS = 4.0
_AIMED_SHARE = 0.25
_AIMED_MAX = 4


class Faults:
    """Draws faults from the seed until the time for them is over."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self._cluster = cluster
        self._profile = profile
        self._rng = cluster.fork("faults")
        self._armed: dict[str, list[Callable[[Node], None]]] = {}
        self._rot = Rot(cluster)
        # Of their own, so that other seeds stay what they are.
        self._aims = cluster.fork("aims")
        several = len(profile.brokers) > 1
        self._aimed_left = _AIMED_MAX if several and self._aims.random() < _AIMED_SHARE else 0
        self._is_over = False
        flips = cluster.fork("flips").random()
        self._flips = 0.5 if cluster.seed >= STRANGERS_SINCE and flips < 0.5 else 0.1

    # ---- moments

    def happened(self, moment: str, node: Node | None = None) -> None:
        """Let the faults strike that waited for this."""
        strikes = self._armed.pop(moment, [])
        if node is not None and moment == self._profile.focus:
            if moment == TRUNCATION and self._profile.loses_power:
                self._tear_next_append(node)
            elif self._rng.random() < 0.5:
                strikes = [*strikes, self._end]
        for strike in strikes:
            delay = self._rng.choice((0.0, 0.0005, 0.003, 0.02))
            victim = node or self._any()
            self._cluster.loop.call_in(
                self._cluster.loop.kernel, delay, self._strike, strike, victim
            )

    def proposed(self, node_id: int, joining: list[int]) -> None:
        """Hold back what a leader has just asked for, while those whom it is about come and go.

        Its request arrives when another leads, or when a member has a new process; or the cut-off
        leader goes on with an in-sync set that nobody has confirmed.
        """
        rng = self._aims
        if self._is_over or self._aimed_left == 0 or rng.random() < 0.5:
            return
        self._aimed_left -= 1
        network = self._cluster.network
        leader = self._cluster.nodes[node_id - 1]
        others = [node for node in self._cluster.nodes if node is not leader and node.is_broker]
        if joining and rng.random() < 0.7:
            others = [self._cluster.nodes[joining[0] - 1]]
        member = rng.choice(others)
        seconds = rng.choice((1.0, 2.5, 4.0))
        self._cluster.say(f"{leader} asks for an in-sync set; its words are stuck for {seconds} s")
        # The request is written in one of the next steps.
        self._later(0.0002, lambda: network.stall(leader.host, seconds))
        kind = rng.random()
        if kind < 0.4:
            self._later(0.01, lambda: self._end_soon(member))
        elif kind < 0.7:
            self._later(0.01, lambda: network.block(member.host, leader.host))
            self._later(seconds, network.heal)

    def _strike(self, strike: Callable[[Node], None], victim: Node) -> None:
        if not self._is_over:
            strike(victim)

    def _any(self) -> Node:
        return self._rng.choice(self._cluster.nodes)

    def _arm(self) -> None:
        """Have one fault, or one after the other on two nodes, wait for a moment."""
        rng = self._rng
        hit = rng.choice(
            (self._end, self._end, self._pause, self._block, self._everything, self._everything)
        )
        at_random = rng.random() < 0.6

        def strike(node: Node) -> None:
            hit(self._any() if at_random else node)

        self._armed.setdefault(rng.choice(MOMENTS), []).append(strike)

    # ---- the run

    async def run(self) -> None:
        """Break things for as long as the profile says."""
        loop = self._cluster.loop
        if self._profile.slow_disks:
            for node in self._cluster.nodes:
                node.disk.slow_fsync_probability = 0.7
        end = loop.time() + self._profile.faults_seconds
        self._rot.begin(self._profile.faults_seconds)
        while loop.time() < end:
            await asyncio.sleep(self._rng.expovariate(1 / self._profile.seconds_between_faults))
            if self._rng.random() < 0.4:
                self._arm()
            else:
                self._one(self._any())
        is_quiet = is_aimed(self._cluster.seed) and len(self._profile.brokers) > 1
        if self._profile.focus or is_quiet:
            works = self._profile.works if is_quiet else frozenset()
            is_long = "transactions" in works or (
                "share" in works and self._cluster.seed >= FORMER_LEADERS_SINCE
            )
            await self._await_focus(_LONG_FOCUS_SECONDS if is_long else _FOCUS_SECONDS)
        self._is_over = True
        if "damage" in self._profile.works and self._cluster.rotting is not None:
            await self._rot.strike_once_more()
        self._rot.is_over = True

    async def _await_focus(self, seconds: float) -> None:
        """Let the nodes find each other: then logs are truncated and snapshots installed."""
        self._cluster.network.heal()
        for node in self._cluster.nodes:
            node.pause(on=False)
            node.start()
        await asyncio.sleep(seconds)

    def _one(self, node: Node) -> None:
        if not node.is_running:
            self._start(node)
            return
        disk, rng = node.disk, self._rng
        faults: list[tuple[int, Callable[[], None]]] = [
            (3, node.kill),
            (2, node.stop),
            (3, lambda: self._kill_in_operation(node)),
            (1, lambda: self._pause(node)),
            (2, lambda: self._cluster.network.reset_some(node.host)),
            (2, lambda: self._block(node)),
            (2, lambda: self._slow_links(node)),
            (1, lambda: self._everything(node)),
            (1, lambda: setattr(disk, "short_write_probability", rng.choice((0.0, 0.1)))),
            (2, lambda: setattr(disk, "slow_fsync_probability", rng.choice((0.0, 0.1, 0.4)))),
            (1, lambda: self._skew(node)),
            (2, lambda: self._stall(node)),
            (2, lambda: self._replace_process(node)),
        ]
        if self._profile.loses_power:
            faults.append((3 if self._profile.has_fsyncs else 8, node.cut_power))
            disk.flip_probability = self._flips
        if self._profile.disk_errors:
            faults.append((1, lambda: setattr(disk, "write_errors", 1)))
            faults.append((1, lambda: setattr(disk, "read_errors", 1)))
            faults.append((1, lambda: setattr(disk, "fsync_errors", 1)))
            faults.append((1, lambda: self._fill(node)))
        if self._profile.focus == TRUNCATION:
            # A leader on its own appends what the next one does not have.
            faults.append((8, lambda: self._block(node)))
        if self._cluster.has_two_directories and self._profile.disk_errors:
            faults.append((5, lambda: self._fail_directory(node)))
        if self._aimed_left:
            faults.append((6, lambda: self._replace_process(node)))
        weights = [weight for weight, _ in faults]
        rng.choices(faults, weights)[0][1]()

    # ---- what may happen

    @property
    def is_over(self) -> bool:
        """Whether nothing strikes any more."""
        return self._is_over

    def end_at(self, node: Node, rng: random.Random) -> None:
        """Kill a process in the middle of what it does, or cut its power, at random."""
        if self._profile.loses_power and rng.random() < 0.5:
            node.cut_power()
        else:
            node.kill()
        self._later(rng.choice((0.001, 0.1, 1.0)), node.start)

    def _start(self, node: Node) -> None:
        """Start it, and now and then tell it to stop before it has looked at all of its logs."""
        node.start()
        if self._rng.random() < 0.3:
            self._later(self._rng.choice((0.0001, 0.001, 0.003)), node.stop)
            self._later(self._rng.choice((0.1, 0.5)), node.start)

    def _end(self, node: Node, back_after: float | None = None) -> None:
        """The process ends, or the machine, and comes back before long."""
        if not node.is_running:
            return
        if self._profile.loses_power and self._rng.random() < 0.5:
            node.cut_power()
        else:
            node.kill()
        if back_after is None:
            back_after = self._rng.choice((0.001, 0.1, 1.0))
        self._later(back_after, node.start)

    def _everything(self, _node: Node) -> None:
        """All nodes at once: the power of the whole room, or a kill of every process."""
        cuts = self._profile.has_fsyncs and self._rng.random() < 0.7
        for node in self._cluster.nodes:
            if cuts:
                node.cut_power()
            else:
                node.kill()
        for node in self._cluster.nodes:
            self._later(self._rng.choice((0.001, 0.05, 0.5)), node.start)

    def _kill_in_operation(self, node: Node) -> None:
        count = self._rng.choice((1, 2, 5, 20, 100))
        cuts = self._profile.loses_power and self._rng.random() < 0.6
        node.on_disk_stopped = node.cut_power if cuts else node.kill
        node.disk.stop_at = node.disk.operations + count

    def _tear_next_append(self, node: Node) -> None:
        """Cut the power between the next append to what was truncated and its fsync."""

        def cut() -> None:
            node.cut_power()
            self._later(self._rng.choice((0.001, 0.1, 1.0)), node.start)

        if not self._is_over:
            node.on_disk_stopped = cut
            node.disk.torn_partition = node.truncated

    def _pause(self, node: Node) -> None:
        node.pause(on=True)
        self._later(self._rng.choice((0.1, 0.5, 2.0)), lambda: node.pause(on=False))

    def _block(self, node: Node) -> None:
        """Cut the node off in one direction, or both, from everybody or some."""
        cluster, rng = self._cluster, self._rng
        network = cluster.network
        others = [item.host for item in cluster.nodes if item is not node]
        if len(others) > 1 and rng.random() < 0.4:
            others = rng.sample(others, rng.randint(1, len(others) - 1))
        known = {item.host for item in cluster.nodes}
        hosts = sorted({transport.process.host for transport in network.transports} - known)
        others += [host for host in hosts if rng.random() < 0.5]
        directions = rng.choice(("in", "out", "both"))
        cluster.say(f"{node} is cut off from {others}: {directions}")
        for host in others:
            if directions != "out":
                network.block(host, node.host)
            if directions != "in":
                network.block(node.host, host)
        self._later(rng.choice((0.2, 1.0, 2.5)), network.heal)

    def _stall(self, node: Node) -> None:
        """Requests that were sent arrive long after, when others have been decided."""
        seconds = self._rng.choice((0.3, 1.0, 2.0))
        self._cluster.say(f"what {node} sends is stuck for {seconds} s")
        self._cluster.network.stall(node.host, seconds, share=self._rng.choice((0.5, 1.0)))

    def _replace_process(self, node: Node) -> None:
        """A process ends while its last requests are under way; they follow its successor's."""
        self._stall(node)
        self._cluster.network.stall(node.host, self._rng.choice((1.0, 2.0, 3.0)))
        self._later(self._rng.choice((0.05, 0.2, 0.6)), lambda: self._end_soon(node))

    def _end_soon(self, node: Node) -> None:
        if not self._is_over and node.is_running:
            self._end(node, back_after=self._rng.choice((0.001, 0.1)))

    def _slow_links(self, node: Node) -> None:
        """Let all that goes to one node take long, so that replicas are apart."""
        slow = self._cluster.network.slow
        delay = self._rng.choice((0.005, 0.03, 0.1))
        self._cluster.say(f"what goes to {node} takes {delay} s")
        slow[node.host] = delay
        self._later(self._rng.choice((0.3, 1.0)), lambda: slow.pop(node.host, None))

    def _skew(self, node: Node) -> None:
        node.clock.skew_ms = self._rng.choice((0, 0, -5000, 5000, 60000))

    def _fail_directory(self, node: Node) -> None:
        """The second log directory fails, for longer than one process at times."""
        node.disk.failed_folder = str(node.log_directories[1])
        self._cluster.say(f"{node}'s second log directory fails")
        self._later(
            self._rng.choice((0.2, 1.0, 5.0)), lambda: setattr(node.disk, "failed_folder", "")
        )

    def _fill(self, node: Node) -> None:
        node.disk.is_full = True
        self._cluster.say(f"{node}'s disk is full")
        self._later(self._rng.choice((0.1, 0.5, 2.0)), lambda: setattr(node.disk, "is_full", False))

    def _later(self, delay: float, action: Callable[[], Any]) -> None:
        loop = self._cluster.loop
        loop.call_in(loop.kernel, delay, action)

    async def heal(self) -> None:
        """End every fault; start what does not run."""
        cluster = self._cluster
        cluster.say("everything is healed")
        cluster.network.slow.clear()
        cluster.network.let_go()
        cluster.network.heal()
        for node in cluster.nodes:
            disk = node.disk
            disk.stop_at = None
            disk.torn_partition = ""
            disk.is_full = False
            disk.failed_folder = ""
            disk.write_errors = disk.fsync_errors = disk.read_errors = 0
            disk.slow_fsync_probability = disk.short_write_probability = 0.0
            disk.late_answer_probability = 0.0
            node.pause(on=False)
        for _ in range(100):
            for node in cluster.nodes:
                node.start()
            await asyncio.sleep(0.1)
            if all(node.is_ready for node in cluster.nodes):
                return
