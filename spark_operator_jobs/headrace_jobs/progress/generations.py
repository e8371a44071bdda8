"""Generations of a query's checkpoint: how a Spark job applies a reset of its consumer group.

Spark takes its position from its checkpoint and never asks the group, so moving the group's offsets
alone has no effect. A client that resets a group says so in the commit's metadata (`headrace reset
<request id>`). A job that finds such a note at its start begins a new generation: an empty
checkpoint, whose starting offsets are stored before the query starts. State (windows, watermark)
belongs to the generation: it starts empty, and batches are numbered from 0 again.

The old generation stays. A reset to exactly the position where a kept generation stopped returns to
it, with its state: that is how `status.lastReset.previousOffsets` undoes a reset.

The first generation is the checkpoint's folder itself, the others are `generation-<n>` in it.
`generations.json` names the current one; it is replaced atomically before anything uses it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_jobs.durable import replace_file
from headrace_jobs.progress.checkpoint import committed_position, local_folder
from headrace_jobs.progress.offsets import TopicPartition, format_offsets, parse_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RESET_NOTE", "Generation", "GenerationError", "Generations", "Reset"]

#: The prefix of the metadata of a commit that moves a group; the request's id follows.
RESET_NOTE = "headrace reset "
#: The current one and two to return to: state can be large.
GENERATIONS_KEPT = 3
POINTER_FILE = "generations.json"
#: What Spark keeps in a checkpoint.
SPARK_FILES = ("commits", "metadata", "offsets", "sinks", "sources", "state")


class GenerationError(Exception):
    """The checkpoint cannot have generations; the message says why."""


class Reset(NamedTuple):
    """The new position of a partition by a reset, and the id of its request."""

    offset: int
    request_id: str


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One checkpoint. `starting_offsets` hold until its first batch; empty: not from a reset."""

    number: int
    path: str
    starting_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def position(self) -> dict[TopicPartition, int]:
        """Return where the generation continues; empty if only its source knows."""
        return committed_position(self.path) or dict(self.starting_offsets)


@dataclass(frozen=True, kw_only=True)
class _Pointer:
    """The contents of `generations.json`. `requests`: ids of the reset behind the current one."""

    current: int = 1
    requests: tuple[str, ...] = ()
    #: By number, oldest first: the starting offsets of each kept generation.
    kept: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=lambda: {1: {}})


class Generations:
    """The generations of one checkpoint. One job uses it at a time."""

    def __init__(self, checkpoint: str) -> None:
        """Take the folder that the job was given. Raises `GenerationError` for a broken pointer."""
        self._root = checkpoint
        self._folder = local_folder(checkpoint)
        self._pointer = self._load()

    @property
    def current(self) -> Generation:
        """The generation that the query uses."""
        return self._generation(self._pointer.current)

    @property
    def requests(self) -> tuple[str, ...]:
        """Ids of the reset that led to the current generation; empty if none did."""
        return self._pointer.requests

    def follow(
        self, resets: Mapping[TopicPartition, Reset], position: Mapping[TopicPartition, int]
    ) -> Generation:
        """Return the generation to use after the group's `resets`.

        `position` is the current generation's, for all partitions that the query reads. A reset
        that was already applied changes nothing. Raises `GenerationError`.
        """
        moved = {
            at: reset
            for at, reset in resets.items()
            if at in position and reset.request_id not in self._pointer.requests
        }
        if not moved:
            return self.current
        wanted = dict(position) | {at: reset.offset for at, reset in moved.items()}
        requests = tuple(sorted({reset.request_id for reset in moved.values()}))
        if self._folder is None:
            raise GenerationError(
                f"the reset {', '.join(requests)} needs a new generation of the checkpoint, and"
                f" {self._root} is no folder of this machine: only folders have generations"
            )
        number = self._find(wanted)
        if number is not None:
            self._save(replace(self._pointer, current=number, requests=requests))
        else:
            self._begin(wanted, requests)
        return self.current

    def _find(self, wanted: Mapping[TopicPartition, int]) -> int | None:
        """Return the generation at exactly that position: the current one, or the newest kept."""
        current = self._pointer.current
        for number in sorted(self._pointer.kept, key=lambda each: (each != current, -each)):
            stands_at = committed_position(self._generation(number).path)
            if stands_at and all(stands_at.get(at) == offset for at, offset in wanted.items()):
                return number
        return None

    def _begin(self, wanted: Mapping[TopicPartition, int], requests: tuple[str, ...]) -> None:
        number = max(self._pointer.kept) + 1
        kept = dict(self._pointer.kept) | {number: dict(wanted)}
        spare = [each for each in sorted(kept) if each not in (number, self._pointer.current)]
        dropped = spare[: max(0, len(kept) - GENERATIONS_KEPT)]
        # A folder with that number is from a start that ended before it was recorded.
        self._remove(number)
        self._save(
            _Pointer(
                current=number,
                requests=requests,
                kept={each: offsets for each, offsets in kept.items() if each not in dropped},
            )
        )
        for each in dropped:
            self._remove(each)

    def _generation(self, number: int) -> Generation:
        is_first = number == 1 or self._folder is None
        return Generation(
            number=number,
            path=self._root if is_first else f"{self._root.rstrip('/')}/generation-{number}",
            starting_offsets=self._pointer.kept.get(number, {}),
        )

    def _remove(self, number: int) -> None:
        path = local_folder(self._generation(number).path)
        if path is None:
            return
        for doomed in [path] if number > 1 else [path / name for name in SPARK_FILES]:
            if doomed.is_dir():
                shutil.rmtree(doomed)
            else:
                doomed.unlink(missing_ok=True)

    def _load(self) -> _Pointer:
        if self._folder is None or not (self._folder / POINTER_FILE).exists():
            return _Pointer()
        path = self._folder / POINTER_FILE
        try:
            document: dict[str, Any] = json.loads(path.read_text())
            return _Pointer(
                current=int(document["current"]),
                requests=tuple(document["requests"]),
                kept={
                    int(number): parse_offsets(json.dumps(offsets))
                    for number, offsets in document["startingOffsets"].items()
                },
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            # A guess would read everything again, or skip records that were never read.
            raise GenerationError(f"{path} cannot be read: {error!r}") from error

    def _save(self, pointer: _Pointer) -> None:
        if self._folder is None:
            raise AssertionError("only a folder has generations")
        self._folder.mkdir(parents=True, exist_ok=True)
        document = {
            "current": pointer.current,
            "requests": pointer.requests,
            "startingOffsets": {
                str(number): json.loads(format_offsets(offsets))
                for number, offsets in pointer.kept.items()
            },
        }
        replace_file(self._folder / POINTER_FILE, json.dumps(document, indent=2) + "\n")
        self._pointer = pointer
