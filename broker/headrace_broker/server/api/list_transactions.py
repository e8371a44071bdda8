"""ListTransactions: the transactional ids that this broker coordinates (KIP-664).

Versions: 0 · 1 filter by duration (KIP-994) · 2 filter by a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_broker.coordinator.modern.regex import check_regex, resolve_regexes
from headrace_broker.coordinator.transactions.admin import STATUS_BY_LABEL, TransactionFilter
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithTransactions
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LIST_TRANSACTIONS


def handle(
    broker: WithTransactions, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the ids that pass all filters; an unknown state is reported back, and matches none."""
    del context
    unknown = [name for name in request.state_filters if name not in STATUS_BY_LABEL]
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    if unknown and len(unknown) == len(request.state_filters):
        return response
    try:
        response.transaction_states = broker.transactions.list(_filter(request))
    except ApiError as error:
        response.error_code = error.code
    return response


def _filter(request: ListTransactionsRequest) -> TransactionFilter:
    statuses = {STATUS_BY_LABEL[name] for name in request.state_filters if name in STATUS_BY_LABEL}
    wanted = TransactionFilter(
        statuses=frozenset(statuses),
        producer_ids=frozenset(request.producer_id_filters),
        duration_ms=request.duration_filter,
    )
    pattern = request.transactional_id_pattern
    if not pattern:
        return wanted
    check_regex(pattern)
    return replace(wanted, matches=lambda name: _matches(pattern, name))


def _matches(pattern: str, name: str) -> bool:
    return bool(resolve_regexes([pattern], [name], 0, 0)[pattern].topics)
