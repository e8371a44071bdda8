"""`GET /api/v1/balance`: what the balancer would do now, as JSON. Read only.

`?drain=ID` plans that nothing is left on that broker. Whoever approves a plan carries it out with
Kafka's own requests (AlterPartitionReassignments, ElectLeaders), so this port changes nothing.
Errors: `{"error": {"code": ..., "message": ...}}` with INVALID_BROKER_ID (400) or
BROKER_NOT_FOUND (404).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from headrace_broker.protocol.types import NodeId
from headrace_broker.web.planned_balance import BrokerNotFoundError, PlannedBalance, Planner


def add_balance_routes(app: web.Application, planner: Planner) -> None:
    """Serve the balancer's plans."""

    async def get_balance(request: web.Request) -> web.Response:
        text = request.query.get("drain")
        if text is not None and not (text.isascii() and text.isdigit()):
            return _error(400, "INVALID_BROKER_ID", f"drain={text} is not a broker's id")
        try:
            planned = planner.plan_balance(None if text is None else NodeId(int(text)))
        except BrokerNotFoundError as error:
            return _error(404, "BROKER_NOT_FOUND", str(error))
        return web.json_response(document_of(planned))

    app.router.add_get("/api/v1/balance", get_balance)


def document_of(planned: PlannedBalance) -> Mapping[str, Any]:
    """Return the plan as JSON has it."""
    plan = planned.plan
    return {
        "hash": plan.digest,
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "from": move.from_replicas,
                "to": move.to_replicas,
                "bytes": move.size_bytes,
            }
            for move in plan.moves
        ],
        "leaderMoves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "from": move.from_leader,
                "to": move.to_leader,
                "replicas": move.replicas,
            }
            for move in plan.leader_moves
        ],
        "bytesTotal": plan.bytes_total,
        "estimatedSeconds": round(plan.estimated_seconds, 3),
        "reasons": plan.reasons,
        "unmeasuredPartitions": planned.unmeasured_partitions,
    }


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
