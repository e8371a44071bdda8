"""The topics as group coordinators see them, built from metadata images on demand."""

from uuid import UUID

from headrace_broker.coordinator.modern.topics import TopicsView, TopicView
from headrace_broker.metadata.entities import TopicImage
from headrace_broker.metadata.image import MetadataImage


class TopicsOfImage:
    """Builds a `TopicsView` of the latest image, and reuses what has not changed."""

    def __init__(self) -> None:
        self._image: MetadataImage | None = None
        self._view = TopicsView()
        self._known: dict[UUID, tuple[TopicImage, TopicView]] = {}
        self._racks: dict[int, str] = {}

    def view(self, image: MetadataImage) -> TopicsView:
        """Return the view of an image. Its version grows when topics are added or removed."""
        before = self._image
        if before is not None and before.topics is image.topics and before.brokers is image.brokers:
            return self._view
        self._image = image
        racks = {
            int(broker.node_id): broker.rack for broker in image.brokers.values() if broker.rack
        }
        if racks != self._racks:
            self._racks, self._known = racks, {}
        known: dict[UUID, TopicView] = {
            topic.topic_id: self._topic(topic) for topic in image.topics.values()
        }
        self._known = {key: (image.topics[view.name], view) for key, view in known.items()}
        by_name = {view.name: view for view in known.values()}
        if by_name == self._view.by_name:
            return self._view
        is_same = by_name.keys() == self._view.by_name.keys()
        self._view = TopicsView(
            version=self._view.version if is_same else int(image.offset),
            by_name=by_name,
            by_id=known,
        )
        return self._view

    def _topic(self, topic: TopicImage) -> TopicView:
        image, view = self._known.get(topic.topic_id, (None, None))
        if image is topic and view is not None:
            return view
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            racks = tuple(
                frozenset(self._racks[node] for node in partition.replicas if node in self._racks)
                for _, partition in sorted(topic.partitions.items())
            )
        return TopicView(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_count=len(topic.partitions),
            racks=racks,
        )
