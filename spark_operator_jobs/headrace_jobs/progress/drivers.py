"""One driver for a checkpoint: the next one fences the one before.

`<checkpoint>/drivers/<epoch>` is a file for each driver that started here. It is made with
`O_EXCL`, so of two that start at once one gets the next number; the highest is the driver. Sinks
with progress of their own fence by themselves, in their store; this is for those that have none,
and for the checkpoint: Spark refuses a second writer of one batch only.
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
        # An epoch is a name: that is what must survive a power cut, and its folder's.
        sync(self._folder)
        sync(folder)
        for old in sorted(epochs)[:-_KEPT]:
            (self._folder / str(old)).unlink(missing_ok=True)

    def check(self) -> None:
        """Raise `FencedError` when another driver has started on this checkpoint since."""
        newest = max(self._epochs(), default=self.epoch)
        if newest > self.epoch:
            raise FencedError(
                f"another driver started on this checkpoint (epoch {newest}, this one has"
                f" {self.epoch}): this one is fenced and ends"
            )

    def _epochs(self) -> list[int]:
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]
