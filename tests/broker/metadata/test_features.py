import pytest

from headrace_broker.metadata.brokers.registration import decide_bootstrap
from headrace_broker.metadata.features import (
    FeatureUpdate,
    UpgradeType,
    decide_update_features,
    finalized_features,
)
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NodeId

METADATA = "metadata.version"
ELR = "eligible.leader.replicas.version"
GROUP = "group.version"
SAFE, UNSAFE = UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


def replayed(image, decision):
    for record in decision.records:
        image = image.replay(record)
    return image


NEW = replayed(MetadataImage(), decide_bootstrap(MetadataImage()))


def updated(*updates, image=NEW, kraft_version=1, validate_only=False):
    listed = [FeatureUpdate(name=each[0], level=each[1], upgrade_type=each[2]) for each in updates]
    decision = decide_update_features(
        image,
        listed,
        node_id=NodeId(1),
        kraft_version=kraft_version,
        validate_only=validate_only,
    )
    return replayed(image, decision).features


def test_a_new_cluster_is_at_the_latest_levels():
    assert finalized_features(NEW, 1) == {
        METADATA: 29,
        ELR: 1,
        GROUP: 1,
        "kraft.version": 1,
        "share.version": 1,
        "transaction.version": 2,
    }
    assert finalized_features(NEW, 0) == {
        METADATA: 29,
        ELR: 1,
        GROUP: 1,
        "share.version": 1,
        "transaction.version": 2,
    }


@pytest.mark.parametrize("level", [28, 23])
def test_what_reads_the_same_records_can_be_lowered_and_raised_again(level):
    lowered = replayed(
        NEW,
        decide_update_features(
            NEW,
            [FeatureUpdate(name=METADATA, level=level, upgrade_type=SAFE)],
            node_id=NodeId(1),
            kraft_version=1,
            validate_only=False,
        ),
    )
    assert lowered.features[METADATA] == level
    assert updated((METADATA, 29, 1), image=lowered)[METADATA] == 29


def test_the_consumer_protocol_can_be_turned_off_and_on_again() -> None:
    off = replayed(
        NEW,
        decide_update_features(
            NEW,
            [FeatureUpdate(name=GROUP, level=0, upgrade_type=SAFE)],
            node_id=NodeId(1),
            kraft_version=1,
            validate_only=False,
        ),
    )
    assert GROUP not in finalized_features(off, 1)
    assert updated((GROUP, 1, 1), image=off)[GROUP] == 1


def test_a_dry_run_changes_nothing_and_one_refusal_refuses_all():
    assert updated((METADATA, 25, SAFE), validate_only=True) == NEW.features
    with pytest.raises(ApiError, match="only supports versions 0-1"):
        updated((METADATA, 25, SAFE), (ELR, 2, 1))
    assert updated(("kraft.version", 1, 1)) == NEW.features


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ((METADATA, 22, SAFE), "might delete metadata information"),
        ((METADATA, 7, UNSAFE), "Unsafe metadata downgrade is not supported"),
        ((METADATA, 28, 1), "without setting the upgrade type"),
        ((METADATA, 30, 1), "Local controller 1 only supports versions 7-29"),
        ((METADATA, -1, SAFE), "cannot be less than 0"),
        ((METADATA, 28, 9), "does not support the given upgrade type"),
        (("nope", 1, 1), "Local controller 1 does not support this feature"),
        (("kraft.version", 0, SAFE), "Can't downgrade the version of this feature."),
        ((ELR, 0, SAFE), "Can't downgrade the version of this feature."),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(update, said):
    with pytest.raises(ApiError, match=said) as refused:
        updated(update)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


def test_voters_of_an_old_quorum_are_written_down_by_a_restart_and_not_by_this():
    with pytest.raises(ApiError, match=r"headrace\.kraft\.version=1"):
        updated(("kraft.version", 1, 1), kraft_version=0)
