"""One driver per checkpoint: each new driver fences the previous one.

`<checkpoint>/drivers/<epoch>` is a file for each driver that started here. It is created with
`O_EXCL`, so of two simultaneous starts only one gets the next number; the highest number is the
driver. Sinks with their own progress fence in their own store. This is for sinks without, and for
the checkpoint: Spark only refuses a second writer of the same batch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headrace_jobs.durable import sync
from headrace_jobs.progress.stored import FencedError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DriverEpoch"]

_KEPT = 3


class DriverEpoch:
    """The epoch of this process among the drivers of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Take the next epoch. Raises OSError."""
        self._folder = folder / "drivers"
        self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            epochs = self._epochs()
            self.epoch = max(epochs, default=0) + 1
            try:
                handle = os.open(self._folder / str(self.epoch), os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            os.close(handle)
            break
        # An epoch is a file name: the name and its folder's must survive a power cut.
        sync(self._folder)
        sync(folder)
        for old in sorted(epochs)[:-_KEPT]:
            (self._folder / str(old)).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise `FencedError` if another driver has started on this checkpoint since."""
        newest = max(self._epochs(), default=self.epoch)
        if newest > self.epoch:
            raise FencedError(
                f"another driver started on this checkpoint (epoch {newest}, this one has"
                f" {self.epoch}): this one is fenced and ends"
            )

    def _epochs(self) -> list[int]:
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]
