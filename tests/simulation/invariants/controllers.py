"""What an active controller decides on, and when it answers: the rules once more.

It decides on all that is committed, and on what it has decided since itself; nothing of a time in
which it led before is left. No answer is given before what it rests on is committed, a refusal's
included (KIP-595: what is not committed may be lost).
"""

from dataclasses import replace
from typing import Any

from headrace_broker.server.quorum.controller import ControllerDriver
from simulation.history import History
from simulation.observing import observer


@observer(ControllerDriver, "_decide")
def _decide(
    history: History, original: Any, driver: ControllerDriver, decide: Any, **named: Any
) -> Any:
    """Decide on what is committed, where there is nothing else; answer when all of it is."""
    known, image = driver._speculative, driver._loader.image
    if known is not image and known.offset <= image.offset and not _is_same(known, image):
        history.violate(
            "decides-on-the-past",
            f"node {driver._config.node_id} decides on what was so at {known.offset} of epoch "
            f"{known.epoch}; {image.offset} of epoch {image.epoch} is committed",
        )
    response, committed = original(driver, decide, **named)
    until = image.offset
    if not committed.done():
        waiters = driver._loader._waiters
        until = next(offset for offset, _, waiter in waiters if waiter is committed)
    if until < driver._speculative.offset:
        history.violate(
            "answered-too-early",
            f"node {driver._config.node_id} answers at {until}, its answer rests on "
            f"{driver._speculative.offset}",
        )
    return response, committed


@observer(ControllerDriver, "_activate")
def _activate(history: History, original: Any, driver: ControllerDriver, epoch: Any) -> None:
    known, image = driver._speculative, driver._loader.image
    if known.offset >= 0 and not _is_same(known, image):
        history.reach("a node leads the quorum again after others have decided")
    original(driver, epoch)


def _is_same(known: Any, image: Any) -> bool:
    """Whether two images are the same, but for records that change none."""
    return replace(known, offset=image.offset, epoch=image.epoch) == image
