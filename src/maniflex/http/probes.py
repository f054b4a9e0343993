"""`/health`, `/live` and `/ready`: what an orchestrator asks. None of them repeats what a driver said."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from maniflex._callables import is_async
from maniflex._fence import Fence
from maniflex.db.current import detached_context
from maniflex.db.port import Adapter
from maniflex.pipeline.answer import require_token
from maniflex.pipeline.chain import Handler
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder, RouteDocs

_STATUS = {
    "type": "object",
    "required": ["status"],
    "properties": {
        **{name: {"type": "string"} for name in ("status", "database", "work", "schema")},
        "checks": {"type": "object", "additionalProperties": {"type": "string"}},
    },
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
            "The process takes requests, its databases answer and its checks pass.",
            "The process starts or stops, a database does not answer or lacks a migration, a check fails, or"
            " its work makes no progress.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Health:
    """How the process is: whether it takes requests, and which of its work stands still or has ended."""

    accepting: Callable[[], bool]
    stalled: Callable[[], Sequence[str]] = tuple
    dead: Callable[[], Sequence[str]] = tuple
    checks: Mapping[str, Check] = field(default_factory=dict)  # of `server.readiness`
    missing_migration: Callable[[], Awaitable[str]] | None = None  # what to do about it, or nothing


class Probes:
    """The three probe endpoints of a server."""

    def __init__(self, routes: RouteBuilder, adapters: Sequence[Adapter], health: Health) -> None:
        self._routes = routes
        self._runtime = routes.runtime
        self._adapters = adapters
        self._of = health
        within, logger = self._runtime.config.health_timeout.total_seconds(), self._runtime.logger
        databases = {adapter.label: adapter.ping for adapter in adapters}
        self._databases = ReadinessChecks(databases, within, logger, "health check of")
        self._checks = ReadinessChecks(health.checks, within, logger)

    def endpoints(self) -> Iterator[Endpoint]:
        config, probes = self._runtime.config, (self._health, self._live, self._ready)
        for path, main in zip(("/health", "/live", "/ready"), probes, strict=True):
            if path[1:] not in config.probes:
                continue
            about = _ABOUT[path] if config.probes_token is None else replace(_ABOUT[path], errors=(401,))
            handler = main if config.probes_token is None else _with_token(main, config.probes_token)
            for method in ("GET", "HEAD"):
                yield self._routes.bare(method, path, handler, owner="probe", about=about, mount=Mount.PROBE)

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
            ctx.response = await self._check_schema() or await self._check_all()

    async def _check_schema(self) -> Response | None:
        """A refusal while the models are ahead of a database that migrations keep."""
        advice = "" if self._of.missing_migration is None else await self._of.missing_migration()
        if not advice:
            return None
        self._runtime.logger.warning("not ready: %s", advice)
        return Response(503, body=msgspec.json.encode({"status": "unavailable", "schema": advice}))

    async def _check_all(self) -> Response:
        """The databases and the checks of the application, side by side."""
        if not self._of.checks:
            return await self._check_databases()
        databases, checks = await asyncio.gather(self._databases.run(), self._checks.run())
        is_ready = all(databases.values()) and all(checks.values())
        body: dict[str, Any] = {"status": _WORDS[is_ready], "database": _WORDS[all(databases.values())]}
        if self._runtime.config.publish_readiness_checks:
            body["checks"] = {name: _WORDS[passes] for name, passes in checks.items()}
        return Response(200 if is_ready else 503, body=msgspec.json.encode(body))

    async def _check_databases(self) -> Response:
        if all((await self._databases.run()).values()):
            return Response(200, body=b'{"status":"ok","database":"ok"}')
        return Response(503, body=b'{"status":"unavailable","database":"unavailable"}')


_WORDS = {True: "ok", False: "unavailable"}


def _with_token(main: Handler, token: str) -> Handler:
    async def require_token_first(ctx: Context) -> None:
        require_token(ctx, token)
        await main(ctx)

    return require_token_first


# The checks of `/ready`: the databases and those of `server.readiness`, all at once and within one time.
#
# Probes that come while checks run share that run. A check that does not end in time has failed; it is
# not begun again before it has ended, so that a service which hangs does not pile up calls.


Check = Callable[[], Any]


class ReadinessChecks:
    """Named checks, and the run of them that probes share."""

    def __init__(
        self,
        checks: Mapping[str, Check],
        within: float,
        logger: logging.Logger,
        what: str = "readiness check",
    ) -> None:
        self._checks = checks
        self._within = within
        self._logger = logger
        self._what = what
        self._shared: asyncio.Task[dict[str, bool]] | None = None
        self._going_on: dict[str, asyncio.Task[bool]] = {}
        self._in_threads: set[str] = set()

    async def run(self) -> dict[str, bool]:
        """Which of them passed."""
        if self._shared is None or self._shared.done():
            self._shared = asyncio.create_task(self._run(), context=detached_context())
        return await asyncio.shield(self._shared)

    async def _run(self) -> dict[str, bool]:
        tasks = {name: self._begin(name, check) for name, check in self._checks.items()}
        tasks_begun = [task for task in tasks.values() if task is not None]
        if tasks_begun:
            await asyncio.wait(tasks_begun, timeout=self._within)
        return {name: self._outcome(name, task) for name, task in tasks.items()}

    def _begin(self, name: str, check: Check) -> asyncio.Task[bool] | None:
        before = self._going_on.get(name)
        if before is not None and not before.done():
            return None
        self._going_on[name] = asyncio.create_task(self._passes(name, check))
        return self._going_on[name]

    async def _passes(self, name: str, check: Check) -> bool:
        fence = Fence()
        try:
            outcome = await check() if is_async(check) else await self._call_in_thread(name, check)
            if inspect.isawaitable(outcome):  # of a plain function that calls an async one
                outcome = await outcome
        except BaseException as error:
            fence.absorb(error)
            self._logger.warning("%s %s failed: %r", self._what, name, error)
            return False
        if outcome is False:
            self._logger.warning("%s %s failed", self._what, name)
        return outcome is not False

    async def _call_in_thread(self, name: str, check: Check) -> Any:
        self._in_threads.add(name)
        try:
            return await asyncio.to_thread(check)
        finally:
            self._in_threads.discard(name)

    def _outcome(self, name: str, task: asyncio.Task[bool] | None) -> bool:
        if task is not None and task.done() and not task.cancelled():
            return task.result()
        self._logger.warning("%s %s did not end within %g s", self._what, name, self._within)
        if task is not None and name not in self._in_threads:  # a thread cannot be stopped, and is waited for
            task.cancel()
        return False
