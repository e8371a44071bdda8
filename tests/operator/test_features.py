"""Levels of features are set in a second step, when every broker can work at them."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace_operator.admin import BrokerAdmin
from headrace_operator.plan import (
    Observed,
    ObservedCluster,
    Plan,
    SetFeatureLevels,
    plan,
)
from headrace_operator.plan.brokers import target_of
from headrace_operator.plan.report import report
from headrace_operator.resources import Reason
from support.headrace_cluster import HeadraceCluster
from support.operator_resources import broker, cluster, desired

NOW = {"group.version": 1, "metadata.version": 29}
CAN: Mapping[str, tuple[int, int]] = {"share.version": (0, 1), "group.version": (0, 1)}


def planned(features: dict[str, int], **rest: Any) -> Plan:
    values = {"brokers": (broker(1),), "features": NOW, "supported_features": {1: CAN}, **rest}
    wanted = desired(cluster=cluster(features=features))
    return plan(Observed(cluster=ObservedCluster(**values)), wanted)


def test_what_the_spec_names_is_set_and_the_rest_stays() -> None:
    (action,) = planned({"share.version": 1, "group.version": 1}).actions
    assert isinstance(action, SetFeatureLevels)
    assert action.levels == {"share.version": (0, 1)}
    assert action.describe() == "~ features: share.version 0 -> 1"
    assert planned({"group.version": 1}).is_empty
    assert planned({}).is_empty


@pytest.mark.parametrize(
    "brokers",
    [
        (broker(1, outdated=("image: a -> b",)),),
        (broker(1, is_registered=False),),
    ],
)
def test_it_waits_for_brokers_that_do_not_run_what_the_spec_says(brokers: Any) -> None:
    found = planned({"share.version": 1}, brokers=brokers)
    assert not any(isinstance(each, SetFeatureLevels) for each in found.actions)
    assert any("spec.features: share.version 0 -> 1" in each.message for each in found.waiting)


def test_a_level_that_a_broker_does_not_support_is_refused_with_its_range() -> None:
    found = planned({"share.version": 2, "unheard.of": 1})
    assert not found.actions
    (problem,) = found.problems
    assert problem.reason is Reason.NOT_SUPPORTED
    assert "share.version 2: broker 1 supports 0 to 1" in problem.message
    assert "unheard.of 1: broker 1 supports no level of it" in problem.message


def test_an_approval_is_of_these_levels() -> None:
    assert target_of(cluster()) == target_of(cluster(features={}))
    assert target_of(cluster()) != target_of(cluster(features={"share.version": 1}))


def test_the_status_has_the_levels() -> None:
    wanted = desired(cluster=cluster())
    seen = Observed(cluster=ObservedCluster(brokers=(broker(1),), features=NOW))
    key = wanted.cluster.key if wanted.cluster else ("", "", "")
    assert report(seen, wanted, plan(seen, wanted))[key]["features"] == NOW


def test_brokers_take_levels_and_their_refusal_is_said_in_their_words(tmp_path: Path) -> None:
    key = ("Cluster", "default", "c")

    async def settle(admin: BrokerAdmin, features: dict[str, int]) -> Any:
        wanted = desired(cluster=cluster([{"name": "a", "replicas": 3}], features=features))
        for _ in range(100):
            seen = (await admin.observe(wanted, now_ms=int(time.time() * 1000))).cluster
            assert seen is not None
            assert seen.features is not None
            if features.items() <= seen.features.items():
                return seen
            assert set(seen.supported_features) == {1, 2, 3}
            assert seen.supported_features[1]["share.version"] == (0, 1)
            levels = {name: (seen.features.get(name, 0), new) for name, new in features.items()}
            assert await admin.apply([SetFeatureLevels(resource=key, levels=levels)]) == ()
            await asyncio.sleep(0.1)
        raise AssertionError(seen)

    async def scenario() -> None:
        with HeadraceCluster(tmp_path) as running:
            async with BrokerAdmin(running.bootstrap) as admin:
                assert (await settle(admin, {})).features["share.version"] == 1
                await settle(admin, {"transaction.version": 1})
                await settle(admin, {"transaction.version": 2, "share.version": 1})
                lower = SetFeatureLevels(resource=key, levels={"metadata.version": (29, 7)})
                (failure,) = await admin.apply([lower])
                assert "might delete metadata information" in failure.message
                assert not failure.is_retriable

    asyncio.run(scenario())
