"""Which settings `headrace recover-quorum` takes in a pod that has those of several revisions."""

import os
from pathlib import Path

import pytest

from headrace_cli.commands import recover_quorum as command
from headrace_cli.errors import BadInputError
from support.headrace_broker import HeadraceBroker


def seen_alone(folder: Path, *pids: int) -> Path:
    """Return a /proc of these processes only, as in a pod: others run brokers here as well."""
    folder.mkdir()
    for pid in pids:
        (folder / str(pid)).symlink_to(f"/proc/{pid}")
    (folder / "uptime").touch()
    return folder


def test_the_running_brokers_own_settings_are_taken_of_several_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with HeadraceBroker(tmp_path) as broker:
        running = (tmp_path / "broker.properties").read_text()
        for revision in ("a-newer", "z-newer"):
            other = running.replace(str(broker.log_directory), str(tmp_path / revision))
            (tmp_path / f"broker.{revision}.properties").write_text(other)
        ended = 2**22 + 1
        processes = seen_alone(tmp_path / "proc", broker.pid, os.getpid(), ended)
        monkeypatch.setattr(command, "PROCESSES", processes)
        command.recover_quorum(execute=False)
        assert f"with what {broker.log_directory} has" in capsys.readouterr().out
        assert not (broker.log_directory / "recover-alone").exists()
        command.recover_quorum(execute=True)
        assert (broker.log_directory / "recover-alone").exists()


def test_without_a_broker_that_runs_a_file_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PROCESSES", seen_alone(tmp_path / "proc", os.getpid()))
    with pytest.raises(BadInputError, match=r"\(none\).*name the FILE"):
        command.recover_quorum(execute=True)
