"""DescribeTransactions: what this broker coordinates, by transactional id (KIP-664).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithTransactions
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_TRANSACTIONS


def handle(
    broker: WithTransactions, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each id by itself."""
    del context
    response = DescribeTransactionsResponse()
    for transactional_id in request.transactional_ids:
        try:
            found = broker.transactions.describe(transactional_id)
        except ApiError as error:
            found = TransactionState(transactional_id=transactional_id, error_code=error.code)
        response.transaction_states.append(found)
    return response
