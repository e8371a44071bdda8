import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace_operator.local import processes
from headrace_operator.local.ports import allocate_ports, is_free
from headrace_operator.local.processes import (
    ProcessEvent,
    ProcessEventKind,
    ProcessSpec,
    RestartPolicy,
    SupervisedProcess,
    end_leftovers,
)
from headrace_operator.local.state import (
    ClusterState,
    LockHeldError,
    ProcessIdentity,
    exclusive_lock,
    load_state,
    save_state,
)
from support.waiting import until

# A child with a grandchild in a process group of its own, as Spark's Python daemon makes one.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


def spec(tmp_path: Path, code: str, **fields: object) -> ProcessSpec:
    return ProcessSpec(
        name="child",
        command=(sys.executable, "-c", code),
        log_path=tmp_path / "child.log",
        stop_grace_seconds=5,
        **fields,
    )


def test_a_child_that_dies_is_restarted_and_said(tmp_path: Path) -> None:
    events: list[ProcessEvent] = []

    async def scenario() -> None:
        child = SupervisedProcess(spec(tmp_path, "import time; time.sleep(600)"), events.append)
        await child.start()
        first = child.identity
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: child.restarts == 1 and child.is_running)
        assert child.identity != first
        await child.stop()
        assert not child.is_running

    asyncio.run(scenario())
    kinds = [event.kind for event in events]
    assert kinds == [
        ProcessEventKind.STARTED,
        ProcessEventKind.ENDED,
        ProcessEventKind.RESTARTING,
        ProcessEventKind.STARTED,
    ]
    assert events[1].exit_status == -signal.SIGKILL
    assert events[2].delay_seconds == processes.BACKOFF_SECONDS_MIN


@pytest.mark.parametrize(
    ("policy", "status", "is_restarted"),
    [
        (RestartPolicy.ALWAYS, 0, True),
        (RestartPolicy.ON_FAILURE, 0, False),
        (RestartPolicy.ON_FAILURE, 3, True),
        (RestartPolicy.NEVER, 3, False),
    ],
)
def test_restarts_follow_the_policy(
    tmp_path: Path,
    policy: RestartPolicy,
    status: int,
    is_restarted: bool,  # noqa: FBT001 - a case of the table
) -> None:
    events: list[ProcessEvent] = []

    async def scenario() -> None:
        child = SupervisedProcess(
            spec(tmp_path, f"raise SystemExit({status})", restart=policy), events.append
        )
        await child.start()
        await until(lambda: child.is_over or child.restarts > 0)
        await child.stop()

    asyncio.run(scenario())
    assert any(event.kind is ProcessEventKind.RESTARTING for event in events) == is_restarted


def test_stopping_a_child_leaves_nothing_of_its_session(tmp_path: Path) -> None:
    log = tmp_path / "child.log"

    async def scenario() -> int:
        child = SupervisedProcess(spec(tmp_path, PARENT), lambda _: None)
        await child.start()
        await until(lambda: log.exists() and log.read_text().strip())
        await child.stop()
        return int(log.read_text())

    grandchild = asyncio.run(scenario())
    assert not is_alive(grandchild)


def test_what_a_killed_run_left_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        child = subprocess.Popen([sys.executable, "-c", PARENT], stdout=out, start_new_session=True)
    with child:
        deadline = time.monotonic() + 10
        while not log.read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.02)
        identity = ProcessIdentity.of("child", child.pid)
        assert end_leftovers([identity], grace_seconds=0.5) == [identity]
        child.wait(5)
    assert not is_alive(int(log.read_text()))
    assert end_leftovers([identity]) == []


def test_a_pid_that_now_belongs_to_another_process_is_never_signalled() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    ) as stranger:
        try:
            real = ProcessIdentity.of("broker-1", stranger.pid)
            stale = ProcessIdentity(
                name="broker-1", pid=stranger.pid, started_at=real.started_at - 60
            )
            assert stale.find() is None
            assert end_leftovers([stale]) == []
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_ports_stay_the_same_and_are_never_given_twice() -> None:
    names = [f"{node}.client" for node in range(20)]
    first = allocate_ports(names, remembered={}, preferred={})
    assert len(set(first.values())) == len(names)
    assert allocate_ports(names, remembered=first, preferred={}) == first


def test_ports_are_none_that_the_system_gives_to_the_ends_of_connections() -> None:
    # Such a port may be taken by any connection on this machine before a broker listens on it.
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = map(int, text.split())
    chosen = allocate_ports([f"{node}" for node in range(50)], remembered={}, preferred={})
    assert not [port for port in chosen.values() if first <= port <= last]


def test_a_chosen_port_is_found_by_nobody_else_and_a_server_can_listen_on_it() -> None:
    import socket

    (chosen,) = allocate_ports(["a"], remembered={}, preferred={}).values()
    # As a second `headrace up` does before the first one's brokers listen, or while one is down.
    other = "; ".join(
        (
            "from headrace_operator.local import ports",
            f"ports.PORTS = range({chosen}, {chosen + 2})",
            "ports._TRIES_MAX = 2",
            "print(ports.allocate_ports(['b'], remembered={}, preferred={})['b'])",
        )
    )
    for _ in range(5):  # the order is random
        found = subprocess.run(
            [sys.executable, "-c", other], capture_output=True, text=True, check=True
        ).stdout
        assert int(found) != chosen
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", chosen))
        listener.listen()
        with socket.create_connection(("127.0.0.1", chosen)):
            assert not is_free(chosen)
    # The connection is in TIME_WAIT now; the next start has the same port.
    assert allocate_ports(["a"], remembered={"a": chosen}, preferred={}) == {"a": chosen}


def test_a_port_that_is_taken_is_replaced() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        chosen = allocate_ports(["a"], remembered={"a": port}, preferred={"a": port})
        assert chosen["a"] != port


def test_a_lock_is_held_by_one_and_dropped_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    with (
        exclusive_lock(path, wait=False),
        pytest.raises(LockHeldError),
        exclusive_lock(path, wait=False),
    ):
        pass
    with exclusive_lock(path, wait=False):
        pass


def test_a_state_file_that_cannot_be_read_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert load_state(path) is None
    path.write_text("{")
    assert load_state(path) is None
    save_state(path, ClusterState(cluster="cpu"))
    assert load_state(path) == ClusterState(cluster="cpu")


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
