"""What a seed's run looks like: how many nodes, what they keep, what may go wrong."""

import random
from dataclasses import dataclass, replace

from simulation.workloads import WORKLOADS
from simulation.workloads.workload import POWER_CUTS_SINCE

SEPARATE_CONTROLLERS = 3
REPLICAS_WITHOUT_FSYNC = 3
# The first seed whose followers may be sent less than there is.
SMALL_ANSWERS_SINCE = 1_000_000
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
    has_fsyncs: bool
    """Whether every append has one, so that power may fail anywhere and at any time.

    Without, one machine may lose power at a time, while all replicas of all partitions are in sync.
    """
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
    topics: dict[str, int]
    """Topics that are written and read, and how many partitions each has."""
    cleanup: str
    """What happens to old records of the topic: "none", "delete" or "compact"."""
    topic: dict[str, str]
    settings: dict[str, str]
    works: frozenset[str]
    """The names of the workloads (`simulation.workloads`) that go on."""

    @property
    def places(self) -> list[tuple[str, int]]:
        """All partitions that are written and read."""
        return [(topic, index) for topic, count in self.topics.items() for index in range(count)]

    @property
    def keeps_everything(self) -> bool:
        return self.cleanup == "none"


def draw_profile(seed: int, nodes: int) -> Profile:
    """Draw a run's shape."""
    rng = random.Random(f"{seed}/profile")
    everyone = tuple(range(1, nodes + 1))
    controllers = brokers = voters = everyone
    if nodes > SEPARATE_CONTROLLERS:
        layout = rng.choice(("together", "some vote", "apart"))
        if layout == "apart":
            controllers = voters = everyone[:SEPARATE_CONTROLLERS]
            brokers = everyone[SEPARATE_CONTROLLERS:]
        elif layout == "some vote":
            voters = everyone[:SEPARATE_CONTROLLERS]
    loses_power = rng.random() < 0.5
    replicas = min(3, len(brokers))
    has_fsyncs = loses_power
    if not loses_power and replicas == REPLICAS_WITHOUT_FSYNC and rng.random() < 0.4:
        loses_power = True
    settings = {"log.flush.interval.messages": "1"} if has_fsyncs else {}
    if seed >= SMALL_ANSWERS_SINCE:
        settings |= _fetch_limits(random.Random(f"{seed}/limits"))
    if rng.random() < 0.5:
        settings["metadata.log.max.record.bytes.between.snapshots"] = "3000"
        settings["metadata.log.segment.bytes"] = "2000"
    focus = rng.choice(FOCUSES) if rng.random() < 0.3 else ""
    if focus == TRUNCATION:
        # What is truncated has often been vouched for by then.
        settings["log.flush.offset.checkpoint.interval.ms"] = "100"
    if seed >= POWER_CUTS_SINCE and random.Random(f"{seed}/passes").random() < 0.5:
        settings["log.retention.check.interval.ms"] = "150"
        settings["log.flush.offset.checkpoint.interval.ms"] = "100"
    cleanup = rng.choice(("none", "none", "none", "delete", "compact"))
    if cleanup == "compact" and not has_fsyncs:
        # An open bug (docs/simulation.md): a power cut may leave a hole in a compacted log.
        loses_power = False
    profile = Profile(
        nodes=nodes,
        controllers=controllers,
        brokers=brokers,
        voters=voters,
        loses_power=loses_power,
        has_fsyncs=has_fsyncs,
        # A failed fsync loses what was not durable yet.
        disk_errors=has_fsyncs and rng.random() < 0.5,
        slow_disks=has_fsyncs and rng.random() < 0.4,
        warms_up=rng.random() < 0.8,
        focus=focus,
        faults_seconds=rng.choice((2.0, 3.0, 4.0, 6.0)),
        seconds_between_faults=rng.choice((0.15, 0.3, 0.6)),
        replicas=replicas,
        topics=_draw_topics(rng),
        cleanup=cleanup,
        topic=_topic_settings(rng, replicas, cleanup, is_safe=has_fsyncs or not loses_power),
        settings=settings,
        works=frozenset(),
    )
    profile = replace(profile, works=_draw_works(seed, profile))
    for work in WORKLOADS:
        if work.name in profile.works:
            profile.settings.update(
                work.settings(random.Random(f"{seed}/settings/{work.name}"), profile)
            )
    return profile


def _fetch_limits(rng: random.Random) -> dict[str, str]:
    """In half of the seeds a follower is sent a few batches at a time, of a few partitions."""
    if rng.random() < 0.5:
        return {}
    return {
        "replica.fetch.response.max.bytes": str(rng.choice((100, 1500, 10_000))),
        "replica.fetch.max.bytes": str(rng.choice((1, 500, 1_000_000))),
    }


def _draw_topics(rng: random.Random) -> dict[str, int]:
    topics = {"events": rng.choice((1, 1, 2))}
    if rng.random() < 0.3:
        topics["audit"] = 1
    return topics


def _draw_works(seed: int, profile: Profile) -> frozenset[str]:
    """Each draws from a random source of its own: a new one changes no other's seeds."""
    return frozenset(
        work.name
        for work in WORKLOADS
        if seed >= work.since
        and work.has_seed(seed)
        and work.needs(profile)
        and random.Random(f"{seed}/works/{work.name}").random() < work.share
    )


def _topic_settings(
    rng: random.Random, replicas: int, cleanup: str, *, is_safe: bool
) -> dict[str, str]:
    minimum = min(replicas, rng.choice((1, 2, 2)))
    settings = {
        "segment.ms": str(rng.choice((300, 2000, 604800000))),
        "index.interval.bytes": str(rng.choice((0, 300, 4096))),
        # What no fsync covers is safe on two machines at least.
        "min.insync.replicas": str(minimum if is_safe else 2),
        "retention.ms": "-1",
    }
    if cleanup == "delete":
        settings |= {"segment.ms": "300"} | rng.choice(
            (
                {"retention.bytes": "1000"},
                {"retention.bytes": "10000"},
                {"retention.ms": "1500"},
                {"retention.ms": "3000", "retention.bytes": "3000"},
            )
        )
        settings["file.delete.delay.ms"] = str(rng.choice((0, 1000)))
    elif cleanup == "compact":
        settings |= {
            "segment.ms": str(rng.choice((300, 1000))),
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "file.delete.delay.ms": str(rng.choice((0, 1000))),
        }
    return settings
