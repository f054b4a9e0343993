"""Endpoints of the application's own: a method, a path and a handler, with a trimmed pipeline."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response as StarletteResponse

from maniflex.errors import InvalidQuery
from maniflex.pipeline.about import About
from maniflex.pipeline.chain import Composer, Handler, is_async
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import TRIMMED, Endpoint
from maniflex.pipeline.large_answers import collect
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware
from maniflex.pipeline.response import Response
from maniflex.query.parse import pairs

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
_SEGMENT = re.compile(r"\{[A-Za-z_]\w*\}|[^{}/]+")


@dataclass(frozen=True, slots=True)
class Action:
    """One custom endpoint; the texts are for its documentation."""

    method: str
    path: str
    handler: Callable[..., Any]
    request: Any = None
    response: Any = None
    middleware: Sequence[Middleware] = ()
    name: str = ""
    summary: str = ""
    tags: Sequence[str] = ()
    deprecated: bool = False
    description: str = ""
    query_params: Mapping[str, Any] = field(default_factory=dict)
    security: Sequence[Mapping[str, Sequence[str]]] | None = None
    schedulable: bool = False  # schedules that are made over REST may call it

    def problems(self) -> list[str]:
        """What is wrong with the declaration, if anything."""
        where = f"action {self.method} {self.path}"
        found = []
        if self.method not in METHODS:
            found.append(f"{where}: the method is none of {', '.join(METHODS)}")
        segments = self.path.split("/")[1:]
        if not self.path.startswith("/") or not all(_SEGMENT.fullmatch(s) for s in segments):
            found.append(f"{where}: a path is written like /orders/{{id}}/cancel")
        parameters = [s for s in segments if s.startswith("{")]
        if len(set(parameters)) != len(parameters):
            found.append(f"{where}: a path parameter is named twice")
        return found


def action_endpoint(action: Action, composer: Composer) -> Endpoint:
    """The action behind auth and its own middleware, in front of the response step."""
    inner = [(getattr(m, "__name__", type(m).__name__), m) for m in action.middleware]
    call = _Call(action)

    def respond(ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(204) if ctx._result is None else Response(200, ctx._result)

    def chain(*steps: str) -> Handler:
        return composer.steps(steps, {"action": call}, None, Operation.ACTION, item=False, inner=inner)

    return Endpoint(
        action.method,
        action.path,
        Operation.ACTION,
        None,
        chain(*TRIMMED, "action"),
        composer.steps(("response",), {"response": respond}, None, Operation.ACTION, item=False),
        f"action {action.name}",
        About(
            name=action.name,
            summary=action.summary,
            description=action.description,
            tags=action.tags,
            deprecated=action.deprecated,
            request=action.request,
            response=action.response,
            query=action.query_params,
            security=action.security,
        ),
        behind_auth=chain("action"),
    )


class _Call:
    """The handler as the last step of its chain."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._async = is_async(action.handler)
        self._query = {name: TypeAdapter(kind) for name, kind in action.query_params.items()}

    def _check_query(self, ctx: Context) -> None:
        """What is declared is also checked; parameters that are not are the handler's to read."""
        given = pairs(ctx.scope["query_string"]) if ctx.scope["query_string"] else ()
        for name, text in given:
            adapter = self._query.get(name)
            if adapter is None:
                continue
            try:
                adapter.validate_strings(text)
            except ValidationError as error:
                raise InvalidQuery(f"{name}: {error.errors(include_url=False)[0]['msg']}") from None

    async def __call__(self, ctx: Context) -> None:
        ctx.action = self._action
        if self._query:
            self._check_query(ctx)
        if self._action.request is not None:
            ctx._body = await ctx.bind_json(self._action.request)
        if self._async:
            result = await self._action.handler(ctx)
        else:
            result = await ctx.runtime.threads.run(self._action.handler, ctx)
        if isinstance(result, Response | StarletteResponse):
            ctx.response = result  # type: ignore[assignment]  # a Starlette response is sent as it is
        elif isinstance(result, AsyncIterable):
            ctx._result = await collect(result, ctx.runtime.config.limits.answer_size)
        else:
            ctx._result = result
