"""The balancer's proposal, and the plan in progress, as JSON. Read only.

`GET /api/v1/balance`: a plan made now; with `?drain=ID` it empties that broker, and
`?throttle=BYTES` determines its estimated time. `settings` approve it: a client sets them, with
`headrace.balance.state=running`, for the whole cluster by IncrementalAlterConfigs, so this port
changes nothing. `GET /api/v1/balance/progress`: the plan in progress. Errors: `{"error": {"code":
..., "message": ...}}` with INVALID_BROKER_ID, INVALID_THROTTLE (400) or BROKER_NOT_FOUND (404).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from headrace_broker.balancer.execution import PlanProgress
from headrace_broker.balancer.plans import DEFAULT_THROTTLE_BYTES_PER_SECOND, estimate_seconds
from headrace_broker.metadata.configs.balance_settings import UNTHROTTLED, plan_settings
from headrace_broker.protocol.types import NodeId
from headrace_broker.web.planned_balance import BrokerNotFoundError, PlannedBalance, Planner


def add_balance_routes(app: web.Application, planner: Planner) -> None:
    """Serve the balancer's plans."""

    async def get_balance(request: web.Request) -> web.Response:
        drain, throttle = (_number(request.query.get(name)) for name in ("drain", "throttle"))
        if drain is _WRONG:
            text = request.query["drain"]
            return _error(400, "INVALID_BROKER_ID", f"drain={text} is not a broker's id")
        if throttle in {_WRONG, 0}:
            text = request.query["throttle"]
            return _error(400, "INVALID_THROTTLE", f"throttle={text} are not bytes per second")
        try:
            planned = await planner.plan_balance(None if drain is None else NodeId(drain), throttle)
        except BrokerNotFoundError as error:
            return _error(404, "BROKER_NOT_FOUND", str(error))
        return web.json_response(document_of(planned))

    async def get_progress(request: web.Request) -> web.Response:
        del request
        return web.json_response(progress_document(*planner.balance_progress()))

    app.router.add_get("/api/v1/balance", get_balance)
    app.router.add_get("/api/v1/balance/progress", get_progress)


_WRONG = -1


def _number(text: str | None) -> int | None:
    """Return the number in a query, None if it is missing, -1 if it is not a number."""
    if text is None:
        return None
    return (
        int(text) if text.isascii() and text.isdigit() and len(text) < len(str(2**63)) else _WRONG
    )


def document_of(planned: PlannedBalance) -> Mapping[str, Any]:
    """Return the plan for JSON."""
    plan = planned.plan
    settings: Mapping[str, str] = {}
    reasons = list(plan.reasons)
    if not plan.is_empty:
        try:
            settings = plan_settings(plan.steps)
        except ValueError as error:
            reasons.append(str(error))
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
        "reasons": reasons,
        "unmeasuredPartitions": planned.unmeasured_partitions,
        "settings": settings,
    }


def progress_document(progress: PlanProgress | None, last: str | None) -> Mapping[str, Any]:
    """Return the plan in progress for JSON."""
    if progress is None:
        return {"plan": None, "last": last}
    plan = progress.plan
    throttle = plan.throttle_bytes_per_second
    is_throttled = throttle != UNTHROTTLED
    rate = float(throttle) if is_throttled else DEFAULT_THROTTLE_BYTES_PER_SECOND
    return {
        "plan": {
            "hash": plan.hash,
            "state": plan.state,
            "throttleBytesPerSecond": throttle if is_throttled else None,
            "concurrentMoves": plan.concurrent_moves,
            "moves": [
                {
                    "topic": move.topic,
                    "partition": move.partition,
                    "from": move.before,
                    "to": move.after,
                    "bytes": move.size_bytes,
                    "state": state,
                }
                for move, state in zip(plan.moves, progress.states, strict=True)
            ],
            "bytesTotal": sum(move.size_bytes for move in plan.moves),
            "bytesLeft": progress.bytes_left,
            "estimatedSecondsLeft": round(estimate_seconds(progress.moves_left, rate), 3),
        },
        "last": last,
    }


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
