"""`/health`, `/live` and `/ready`: what an orchestrator asks. None of them repeats what a driver said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from maniflex.db.port import Adapter
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.response import Response
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.routes import RouteBuilder

_STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {name: {"type": "string"} for name in ("status", "database", "work")},
}
_ABOUT = {
    path: RouteDocs(
        summary=summary,
        description=text,
        tags=("Health",),
        answers={200: _STATUS, 503: _STATUS},
        answer_texts={200: yes, 503: no},
        security=(),
    )
    for path, summary, text, yes, no in (
        (
            "/health",
            "Health check",
            "Whether the process answers and, with `health_check_db`, its databases do.",
            "All that was asked answers.",
            "A database does not answer.",
        ),
        (
            "/live",
            "Liveness check: the process runs",
            "Whether the process runs; one that does not has to be started anew.",
            "The process runs.",
            "A part of its work has ended for good.",
        ),
        (
            "/ready",
            "Readiness check: it takes requests",
            "Whether requests should be sent to this process.",
            "The process takes requests and its databases answer.",
            "The process starts or stops, a database does not answer, or its work makes no progress.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Health:
    """How the process is: whether it takes requests, and which of its work stands still or has ended."""

    accepting: Callable[[], bool]
    stalled: Callable[[], Sequence[str]] = tuple
    dead: Callable[[], Sequence[str]] = tuple


class Probes:
    """The three probe endpoints of a server."""

    def __init__(self, routes: RouteBuilder, adapters: Sequence[Adapter], health: Health) -> None:
        self._routes = routes
        self._runtime = routes.runtime
        self._adapters = adapters
        self._of = health

    def endpoints(self) -> Iterator[Endpoint]:
        for path, main in (("/health", self._health), ("/live", self._live), ("/ready", self._ready)):
            for method in ("GET", "HEAD"):
                yield self._routes.bare(
                    method, path, main, owner="probe", about=_ABOUT[path], mount=Mount.PROBE
                )

    async def _live(self, ctx: Context) -> None:
        if dead_parts := self._of.dead():  # what an outage of the database never does
            self._runtime.logger.error("not alive: %s has ended", ", ".join(dead_parts))
            ctx.response = Response(503, body=b'{"status":"unavailable","work":"unavailable"}')
        else:
            ctx.response = Response(200, body=b'{"status":"ok"}')

    async def _health(self, ctx: Context) -> None:
        if not self._runtime.config.health_check_db:
            ctx.response = Response(200, body=b'{"status":"ok"}')
        else:
            ctx.response = await self._check_databases()

    async def _ready(self, ctx: Context) -> None:
        if not self._of.accepting():  # starting or stopping: say so without asking the databases
            ctx.response = Response(503, body=b'{"status":"unavailable"}')
        elif self._runtime.config.ready_needs_work and (still := self._of.stalled()):
            self._runtime.logger.warning("not ready: %s makes no progress", ", ".join(still))
            ctx.response = Response(503, body=b'{"status":"unavailable","work":"unavailable"}')
        else:
            ctx.response = await self._check_databases()

    async def _check_databases(self) -> Response:
        answers = await asyncio.gather(*(self._answers(adapter) for adapter in self._adapters))
        if all(answers):
            return Response(200, body=b'{"status":"ok","database":"ok"}')
        return Response(503, body=b'{"status":"unavailable","database":"unavailable"}')

    async def _answers(self, adapter: Adapter) -> bool:
        try:
            async with asyncio.timeout(self._runtime.config.health_timeout.total_seconds()):
                await adapter.ping()
        except Exception as error:
            self._runtime.logger.warning("health check of %s failed: %r", adapter.label, error)
            return False
        return True
