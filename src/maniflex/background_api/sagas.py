"""`server.saga`: a route that submits a durable run whose steps are taken back where it fails.

The route answers at once with the run, or waits for it as long as its caller prefers. A key of the caller's
own makes a repetition the same run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import payload_text
from maniflex.background.runs.model import Status, WorkflowRun
from maniflex.background.runs.outcomes import NOT_TAKEN_BACK
from maniflex.errors import Abort
from maniflex.middleware.db.query_text import caller_of
from maniflex.middleware.idempotency.request import KEY_HEADER, read_headers
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response

LONGEST_WAIT = 30.0  # seconds
_SHARE = 0.8  # of the time that the request has
# What the description says of such a route, besides what its declaration does.
SAGA_ANSWERS: Mapping[str, Any] = {
    "response": dict[str, Any],
    "status": 202,
    "responses": {200: dict[str, Any]},
    "errors": (409, 422, 500),
}


class SagaRoute:
    """The route of one saga."""

    def __init__(self, work: Work, type: str, request: Any) -> None:
        self._work = work
        self._type = type
        self._request = request

    async def answer(self, ctx: Context) -> Response:
        """Submit the run, and answer with it or with what came of it."""
        payload = ctx._body if self._request is not None else await self._read_payload(ctx)
        key = self._key(ctx)
        async with ctx.transaction():
            run, is_new = await self._work.offer(self._type, payload, idempotency_key=key)
            if not is_new:
                self._require_same(run, payload)
        seconds = 0.0 if ctx.tx is not None else self._wait_of(ctx)
        if seconds:
            ctx.add_header("preference-applied", f"wait={seconds:g}")
            try:
                run = await self._work.wait(run.id, seconds)
            except TimeoutError:
                run = await self._work.get(run.id)
            if run.finished:
                return await self._answer_finished(run)
        table = ctx.runtime.models[WorkflowRun].table
        headers = {"location": f"{ctx.runtime.config.path_prefix}/{table}/{run.id}"}
        data = {"run_id": run.id, "status": run.status}
        return Response(202 if is_new else 200, data, headers=headers)

    async def _read_payload(self, ctx: Context) -> Any:
        return await ctx.bind_json() if await ctx.read_body() else {}

    def _key(self, ctx: Context) -> str | None:
        """The key of the run: no caller has that of another."""
        by_name = dict(ctx.scope["headers"])
        if KEY_HEADER not in by_name:
            return None
        key = read_headers(ctx.scope["headers"], by_name).key
        caller = caller_of(ctx, exact=True)
        return hashlib.sha256(f"{len(caller)} {caller} {self._type} {key}".encode()).hexdigest()

    def _require_same(self, run: WorkflowRun, payload: Any) -> None:
        """Refuse a key whose run was given something else."""
        handler = self._work.handlers.get(self._type)
        if json.loads(payload_text(handler, payload)) != run.payload:
            text = "this Idempotency-Key belongs to a request that asks for something else"
            raise Abort(422, "IDEMPOTENCY_KEY_REUSED", text)

    def _wait_of(self, ctx: Context) -> float:
        """For how long the caller prefers to wait; what cannot be read is ignored."""
        for part in (ctx.header("prefer") or "").split(","):
            name, _, value = part.partition(";")[0].strip().partition("=")
            value = value.strip().strip('"')
            if name.strip().lower() == "wait" and value.isascii() and value.isdigit() and len(value) < 10:
                timeout = ctx.runtime.config.query_timeout.total_seconds()
                return min(float(value), LONGEST_WAIT, timeout * _SHARE if timeout else LONGEST_WAIT)
        return 0.0

    async def _answer_finished(self, run: WorkflowRun) -> Response:
        if run.status == Status.SUCCEEDED:
            return Response(200, {"run_id": run.id, "status": run.status, "result": run.result})
        error: Mapping[str, Any] = run.error or {}
        steps = [
            {"step": step.name, "undone": step.compensated}
            for step in await self._work.steps(run.id)
            if step.undoable
        ]
        if run.status == Status.FAILED and error.get("code") == NOT_TAKEN_BACK:
            raise Abort(500, "SAGA_UNDO_FAILED", "the saga failed, and not all of it could be undone", steps)
        raise Abort(409, "SAGA_FAILED", "the saga failed, and what it had done was undone", steps)
