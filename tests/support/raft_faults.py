"""What befalls the simulated quorum: one seed's faults, and the peace after them."""

import random

from headrace_broker.raft import events as ev
from support.raft_process import NoProgressError, Process
from support.raft_simulation import World


def run_seed(seed: int, *, duration: int = 12_000) -> World:
    """A safety phase with faults, then a liveness phase: all must converge and serve."""
    rng = random.Random(seed ^ 0x5EED)
    world = World(
        seed,
        voters=rng.choice([1, 2, 3, 3, 3, 5]),
        observers=rng.choice([0, 1, 2]),
        codec=rng.random() < 0.05,
    )
    try:
        world.start_all()
        world.run(rng.choice([0, 50, 2000]))
        world.is_hostile = True
        world.loss = rng.choice([0.0, 0.01, 0.1])
        world.delay_max = rng.choice([2, 10, 60])
        faults = _fault_weights(rng)
        end = world.now + duration
        while world.now < end:
            _disturb(world, rng, faults)
            world.run(rng.choice([1, 5, 20, 100, 400]))
        world.heal()
        _check_liveness(world)
    except Exception as error:
        error.world = world
        error.add_note(f"RAFT seed {seed}")
        raise
    return world


def _fault_weights(rng: random.Random) -> dict[str, float]:
    """Each seed has its own mix (swarm testing): some faults often, others never."""
    weights = {
        "append": 8.0,
        "crash": rng.choice([0, 0.5, 2, 2]),
        "crash_within_step": rng.choice([0, 1, 3]),
        "restart": 3.0,
        "cut": rng.choice([0, 0.5, 2]),
        "heal": 1.5,
        "pause": rng.choice([0, 0.5]),
        "snapshot": rng.choice([0, 2, 6]),
        "voters": rng.choice([0, 0, 1, 3]),
        "resign": rng.choice([0, 0.2]),
        "false_alarm": rng.choice([0, 0.3]),
    }
    return {name: weight for name, weight in weights.items() if weight}


def _disturb(world: World, rng: random.Random, faults: dict[str, float]) -> None:
    (fault,) = rng.choices(list(faults), list(faults.values()))
    process = rng.choice(list(world.processes.values()))
    if process.is_up or fault not in _OF_THE_LIVING:
        _FAULTS[fault](world, rng, process)


def _append(world: World, _: random.Random, _process: Process) -> None:
    for candidate in world.processes.values():
        if candidate.is_up and candidate.node.is_leader:
            candidate.append()


def _restart(_: World, _rng: random.Random, process: Process) -> None:
    if not process.is_up:
        process.start()


def _change_voters(world: World, _: random.Random, process: Process) -> None:
    leader = world.leader()
    if leader is not None:
        is_voter = process.id in leader.node.voters.voters.ids
        (world.remove_voter if is_voter else world.add_voter)(leader, process.id)


def _crash_within_step(_: World, rng: random.Random, process: Process) -> None:
    process.crash_after_effects = rng.randint(0, 4)


def _make_snapshots(world: World, rng: random.Random, _: Process) -> None:
    for process in world.processes.values():
        if process.is_up and rng.random() < 0.7:
            process.make_snapshot()


def _pause(world: World, rng: random.Random, process: Process) -> None:
    process.paused_until = world.now + rng.choice([50, 500, 3000])
    world.at(process.paused_until - world.now, process.resume)


def _false_alarm(world: World, rng: random.Random, process: Process) -> None:
    process.step(ev.PeerProcessDied(rng.choice(list(world.processes))))


def _cut(world: World, rng: random.Random, process: Process) -> None:
    others = [other for other in world.processes if other != process.id]
    group = {process.id, *rng.sample(others, rng.randint(0, len(others) // 2))}
    style = rng.choice(["both", "both", "in", "out"])
    world.note(f"cut {group} {style}")
    for inside in group:
        for outside in set(world.processes) - group:
            if style != "in":
                world.blocked.add((inside, outside))
            if style != "out":
                world.blocked.add((outside, inside))


def _check_liveness(world: World) -> None:
    for process in world.processes.values():
        if not process.node._replica.stands:
            process.crash()
            process.start()
    for _ in range(4):
        world.run(5000, until=lambda: world.leader() is not None)
        world.run(3000)
        if world.leader() is not None:
            break
    leader = world.leader()
    if leader is None:
        _no_progress(world, "no leader after all faults are healed")
    before = world.committed
    leader.append()
    world.run(4000)
    if world.committed <= before:
        _no_progress(world, f"nothing is committed after all faults are healed, since {before}")
    for process in world.processes.values():
        if process.applied != world.committed:
            _no_progress(
                world, f"{process.id} is at {process.applied}, the quorum at {world.committed}"
            )


def _no_progress(world: World, message: str) -> None:
    raise NoProgressError(f"seed {world.seed}, {world.now} ms: {message}")


_FAULTS = {
    "append": _append,
    "crash": lambda _world, _rng, process: process.crash(),
    "crash_within_step": _crash_within_step,
    "restart": _restart,
    "cut": _cut,
    "heal": lambda world, _rng, _process: world.blocked.clear(),
    "pause": _pause,
    "snapshot": _make_snapshots,
    "voters": _change_voters,
    "resign": lambda _world, _rng, process: process.step(ev.Resign()),
    "false_alarm": _false_alarm,
}
_OF_THE_LIVING = {"crash", "crash_within_step", "pause", "resign", "false_alarm"}
