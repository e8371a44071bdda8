"""What a seed's run looks like: how many nodes, what they keep, what may go wrong."""

import random
from dataclasses import dataclass

SEPARATE_CONTROLLERS = 3
# What a broker logs, rarely enough that a fault may follow every second time.
TRUNCATION = "log truncated to the leader's"
FOCUSES = (
    TRUNCATION,
    "metadata log truncated",
    "metadata snapshot installed",
    "became the active controller",
    "segments compacted",
    "retention removed segments",
)


@dataclass(kw_only=True)
class Profile:
    """The shape of one run, drawn from its seed."""

    nodes: int
    controllers: tuple[int, ...]
    brokers: tuple[int, ...]
    voters: tuple[int, ...]
    """Who makes up the metadata quorum at first; other controllers only follow it."""
    loses_power: bool
    disk_errors: bool
    slow_disks: bool
    """Whether every fsync may take its time, so that a power cut finds much that is not durable."""
    warms_up: bool
    """Whether the faults wait until clients are at work; the others strike from the first start."""
    focus: str
    """What is followed by the end of its process half of the time; "" in most seeds."""
    faults_seconds: float
    seconds_between_faults: float
    replicas: int
    partitions: int
    cleanup: str
    """What happens to old records of the topic: "none", "delete" or "compact"."""
    topic: dict[str, str]
    settings: dict[str, str]
    works: frozenset[str]
    """Which of "group", "churn", "reassign" and "voters" go on beside producers and consumers."""

    @property
    def keeps_everything(self) -> bool:
        return self.cleanup == "none"


def draw_profile(seed: int, nodes: int) -> Profile:
    """Draw a run's shape; a power cut may take what no fsync covers, so every append has one."""
    chance = random.Random(f"{seed}/profile")
    everyone = tuple(range(1, nodes + 1))
    controllers = brokers = voters = everyone
    if nodes > SEPARATE_CONTROLLERS:
        layout = chance.choice(("together", "some vote", "apart"))
        if layout == "apart":
            controllers = voters = everyone[:SEPARATE_CONTROLLERS]
            brokers = everyone[SEPARATE_CONTROLLERS:]
        elif layout == "some vote":
            voters = everyone[:SEPARATE_CONTROLLERS]
    loses_power = chance.random() < 0.5
    settings = {"log.flush.interval.messages": "1"} if loses_power else {}
    if chance.random() < 0.5:
        settings["metadata.log.max.record.bytes.between.snapshots"] = "3000"
        settings["metadata.log.segment.bytes"] = "2000"
    focus = chance.choice(FOCUSES) if chance.random() < 0.3 else ""
    if focus == TRUNCATION:
        # What is truncated has often been vouched for by then.
        settings["log.flush.offset.checkpoint.interval.ms"] = "100"
    replicas = min(3, len(brokers))
    cleanup = chance.choice(("none", "none", "none", "delete", "compact"))
    return Profile(
        nodes=nodes,
        controllers=controllers,
        brokers=brokers,
        voters=voters,
        loses_power=loses_power,
        # A failed fsync loses what was not durable yet.
        disk_errors=loses_power and chance.random() < 0.5,
        slow_disks=loses_power and chance.random() < 0.4,
        warms_up=chance.random() < 0.8,
        focus=focus,
        faults_seconds=chance.choice((2.0, 3.0, 4.0, 6.0)),
        seconds_between_faults=chance.choice((0.15, 0.3, 0.6)),
        replicas=replicas,
        partitions=chance.choice((1, 1, 2)),
        cleanup=cleanup,
        topic=_topic_settings(chance, replicas, cleanup),
        settings=settings,
        works=_draw_works(chance, nodes),
    )


def _draw_works(chance: random.Random, nodes: int) -> frozenset[str]:
    shares = {"group": 0.35, "churn": 0.25}
    if nodes > 1:
        shares |= {"reassign": 0.35, "voters": 0.35}
    return frozenset(work for work, share in shares.items() if chance.random() < share)


def _topic_settings(chance: random.Random, replicas: int, cleanup: str) -> dict[str, str]:
    settings = {
        "segment.ms": str(chance.choice((300, 2000, 604800000))),
        "index.interval.bytes": str(chance.choice((0, 300, 4096))),
        "min.insync.replicas": str(min(replicas, chance.choice((1, 2, 2)))),
        "retention.ms": "-1",
    }
    if cleanup == "delete":
        settings |= {"segment.ms": "300", "retention.bytes": str(chance.choice((1000, 10000)))}
        settings["file.delete.delay.ms"] = str(chance.choice((0, 1000)))
    elif cleanup == "compact":
        settings |= {
            "segment.ms": str(chance.choice((300, 1000))),
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": str(chance.choice((0, 1000))),
        }
    return settings
