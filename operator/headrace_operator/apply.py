"""Carries out a plan's actions on topics, groups and replicas through Kafka's admin protocol.

Blocking: `headrace_operator.admin` runs it in a thread. Actions of one kind are sent in one
request. A failure is a value that names its action, and prevents no other action. An action whose
result already exists (the topic exists, or is gone) succeeds: the next observation shows what is
left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_operator.balance import BalanceError, alter_broker_configs, set_cordons
from headrace_operator.features import set_feature_levels
from headrace_operator.live_config import alter_live_config, alter_topic_settings
from headrace_operator.plan import (
    Action,
    AddVoter,
    AlterClusterConfig,
    AlterTopicConfig,
    CordonBrokers,
    CreatePartitions,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    MoveReplicas,
    RemoveVoter,
    ResetOffsets,
    SetFeatureLevels,
    UnregisterBroker,
)
from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.plan.moves import MOVES_THROTTLE
from headrace_operator.quorum import QuorumError, QuorumReplica, add_voter, remove_voter
from headrace_operator.unregister import unregister_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The actions that this module carries out; a backend handles brokers and applications.
ADMIN_ACTIONS = (
    CreateTopic,
    CreatePartitions,
    AlterTopicConfig,
    DeleteTopic,
    ResetOffsets,
    DeleteGroup,
    CordonBrokers,
    MoveReplicas,
    AddVoter,
    RemoveVoter,
    UnregisterBroker,
    AlterClusterConfig,
    SetFeatureLevels,
)
#: The fixed name of the controller listener.
CONTROLLER_LISTENER = "CONTROLLER"

#: Errors after which a client gives up, and another pass may succeed: the controller failed
#: (UNKNOWN_SERVER_ERROR), a broker is away (BROKER_NOT_AVAILABLE, INVALID_REPLICATION_FACTOR,
#: INVALID_REPLICA_ASSIGNMENT, STALE_BROKER_EPOCH), another one leads (STALE_CONTROLLER_EPOCH,
#: NEW_LEADER_ELECTED), a member has just joined (UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS,
#: NON_EMPTY_GROUP), or another change came first (OPERATION_NOT_ATTEMPTED,
#: REASSIGNMENT_IN_PROGRESS).
PASSING_CODES = frozenset({-1, 8, 11, 25, 27, 38, 39, 55, 60, 68, 77, 108})
#: DUPLICATE_VOTER, VOTER_NOT_FOUND: who is added votes already, who is removed does so no more.
#: An earlier request did it, whose answer was lost; where another's did, the next pass plans anew.
VOTER_CHANGED_CODES = frozenset({126, 127})
#: INVALID_CONFIG, INVALID_REQUEST.
UNKNOWN_SETTING_CODES = frozenset({40, 42})

#: A request for thousands takes longer than the client's timeout.
TOPICS_AT_ONCE = 200

_A = TypeVar("_A", bound=Action)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An action that the brokers refused. `is_retriable`: it may succeed later unchanged."""

    action: Action
    message: str
    is_retriable: bool = False

    def describe(self) -> str:
        """One line: the action and the brokers' error."""
        return f"{self.action.describe()}: {self.message}"


def apply_actions(
    admin: Any, actions: Sequence[Action], check: Callable[[], None] = lambda: None
) -> tuple[Failure, ...]:
    """Carry out every action of ADMIN_ACTIONS in `actions`, and return the failures.

    `admin` is a `kafka.KafkaAdminClient`. Raises `kafka.errors.KafkaError` when the brokers cannot
    be reached: then it is unknown which actions were carried out, and the next plan finds out.
    `check` raises if nothing more may be sent.
    """

    def step(
        kind: type[_A], run: Callable[..., Iterator[Failure]], *more: Any
    ) -> tuple[Sequence[Action], Iterator[Failure]]:
        some = _of(actions, kind)
        return some, run(admin, some, *more)

    voters: list[AddVoter | RemoveVoter] = [*_of(actions, AddVoter), *_of(actions, RemoveVoter)]
    steps: list[tuple[Sequence[Action], Iterator[Failure]]] = [
        # Before any move: otherwise new topics would get replicas on a broker that is being
        # drained.
        step(CordonBrokers, _cordon),
        step(MoveReplicas, _move_replicas),
        (voters, _change_voters(admin, voters)),
        step(UnregisterBroker, _unregister),
        step(AlterClusterConfig, _alter_cluster_config),
        step(SetFeatureLevels, _set_features),
        step(CreateTopic, _create_topics, check),
        step(CreatePartitions, _create_partitions),
        step(AlterTopicConfig, _alter_configs),
        step(DeleteTopic, _delete_topics, check),
        # One that fails ends no other's.
        *(([each], _reset_offsets(admin, [each])) for each in _of(actions, ResetOffsets)),
        step(DeleteGroup, _delete_groups),
    ]
    failures: list[Failure] = []
    for tried, outcomes in steps:
        check()
        failures += _guarded(tried, outcomes)
    return tuple(failures)


def _guarded(tried: Sequence[Action], outcomes: Iterator[Failure]) -> list[Failure]:
    """Run a step. A broker's error that ends it does not end the others."""
    from kafka.errors import BrokerResponseError, RequestTimedOutError

    failures: list[Failure] = []
    try:
        failures.extend(outcomes)
    except RequestTimedOutError:
        # The others would wait as long.
        raise
    except BrokerResponseError as error:
        failed = [failure.action for failure in failures]
        is_retriable = _may_pass(error)
        message = f"outcome unknown: {error}" if is_retriable else str(error)
        failures += [
            Failure(action=action, message=message, is_retriable=is_retriable)
            for action in tried
            if action not in failed
        ]
    return failures


def _of(actions: Sequence[Action], kind: type[_A]) -> list[_A]:
    return [action for action in actions if isinstance(action, kind)]


def _failure(action: Action, code: int, message: str | None) -> Failure:
    from kafka.errors import for_code

    error = for_code(code)
    text = f"{error.__name__.removesuffix('Error')} ({code})"
    return Failure(
        action=action,
        message=f"{text}: {message}" if message else text,
        is_retriable=_may_pass(error),
    )


def _refusal(action: Action, error: BalanceError | QuorumError) -> Failure:
    return Failure(action=action, message=str(error), is_retriable=_may_code_pass(error.code))


def _may_code_pass(code: int) -> bool:
    from kafka.errors import for_code

    return _may_pass(for_code(code))


def _may_pass(error: Any) -> bool:
    """Whether an error, or its class, may go away without a change by a user."""
    return bool(error.retriable) or getattr(error, "errno", None) in PASSING_CODES


def _cordon(admin: Any, actions: list[CordonBrokers]) -> Iterator[Failure]:
    for action in actions:
        drained = ",".join(map(str, action.drained)) or None
        try:
            set_cordons(admin, action.cordoned, cordoned=True)
            set_cordons(admin, action.uncordoned, cordoned=False)
            # Last: if this pass ends before it, only completed work is repeated.
            alter_broker_configs(admin, None, {DRAINED_BROKERS: drained})
        except BalanceError as error:
            yield _refusal(action, error)


def _change_voters(admin: Any, actions: list[AddVoter | RemoveVoter]) -> Iterator[Failure]:
    if not actions:
        return
    addresses = [(each["host"], each["port"]) for each in _alive(admin)]
    for action in actions:
        replica = QuorumReplica(node_id=action.node_id, directory_id=action.directory_id)
        try:
            if isinstance(action, AddVoter):
                host, _, port = action.address.rpartition(":")
                add_voter(addresses, replica, (CONTROLLER_LISTENER, host, int(port)))
            else:
                remove_voter(addresses, replica)
        except QuorumError as error:
            if error.code in VOTER_CHANGED_CODES:
                continue
            yield _refusal(action, error)


def _move_replicas(admin: Any, actions: list[MoveReplicas]) -> Iterator[Failure]:
    from kafka import TopicPartition
    from kafka.errors import ReassignmentInProgressError

    for action in actions:
        if action.throttle is not None:
            try:
                _throttle_moves(admin, action.throttle)
            except BalanceError as error:
                yield _refusal(action, error)
                continue
        results = admin.alter_partition_reassignments(
            {TopicPartition(*key): list(replicas) for key, replicas in action.moves.items()}
        )
        refused = {
            partition: error
            for partition, error in sorted(results.items())
            if error is not None and error is not ReassignmentInProgressError
        }
        if refused:
            listed = ", ".join(
                f"{partition.topic}-{partition.partition}: {error.__name__.removesuffix('Error')}"
                for partition, error in refused.items()
            )
            is_retriable = any(map(_may_pass, refused.values()))
            yield Failure(action=action, message=listed, is_retriable=is_retriable)


def _throttle_moves(admin: Any, bytes_per_second: int) -> None:
    try:
        value = str(bytes_per_second) if bytes_per_second else None
        alter_broker_configs(admin, None, {MOVES_THROTTLE: value})
    except BalanceError as error:
        # Brokers that are too old for this setting refuse it, and copy at full speed.
        if error.code not in UNKNOWN_SETTING_CODES:
            raise


def _unregister(admin: Any, actions: list[UnregisterBroker]) -> Iterator[Failure]:
    from kafka.errors import BrokerIdNotRegisteredError

    if not actions:
        return
    addresses = [(each["host"], each["port"]) for each in _alive(admin)]
    for action in actions:
        code, message = unregister_broker(addresses, action.node_id)
        if code not in (0, BrokerIdNotRegisteredError.errno):
            yield _failure(action, code, message)


def _alter_cluster_config(admin: Any, actions: list[AlterClusterConfig]) -> Iterator[Failure]:
    for action in actions:
        code, message = alter_live_config(admin, action.set, action.delete)
        if code:
            yield _failure(action, code, message)


def _set_features(admin: Any, actions: list[SetFeatureLevels]) -> Iterator[Failure]:
    for action in actions:
        code, message = set_feature_levels(admin, action.levels)
        if code:
            yield _failure(action, code, message)


def _alive(admin: Any) -> list[dict[str, Any]]:
    return [each for each in admin.describe_cluster()["brokers"] if not each.get("is_fenced")]


def _create_topics(
    admin: Any, actions: list[CreateTopic], check: Callable[[], None]
) -> Iterator[Failure]:
    for some in _batches(actions):
        check()
        yield from _create_some(admin, some)


def _batches(actions: list[_A]) -> Iterator[list[_A]]:
    for first in range(0, len(actions), TOPICS_AT_ONCE):
        yield actions[first : first + TOPICS_AT_ONCE]


def _create_some(admin: Any, actions: list[CreateTopic]) -> Iterator[Failure]:
    from kafka.errors import TopicAlreadyExistsError

    by_name = {action.topic: action for action in actions}
    response = admin.create_topics(
        {
            action.topic: {
                "num_partitions": action.partitions,
                "replication_factor": action.replicas,
                "configs": dict(action.config),
            }
            for action in actions
        },
        raise_errors=False,
    )
    created = []
    for result in response["topics"]:
        code = result["error_code"]
        if code in (0, TopicAlreadyExistsError.errno):
            created.append(result["name"])
        else:
            yield _failure(by_name[result["name"]], code, result["error_message"])
    if created:
        # Until brokers know a new topic, the next observation would plan to create it again.
        admin.wait_for_topics(created)


def _create_partitions(admin: Any, actions: list[CreatePartitions]) -> Iterator[Failure]:
    if not actions:
        return
    by_name = {action.topic: action for action in actions}
    response = admin.create_partitions(
        {action.topic: action.partitions for action in actions}, raise_errors=False
    )
    for result in response.results:
        if result.error_code:
            yield _failure(by_name[result.name], result.error_code, result.error_message)


def _alter_configs(admin: Any, actions: list[AlterTopicConfig]) -> Iterator[Failure]:
    if not actions:
        return
    results = alter_topic_settings(
        admin, {action.topic: (action.set, action.delete) for action in actions}
    )
    for action in actions:
        code, message = results[action.topic]
        if code:
            yield _failure(action, code, message)


def _delete_topics(
    admin: Any, actions: list[DeleteTopic], check: Callable[[], None]
) -> Iterator[Failure]:
    from kafka.errors import UnknownTopicOrPartitionError

    for some in _batches(actions):
        check()
        by_name = {action.topic: action for action in some}
        response = admin.delete_topics(list(by_name), raise_errors=False)
        for result in response["topics"]:
            code = result["error_code"]
            if code not in (0, UnknownTopicOrPartitionError.errno):
                yield _failure(by_name[result["name"]], code, result["error_message"])


def _reset_offsets(admin: Any, actions: list[ResetOffsets]) -> Iterator[Failure]:
    for action in actions:
        if action.is_dry_run:
            continue
        if action.is_share:
            yield from _reset_share_group(admin, action)
        else:
            yield from _commit_offsets(admin, action)


def _reset_share_group(admin: Any, action: ResetOffsets) -> Iterator[Failure]:
    from kafka.errors import for_code

    from headrace_operator.kafka_messages import alter_share_group_offsets

    refused = alter_share_group_offsets(admin, action.group, action.offsets)
    errors = {key: for_code(code) for key, (code, _) in sorted(refused.items())}
    if errors:
        listed = ", ".join(
            f"{topic}-{index}: {error.__name__.removesuffix('Error')}"
            for (topic, index), error in errors.items()
        )
        is_retriable = any(map(_may_pass, errors.values()))
        yield Failure(action=action, message=listed, is_retriable=is_retriable)


def _commit_offsets(admin: Any, action: ResetOffsets) -> Iterator[Failure]:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    # The commit's metadata shows who moved the offsets.
    note = f"headrace reset {action.request_id}"
    offsets = {
        TopicPartition(*key): OffsetAndMetadata(offset, note, -1)
        for key, offset in action.offsets.items()
    }
    results = admin.alter_group_offsets(action.group, offsets)
    refused = [
        (partition, error)
        for partition, error in sorted(results.items())
        if getattr(error, "errno", 0)
    ]
    if refused:
        listed = ", ".join(
            f"{partition.topic}-{partition.partition}: {error.__name__.removesuffix('Error')}"
            for partition, error in refused
        )
        is_retriable = any(_may_pass(error) for _, error in refused)
        yield Failure(action=action, message=listed, is_retriable=is_retriable)


def _delete_groups(admin: Any, actions: list[DeleteGroup]) -> Iterator[Failure]:
    from kafka import errors

    if not actions:
        return
    results = admin.delete_groups([action.group for action in actions])
    for action in actions:
        # The client gives the names of its classes.
        result = results.get(action.group, "CoordinatorNotAvailableError")
        # It is gone already.
        if result not in ("OK", "GroupIdNotFoundError"):
            yield _failure(action, getattr(errors, result).errno, None)
