"""The active controller acts by itself: sessions end, deaths count at once, leaders return."""

import asyncio

from headrace_broker.metadata.records import PartitionChangeRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.quorum.controller_tasks import ControllerTasks
from support.metadata import POLICY, creatable, create, image_with_brokers, replayed
from support.waiting import until

_VALUES = {
    "broker.session.timeout.ms": 400,
    "leader.imbalance.check.interval.seconds": 1,
    "auto.leader.rebalance.enable": True,
    "headrace.leader.return.delay.ms": 100,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "share.coordinator.state.topic.replication.factor": 3,
}


class _Controller:
    """Commits at once, as a quorum of one without a disk would."""

    def __init__(self, image):
        self.image = image
        self.policy = POLICY
        self.is_active = True

    async def submit(self, decide):
        if not self.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "not now")
        decision = decide(self.image)
        self.image = replayed(self.image, list(decision.records))
        return decision.response


def _image():
    image, _ = create(
        image_with_brokers(3),
        creatable("t", assignments=[[1, 2, 3]]),
        creatable("__consumer_offsets", assignments=[[1], [1]]),
    )
    return image


def _run(scenario, image=None):
    async def run():
        failures = []
        controller = _Controller(_image() if image is None else image)
        tasks = ControllerTasks(controller, _VALUES, failures.append)
        tasks.begin(controller.image)
        try:
            await scenario(controller, tasks)
        finally:
            await tasks.stop()
        assert not failures
        assert not tasks.is_active

    asyncio.run(run())


def _beat(controller, tasks, node):
    broker = controller.image.brokers[node]
    tasks.sessions.touch(node, broker.epoch, controller.image.offset, tasks.now_ms())


def test_a_silent_broker_is_fenced_and_one_that_talks_is_not():
    async def scenario(controller, tasks):
        def is_fenced():
            for node in (2, 3):
                _beat(controller, tasks, node)
            return controller.image.brokers[1].fenced

        await until(is_fenced)
        assert not controller.image.brokers[2].fenced
        assert controller.image.partition("t", 0).leader == 2

    _run(scenario)


def test_a_dead_process_is_fenced_at_once():
    async def scenario(controller, tasks):
        await tasks.broker_process_died(1)
        assert controller.image.brokers[1].fenced
        assert controller.image.partition("t", 0).leader == 2

    _run(scenario)


def test_what_cannot_be_committed_now_is_done_later():
    async def scenario(controller, tasks):
        controller.is_active = False
        await tasks.broker_process_died(1)
        assert not controller.image.brokers[1].fenced
        controller.is_active = True
        await until(lambda: controller.image.brokers[1].fenced)

    _run(scenario)


def test_leaders_return_and_the_clusters_own_topics_grow():
    image = _image()
    change = PartitionChangeRecord(topic_id=image.topics["t"].topic_id, partition_id=0, leader=2)

    async def scenario(controller, tasks):
        def is_done():
            for node in (1, 2, 3):
                _beat(controller, tasks, node)
            offsets = controller.image.topics["__consumer_offsets"].partitions.values()
            return controller.image.partition("t", 0).leader == 1 and all(
                len(partition.replicas) == 3 for partition in offsets
            )

        await until(is_done)

    _run(scenario, replayed(image, [change]))


def test_a_bug_in_a_task_ends_the_process_and_not_the_task_alone():
    async def run():
        failures = []
        controller = _Controller(_image())
        tasks = ControllerTasks(controller, _VALUES, failures.append)
        tasks.begin(controller.image)
        controller.policy = None
        await until(lambda: failures)
        await tasks.stop()

    asyncio.run(run())
