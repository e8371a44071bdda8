"""An older image that lacks a level of the cluster's is refused before anything is rendered."""

import asyncio
from typing import Any

import pytest

from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.brokers.backend import BrokersOnKubernetes
from headrace_operator.kubernetes.brokers.levels import IMAGES_MAX, with_image_kept, with_levels
from headrace_operator.plan import ObservedBroker, ObservedCluster
from headrace_operator.render.brokers import render_identity
from headrace_operator.render.identity import Identity
from headrace_operator.resources import Reason
from support.operator_resources import cluster

DEFAULT = "headrace:operator"
OLD = {"metadata.version": (7, 28), "share.version": (0, 1)}
NEW = {"metadata.version": (7, 29), "share.version": (0, 2)}
LEVELS = {"metadata.version": 29, "share.version": 1}
IDENTITY = Identity(
    cluster_id="id",
    image="headrace:2",
    is_image_named=True,
    version="4.2",
    levels=LEVELS,
    supported={"headrace:1": OLD, "headrace:2": NEW},
)


def seen(*ranges: dict[str, tuple[int, int]], **rest: Any) -> ObservedCluster:
    brokers = tuple(
        ObservedBroker(node_id=number, pool="a", **rest) for number, _ in enumerate(ranges, 1)
    )
    supported = dict(enumerate(ranges, 1))
    return ObservedCluster(brokers=brokers, features=LEVELS, supported_features=supported)


def test_an_image_that_lacks_a_level_is_not_taken_and_the_level_is_named() -> None:
    found, reason = with_image_kept(cluster(image="headrace:1"), IDENTITY, DEFAULT)
    assert found.spec.image == "headrace:2"
    assert reason.startswith(
        "spec.image: headrace:1 supports 7 to 28 of metadata.version, which is at 29:"
        " brokers keep headrace:2."
    )
    assert "share.version" not in reason


def test_one_that_knows_nothing_of_the_feature_is_not_taken_either() -> None:
    older = IDENTITY.supported | {"headrace:1": {"metadata.version": (7, 29)}}
    identity = Identity(
        cluster_id="id", image="headrace:2", version="4.2", levels=LEVELS, supported=older
    )
    found, reason = with_image_kept(cluster(image="headrace:1"), identity, DEFAULT)
    assert "supports no level of share.version, which is at 1" in reason
    # The image that it has was the operator's: it stays without a name.
    assert found.spec.image is None
    assert identity.at_version(found.spec.version, None, DEFAULT).image == "headrace:2"


@pytest.mark.parametrize("image", ["headrace:2", "headrace:never-seen", None])
def test_what_can_do_it_or_is_not_known_is_left_to_the_roll(image: str | None) -> None:
    spec = {} if image is None else {"image": image}
    wanted = cluster(**spec)
    assert with_image_kept(wanted, IDENTITY, DEFAULT) == (wanted, "")


def test_where_levels_were_lowered_first_it_is_taken() -> None:
    lowered = {"metadata.version": 28, "share.version": 1}
    identity = Identity(
        cluster_id="id", image="headrace:2", levels=lowered, supported=IDENTITY.supported
    )
    wanted = cluster(image="headrace:1")
    assert with_image_kept(wanted, identity, DEFAULT) == (wanted, "")


def test_an_operator_whose_own_image_lacks_it_changes_no_version() -> None:
    supported = {DEFAULT: OLD, "headrace:2": NEW}
    identity = Identity(
        cluster_id="id", image="headrace:2", version="4.2", levels=LEVELS, supported=supported
    )
    found, reason = with_image_kept(cluster(version="4.2.1"), identity, DEFAULT)
    assert reason.startswith("spec.version 4.2.1, with the image: headrace:operator supports")
    assert identity.at_version(found.spec.version, found.spec.image, DEFAULT).image == "headrace:2"


def test_what_all_brokers_support_is_noted_while_they_run_the_image() -> None:
    bare = Identity(cluster_id="id", image="headrace:2")
    noted = with_levels(bare, seen(NEW, OLD))
    assert noted.levels == LEVELS
    assert noted.supported == {"headrace:2": OLD}
    assert with_levels(noted, seen(NEW, OLD)) == noted


@pytest.mark.parametrize(
    "rest", [{"outdated": ("image: a -> b",)}, {"is_ready": False}, {"is_registered": False}]
)
def test_nothing_is_noted_of_brokers_that_do_not_run_it(rest: dict[str, Any]) -> None:
    bare = Identity(cluster_id="id", image="headrace:2")
    assert with_levels(bare, seen(NEW, NEW, **rest)).supported == {}


def test_nothing_is_noted_while_a_broker_has_not_said_it() -> None:
    found = seen(NEW, NEW)
    partly = ObservedCluster(brokers=found.brokers, supported_features={1: NEW})
    assert with_levels(Identity(cluster_id="id", image="x"), partly).supported == {}


def test_so_many_images_are_remembered() -> None:
    identity = Identity(cluster_id="id")
    for number in range(IMAGES_MAX + 3):
        identity = Identity(
            cluster_id="id", image=f"headrace:{number}", supported=identity.supported
        )
        identity = with_levels(identity, seen(NEW))
    assert list(identity.supported) == [f"headrace:{number}" for number in range(3, IMAGES_MAX + 3)]


def test_what_is_rendered_keeps_the_image_and_the_cluster_is_stalled() -> None:
    store = Store()
    wanted = cluster(image="headrace:1")
    store.learn(render_identity(wanted, IDENTITY))
    # Nothing is asked of the API server for this.
    backend = BrokersOnKubernetes(None, store, image=DEFAULT)  # type: ignore[arg-type]
    found, problems = asyncio.run(backend.effective(wanted))
    assert found.spec.image == "headrace:2"
    (problem,) = problems
    assert (problem.reason, problem.is_stalling) == (Reason.NOT_SUPPORTED, True)
    assert "metadata.version, which is at 29" in problem.message
