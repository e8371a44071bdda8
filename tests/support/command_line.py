"""The `headrace` command, run by a process of its own, without what its imports take.

The libraries of the command line take half a second of processor time, and tests run it several
hundred times. So a server process imports them once and forks for each call: what runs is the real
command, with its own arguments, environment, folder, standard streams and exit status.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SECONDS = 120.0
_MESSAGE_BYTES = 1 << 20
_TO_SERVER = threading.Lock()
_IMPORTED = (
    "confluent_kafka.admin",
    "headrace_cli.app",
    "headrace_cli.change",
    "headrace_cli.output",
    "headrace_cli.up.session",
    "headrace_operator.validation",
    "kafka.admin",
    "kafka.consumer",
    "kafka.producer",
    "rich.markdown",
    "rich.table",
    "typer._adapters",
    "typer.rich_utils",
    "zoneinfo",
)
"""What commands need, and import when they need it."""


def run_headrace(
    *arguments: object,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, as `subprocess.run` would.

    Args:
        arguments: What follows `headrace`.
        stdin: The text on its standard input.
        environment: In place of this process's own.
        cwd: Its folder; this process's own where there is none.
        seconds: After as many it is killed, and `subprocess.TimeoutExpired` is raised.
    """
    texts = [str(each) for each in arguments]
    request = {
        "arguments": texts,
        "environment": dict(os.environ if environment is None else environment),
        "cwd": str(cwd or Path.cwd()),
    }
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as printed,
        tempfile.TemporaryFile("w+") as complained,
    ):
        given.write(stdin)
        given.seek(0)
        status = _call(request, [each.fileno() for each in (given, printed, complained)], seconds)
        for each in (printed, complained):
            each.seek(0)
        return subprocess.CompletedProcess(
            ["headrace", *texts], status, printed.read(), complained.read()
        )


def _call(request: Mapping[str, object], streams: Sequence[int], seconds: float) -> int:
    reading, writing = os.pipe()
    with os.fdopen(reading) as answer:
        try:
            with _TO_SERVER:
                message = json.dumps(request).encode()
                socket.send_fds(_server(), [message], [*streams, writing])
        finally:
            os.close(writing)
        process = int(answer.readline())
        if not select.select([answer], [], [], seconds)[0]:
            os.kill(process, signal.SIGKILL)
            raise subprocess.TimeoutExpired(str(request["arguments"]), seconds)
        return int(answer.readline())


@functools.cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def _serve(channel: socket.socket) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        message, files, _flags, _address = socket.recv_fds(channel, _MESSAGE_BYTES, 4)
        if not message:
            return
        middle = os.fork()
        if middle == 0:
            channel.close()
            _wait_for_one(message, files)
            # Here is the command alone.
            sys.exit(importlib.import_module("headrace_cli.main").main())
        _close(files)
        os.waitpid(middle, 0)


def _wait_for_one(message: bytes, files: list[int]) -> None:
    """Let a process that nobody waits for write how the command ends; return in the command."""
    if os.fork() > 0:
        os._exit(0)
    *streams, answer = files
    command = os.fork()
    if command == 0:
        os.close(answer)
        _become(json.loads(message), streams)
        return
    _close(streams)
    os.write(answer, f"{command}\n".encode())
    _process, status = os.waitpid(command, 0)
    with contextlib.suppress(BrokenPipeError):  # it was waited for long enough
        os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: Mapping[str, object], streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    _close(streams)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    time.tzset()
    sys.argv = [str(Path(sys.executable).with_name("headrace")), *request["arguments"]]  # type: ignore[misc]
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


if __name__ == "__main__":
    # As a console script has it.
    sys.path[0] = str(Path(sys.executable).parent)
    _serve(socket.socket(fileno=int(sys.argv[1])))
