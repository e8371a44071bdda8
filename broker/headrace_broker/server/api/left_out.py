"""APIs of Kafka's broker that are not served: what a request for one of them is told.

They are not in ApiVersions' answer, so a client that looks there says itself that the broker does
not support them. Whoever asks all the same gets an error of the API's own, as Apache Kafka 4.2.1
gives one where it is not set up for it: without an authorizer, on a PLAINTEXT listener. A request
for a whole is refused as a whole; where an answer has only outcomes of parts, each part is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from headrace_broker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from headrace_broker.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace_broker.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace_broker.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

if TYPE_CHECKING:
    from headrace_broker.protocol.schema import Message
    from headrace_broker.server.network.context import RequestContext

_ACLS: Final = "ACLs are not served yet; access is limited by what the listeners are bound to"
_SASL: Final = "SASL is not served yet; this listener is PLAINTEXT"
_SCRAM: Final = "users and their SCRAM credentials are not served yet"
_QUOTAS: Final = "quotas are not served yet; nobody is throttled"
_TELEMETRY: Final = "clients' metrics (KIP-714) are not collected"
_STREAMS: Final = (
    "the streams protocol (KIP-1071) is not served; set group.protocol=classic in the application"
)

REFUSALS: Final[Mapping[ApiKey, tuple[ErrorCode, str]]] = {
    ApiKey.SASL_HANDSHAKE: (ErrorCode.ILLEGAL_SASL_STATE, _SASL),
    ApiKey.SASL_AUTHENTICATE: (ErrorCode.ILLEGAL_SASL_STATE, _SASL),
    ApiKey.DESCRIBE_ACLS: (ErrorCode.SECURITY_DISABLED, _ACLS),
    ApiKey.CREATE_ACLS: (ErrorCode.SECURITY_DISABLED, _ACLS),
    ApiKey.DELETE_ACLS: (ErrorCode.SECURITY_DISABLED, _ACLS),
    **dict.fromkeys(
        (
            ApiKey.CREATE_DELEGATION_TOKEN,
            ApiKey.RENEW_DELEGATION_TOKEN,
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ),
        (ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, _SASL),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (ErrorCode.UNSUPPORTED_VERSION, _QUOTAS),
    ApiKey.ALTER_CLIENT_QUOTAS: (ErrorCode.UNSUPPORTED_VERSION, _QUOTAS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (ErrorCode.UNSUPPORTED_VERSION, _SCRAM),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (ErrorCode.UNSUPPORTED_VERSION, _SCRAM),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (ErrorCode.UNSUPPORTED_VERSION, _TELEMETRY),
    ApiKey.PUSH_TELEMETRY: (ErrorCode.UNSUPPORTED_VERSION, _TELEMETRY),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (ErrorCode.UNSUPPORTED_VERSION, _STREAMS),
    ApiKey.STREAMS_GROUP_DESCRIBE: (ErrorCode.UNSUPPORTED_VERSION, _STREAMS),
}
"""What each of them is answered, and why."""


def refusing(key: ApiKey) -> Callable[..., Any]:
    """Return a handler that answers every request for an API with its error."""
    code, reason = REFUSALS[key]
    answer = _PARTS.get(key, partial(_whole, API_TABLE[key].response))

    def refuse(node: object, context: RequestContext, request: Any) -> Any:
        del node, context
        return answer(request, code, reason)

    return refuse


def _whole(response: type[Message], request: object, code: int, reason: str) -> Message:
    del request
    facts: dict[str, Any] = {"error_code": code}
    if hasattr(response(), "error_message"):
        facts["error_message"] = reason
    return response(**facts)


def _create_acls(request: CreateAclsRequest, code: int, reason: str) -> CreateAclsResponse:
    refused = AclCreationResult(error_code=code, error_message=reason)
    return CreateAclsResponse(results=[refused] * len(request.creations))


def _delete_acls(request: DeleteAclsRequest, code: int, reason: str) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(error_code=code, error_message=reason)
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def _alter_quotas(
    request: AlterClientQuotasRequest, code: int, reason: str
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=code,
                error_message=reason,
                entity=[
                    AlterClientQuotasResponseEntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


def _alter_scram(
    request: AlterUserScramCredentialsRequest, code: int, reason: str
) -> AlterUserScramCredentialsResponse:
    named = dict.fromkeys(each.name for each in request.deletions)
    named |= dict.fromkeys(each.name for each in request.upsertions)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=reason)
            for name in named
        ]
    )


def _describe_streams(
    request: StreamsGroupDescribeRequest, code: int, reason: str
) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=name, error_code=code, error_message=reason)
            for name in request.group_ids
        ]
    )


_PARTS: Final[Mapping[ApiKey, Callable[[Any, int, str], Any]]] = {
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
    ApiKey.STREAMS_GROUP_DESCRIBE: _describe_streams,
}
