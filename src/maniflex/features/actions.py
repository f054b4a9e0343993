"""Endpoints of the application's own: a method, a path and a handler, with a trimmed pipeline."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from starlette.responses import Response as StarletteResponse

from maniflex._callables import is_async, label_of
from maniflex.errors import InvalidQuery
from maniflex.pipeline.binding import binder
from maniflex.pipeline.chain import AnswersEarly, Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import AuthEntry, Entry, action_problems
from maniflex.pipeline.large_answers import collect
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, is_exemption, takes
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.rules.redactions import has_records_to_redact, redact_answer
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
    errors: Sequence[int] = ()  # statuses that the handler refuses with
    status: int | None = None  # of what the handler returns; None: 200, and 204 for nothing
    responses: Mapping[int, Any] = field(default_factory=dict)  # other answers: type of the data, or None
    request_body: Mapping[str, Any] | None = None  # of OpenAPI, for a body that the handler reads itself

    @property
    def successes(self) -> frozenset[int]:
        """The statuses of its successes; empty where it declares none."""
        if self.status is None and not self.responses:
            return frozenset()
        usual = (200, 204) if self.response is None and 200 not in self.responses else (200,)
        own = usual if self.status is None else (self.status,)
        return frozenset({*own, *(status for status in self.responses if status < 400)})

    def problems(self) -> list[str]:
        """The problems of the route, its handler and its middleware."""
        where = f"action {self.method} {self.path}"
        return [*self._route_problems(where), *self._code_problems(where), *self._answer_problems(where)]

    def is_mountable(self) -> bool:
        """Whether a route can be made of it, to see whether another has its path."""
        return not (self._route_problems("") or [*self._answer_problems("")] or self.type_problems())

    def _route_problems(self, where: str) -> list[str]:
        problems = []
        if self.method not in METHODS:
            problems.append(f"{where}: the method is none of {', '.join(METHODS)}")
        segments = self.path.split("/")[1:]
        if not self.path.startswith("/") or not all(_SEGMENT.fullmatch(s) for s in segments):
            problems.append(f"{where}: a path is written like /orders/{{id}}/cancel")
        parameters = [s for s in segments if s.startswith("{")]
        if len(set(parameters)) != len(parameters):
            problems.append(f"{where}: a path parameter is named twice")
        return problems

    def _answer_problems(self, where: str) -> Iterator[str]:
        status: Any = self.status
        if status is not None and not (type(status) is int and 200 <= status <= 299):
            yield f"{where}: status={status!r} is no status of a success, 200 to 299"
        if status == 204 and self.response is not None:
            yield f"{where}: status=204 has no body, so response= means nothing"
        for error in self.errors:
            if type(error) is not int or not 400 <= error <= 599:
                yield f"{where}: errors: {error!r} is no status of a refusal, 400 to 599"
        for code, kind in self.responses.items():
            if type(code) is not int or not 200 <= code <= 599:
                yield f"{where}: responses: {code!r} is no status, 200 to 599"
            elif code == status:
                yield f"{where}: responses: {code} is status= already; its type is response="
            elif kind is not None and (code >= 400 or code == 204):
                what = "has no body" if code == 204 else "is answered with an error envelope"
                yield f"{where}: responses: {code} {what}; write {code}: None"
        if self.request_body is not None:
            if self.request is not None:
                yield f"{where}: request_body= is for a body that the handler reads itself, without request="
            if "content" not in self.request_body:
                yield f'{where}: request_body= is a request body of OpenAPI: {{"content": {{"text/csv": …}}}}'

    def _code_problems(self, where: str) -> Iterator[str]:
        if not takes(self.handler, 1):
            yield f"{where}: the handler is called with (ctx), which it does not take"
        middleware: Sequence[Any] = self.middleware  # its type is only a promise until here
        for fn in middleware:
            if not callable(fn):
                yield f"{where}: middleware: {fn!r} is not callable"
            elif not takes(fn, 2):
                name = label_of(fn)
                yield f"{where}: {name}: middleware is called with (ctx, next), which it does not take"
            elif isinstance(fn, Entry):
                yield from (f"{where}: {problem}" for problem in action_problems(fn))

    def type_problems(self) -> list[str]:
        """The types of which pydantic can make nothing, so that every request would fail."""
        kinds = {f"query_params[{name!r}]": kind for name, kind in self.query_params.items()}
        kinds |= {"request": self.request, "response": self.response}
        kinds |= {f"responses[{status!r}]": kind for status, kind in self.responses.items()}
        return [
            f"action {self.method} {self.path} ({self.name}): {name}={_type_name(kind)}: {problem}"
            for name, kind in kinds.items()
            if kind is not None
            and (problem := _schema_problem(binder if name == "request" else _adapter, kind)) is not None
        ]


def _adapter(kind: Any) -> Any:
    return TypeAdapter(kind).rebuild(raise_errors=True)  # at once, not when it is first used


def _schema_problem(build: Callable[[Any], Any], kind: Any) -> str | None:
    try:
        build(kind)
    except (PydanticUndefinedAnnotation, NameError) as error:
        return f"there is no {error.name!r}; give the type itself, not its name in quotes"
    except Exception as error:  # a type may raise anything when pydantic asks for its schema
        first = str(error).partition("\n")[0].partition(". Set `arbitrary_types_allowed")[0]
        use = "use a dataclass, a pydantic model, a model or another type that pydantic knows"
        return f"pydantic can build no schema for it ({first}); {use}"
    return None


def _type_name(kind: Any) -> str:
    return kind.__qualname__ if type(kind) is type else repr(kind)


def action_endpoint(routes: RouteBuilder, action: Action) -> Endpoint:
    """The action behind auth and its own middleware, in front of the response step."""
    named_middleware: list[tuple[str, Any]] = [(label_of(m), _of_action(m)) for m in action.middleware]
    outer = [(label, m) for label, m in named_middleware if is_exemption(m)]
    # On the response step, so that a refusal of the auth step passes it too.
    answering = [
        (label, m) for label, m in named_middleware if isinstance(m, Entry) and "response" in m.homes
    ]
    inner = [pair for pair in named_middleware if pair not in outer and pair not in answering]
    enclosing = [m for _, m in inner if isinstance(m, AnswersEarly)]
    defaults: dict[str, Default] = {"action": _ActionCall(action, enclosing)}
    endpoint = routes.endpoint(
        action.method,
        action.path,
        Operation.ACTION,
        steps=(*TRIMMED, "action"),
        defaults=defaults,
        inner=inner,
        outer=outer,
        answering=answering,
        respond=_DeclaredAnswer(action) if action.successes else _answer_action,
        owner=f"action {action.name}",
        about=_about(action),
    )
    compose = routes.composer.steps
    # Of the same middleware, which has the response step of the endpoint by now.
    behind_auth = compose(("action",), defaults, None, Operation.ACTION, item=False, inner=inner, outer=outer)
    has_no_auth_step = any(isinstance(m, AuthEntry) and m.replaces_auth_step for m in action.middleware)
    return replace(endpoint, main=behind_auth if has_no_auth_step else endpoint.main, behind_auth=behind_auth)


def _about(action: Action) -> RouteDocs:
    return RouteDocs(
        name=action.name,
        summary=action.summary,
        description=action.description,
        tags=action.tags,
        deprecated=action.deprecated,
        request=action.request,
        response=action.response,
        query=action.query_params,
        security=action.security,
        errors=[*action.errors, *(status for status in action.responses if status >= 400)],
        status=action.status or 200,
        is_status_declared=action.status is not None or 200 in action.responses,
        more_answers={status: kind for status, kind in action.responses.items() if status < 400},
        request_body=action.request_body,
    )


def _answer_action(ctx: Context) -> Awaitable[None] | None:
    if ctx.response is None:
        ctx.response = Response(204) if ctx._result is None else Response(200, ctx._result)
    return redact_answer(ctx, ctx.response) if has_records_to_redact(ctx, ctx.response) else None


class _DeclaredAnswer:
    """The answer of an action that says which statuses it has; another success is told in the log, once."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._successes = action.successes
        self._told: set[int] = set()

    def __call__(self, ctx: Context) -> Awaitable[None] | None:
        status = self._action.status
        if ctx.response is None and status is not None:
            has_body = status != 204 and not (ctx._result is None and self._action.response is None)
            ctx.response = Response(status, ctx._result) if has_body else Response(status, body=b"")
        outcome = _answer_action(ctx)
        answered_status = status_of(ctx.response)
        if (
            answered_status < 400
            and answered_status not in self._successes
            and answered_status not in self._told
        ):
            self._told.add(answered_status)
            ctx.logger.warning(
                "action %s %s answered %s, which its status= and responses= do not declare",
                *(self._action.method, self._action.path, answered_status),
            )
        return outcome


def _of_action(middleware: Middleware) -> Middleware:
    """The middleware as it stands in an action, which has no model."""
    if not isinstance(middleware, Entry):
        return middleware
    return middleware.make(None, Operation.ACTION) or middleware


_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")


class _ActionCall:
    """The handler as the last step of its chain."""

    def __init__(self, action: Action, enclosing: Sequence[AnswersEarly] = ()) -> None:
        self._action = action
        self._enclosing = tuple(reversed(enclosing))
        self._async = is_async(action.handler)
        self._query = {name: TypeAdapter(kind) for name, kind in action.query_params.items()}

    def _check_query(self, ctx: Context) -> None:
        """Validate the declared query parameters; the handler reads the others itself."""
        parameters = pairs(ctx.scope["query_string"]) if ctx.scope["query_string"] else ()
        for name, text in parameters:
            adapter = self._query.get(name)
            if adapter is None:
                continue
            try:
                value = adapter.validate_strings(text)
            except ValidationError as error:
                raise InvalidQuery(f"{name}: {error.errors(include_url=False)[0]['msg']}") from None
            # pydantic takes "1.0" for a whole number, and the handler reads the text.
            if type(value) is int and not _WHOLE_NUMBER.fullmatch(text):
                raise InvalidQuery(f"{name}: must be a whole number")

    async def __call__(self, ctx: Context) -> None:
        ctx.action = self._action
        if self._query:
            self._check_query(ctx)
        if self._action.request is not None:
            ctx._body = await ctx.bind_json(self._action.request)
        call = partial(self._call_handler, ctx)
        for middleware in self._enclosing:
            call = partial(middleware.enclose, ctx, call)
        await call()

    async def _call_handler(self, ctx: Context) -> None:
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
