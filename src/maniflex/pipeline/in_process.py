"""Requests that the application makes of itself: no wire, the same pipeline.

The only home of how such a request looks: `server.execute`, `server.call`, the panel, `server.openapi` and
actions that schedules call get their `Context` here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypedDict, TypeVar
from urllib.parse import unquote, urlencode

from maniflex._caller import Caller, caller
from maniflex._json import text_trouble
from maniflex.db.current import transaction
from maniflex.db.port import Isolation, Tx
from maniflex.errors import (
    DeclarationError,
    Fatal,
    InvalidJson,
    MethodNotAllowed,
    NotFound,
    RawSqlRefused,
    RequestError,
)
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.access import DatabaseAccess, Unscoped
from maniflex.pipeline.answer import answer
from maniflex.pipeline.body import PATIENCE_KEY
from maniflex.pipeline.context import AsgiScope, AuthInfo, Context, Header
from maniflex.pipeline.exchange import IN_PROCESS, OBSERVED
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import JSON, Response, error_response
from maniflex.pipeline.routes import Endpoint, set_params
from maniflex.pipeline.rules.model_rules import ServerRules
from maniflex.pipeline.rules.scopes import TableRule
from maniflex.pipeline.runtime import Runtime
from maniflex.query.query import Forced, Narrowed

C = TypeVar("C", bound=Context)
QueryArgument = str | Mapping[str, Any] | Sequence[tuple[str, Any]]
BodyArgument = bytes | AsyncIterator[bytes]
FindRoute = Callable[[str, str], tuple[Any, str | Mapping[str, str]]]  # of `http.routing.Router`


class RequestOptions(TypedDict, total=False):
    """What a request may bring besides its method and path."""

    query: QueryArgument
    json: Any
    body: BodyArgument | None
    headers: Mapping[str, str] | None


_IN_PROCESS_ID = "in-process"  # such requests have no id of their own


def in_process_context(
    context: type[C],
    runtime: Runtime,
    operation: Operation,
    *,
    method: str,
    path: str,
    query: bytes = b"",
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: BodyArgument = b"",
    request_id: str = _IN_PROCESS_ID,
    client: tuple[str, int] | None = None,
) -> C:
    """The context of a request that is whole already, or whose body is made as it is read."""
    scope: AsgiScope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": headers,
        "client": client,
    }

    async def receive() -> dict[str, Any]:
        if isinstance(body, bytes):
            return {"type": "http.request", "body": body, "more_body": False}
        async for part in body:
            return {"type": "http.request", "body": part, "more_body": True}
        return {"type": "http.request", "body": b"", "more_body": False}

    ctx = context(runtime, scope, receive, operation, request_id)
    ctx.called_from = caller()
    return ctx


def part_context(
    ctx: Context, context: type[C], operation: Operation, about: Mapping[str, Any], body: bytes
) -> C:
    """The context of a part of a request, of the same caller on the same connection; `about` is its own."""
    scope = {**ctx.scope, **about}
    for key in (OBSERVED, PATIENCE_KEY):
        scope.pop(key, None)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    part = context(ctx.runtime, scope, receive, operation, ctx.request_id)
    part.traceparent, part.trace_id = ctx.traceparent, ctx.trace_id
    part.called_from, part.change_reason = ctx.called_from, ctx.change_reason
    if ctx.in_process:
        part.auth, part.authenticated, part.csrf_exempt = ctx.auth, ctx.authenticated, True
    return part


# What belongs to a request as a message, and says nothing of its caller.
_OF_MESSAGE = frozenset(
    {
        *(b"accept", b"connection", b"expect", b"idempotency-key", b"keep-alive", b"prefer", b"range", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade"),
        *(b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range"),
    }
)


def headers_of_caller(ctx: Context) -> list[Header]:
    """The headers of a request for its parts: without those about its body, its conditions and its key."""
    return [
        pair
        for pair in ctx.scope["headers"]
        if pair[0] not in _OF_MESSAGE and not pair[0].startswith(b"content-")
    ]


class InProcess:
    """Runs the operations of models, and requests to any route, through the whole pipeline."""

    def __init__(self, runtime: Runtime, endpoints: Sequence[Endpoint], find: FindRoute) -> None:
        self._runtime = runtime
        self._endpoints = endpoints
        self._find = find
        self._by_operation: dict[tuple[ModelMeta, Operation, bool], Endpoint] = {}  # as they are asked for

    async def execute(
        self,
        operation: Operation,
        model: type[Model] | str,
        id: str,
        *,
        body: Mapping[str, Any] | None,
        query: QueryArgument,
        headers: Mapping[str, str] | None,
        auth: AuthInfo | None,
    ) -> Response:
        """The answer of an operation on one record or, without an `id`, on the collection."""
        meta = self._runtime.store(model).meta
        endpoint = self._endpoint(meta, operation, on_one=bool(id))
        try:
            ctx = self._context(endpoint, meta.table, id, body=body, query=query, headers=headers)
        except UnicodeError:
            return error_response(InvalidJson("a text in the body is not valid Unicode"))
        if text_trouble(id):
            return error_response(NotFound())
        ctx.model, ctx.resource_id = meta, id
        return await self.answer(endpoint, ctx, auth)

    async def call(
        self,
        method: str,
        path: str,
        *,
        auth: AuthInfo | None,
        query: QueryArgument = "",
        json: Any = None,
        body: BodyArgument | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: str = _IN_PROCESS_ID,
        client: tuple[str, int] | None = None,
        scope: Mapping[str, Any] | None = None,
    ) -> Response:
        """The answer of the route with this method and path, which is written as a client would type it.

        `scope` says more about the request than a client could.
        """
        if json is not None and body is not None:
            raise ValueError("a request has a json or a body, not both")
        path, _, behind = path.partition("?")
        path, method = unquote(path), method.upper()
        try:
            endpoint, names, params = self.find(method, path)
        except RequestError as refusal:
            return error_response(refusal)
        try:
            if json is not None:
                body, headers = self._runtime.encode(json), {"content-type": JSON, **(headers or {})}
            ctx = in_process_context(
                endpoint.context,
                self._runtime,
                endpoint.operation,
                method=method,
                path=path,
                query=_query_bytes(query) or behind.encode("ascii"),
                headers=_header_pairs(headers),
                body=b"" if body is None else body,
                request_id=request_id,
                client=client,
            )
        except UnicodeError:
            return error_response(InvalidJson("a text in the request is not valid Unicode"))
        ctx.scope.update(scope or {})
        ctx.model = endpoint.model  # type: ignore[assignment]  # an action has none
        if params:
            set_params(ctx, endpoint, names, params)
        return await self.answer(endpoint, ctx, auth)

    def find(self, method: str, path: str) -> tuple[Endpoint, Sequence[str], str | Mapping[str, str]]:
        """The endpoint of a path that is decoded, with the names and values of its parameters; 404 or 405."""
        route, params = self._find(path, method)
        endpoint: Endpoint | None = None if route is None else route.methods.get(method)
        if endpoint is None or text_trouble(path):
            is_missing = route is None or endpoint is not None
            raise self._runtime.no_such_path(path) if is_missing else MethodNotAllowed()
        return endpoint, route.names[method], params

    async def answer_part(
        self, ctx: Context, method: str, path: str, query: bytes, headers: Sequence[Header], body: bytes
    ) -> tuple[Response, Context]:
        """The answer of a route to a part of a request, whose caller and connection it has.

        The authenticators of the route look at the headers as they would at those of a request of its own.
        """
        endpoint, names, params = self.find(method, path)
        about = {"method": method, "path": path, "query_string": query, "headers": headers}
        part = part_context(ctx, endpoint.context, endpoint.operation, about, body)
        part.model = endpoint.model  # type: ignore[assignment]  # an action has none
        if params:
            set_params(part, endpoint, names, params)
        return _as_ours(await answer(endpoint, part)), part

    async def answer(self, endpoint: Endpoint, ctx: Context, auth: AuthInfo | None) -> Response:
        """The answer of an endpoint to a request of the application itself."""
        ctx.scope[IN_PROCESS] = True  # the caller may be inside a request, whose end would be waited for
        ctx.auth = auth
        ctx.authenticated = auth is not None  # the application vouches for it; no header is looked at
        ctx.csrf_exempt = True  # no browser sent it
        return _as_ours(await answer(endpoint, ctx, self._runtime.watch))

    def _endpoint(self, meta: ModelMeta, operation: Operation, *, on_one: bool) -> Endpoint:
        key = (meta, operation, on_one)
        endpoint = self._by_operation.get(key)
        if endpoint is None:
            endpoint = self._by_operation[key] = self._find_endpoint(*key)
        return endpoint

    def _find_endpoint(self, meta: ModelMeta, operation: Operation, on_one: bool) -> Endpoint:
        for e in self._endpoints:
            if e.model is meta and e.operation is operation and _is_on_one(e) == on_one:
                return e
        where = "one record" if on_one else "the collection"
        raise DeclarationError(f"{meta.name} has no {operation} operation on {where}")

    def _context(
        self,
        endpoint: Endpoint,
        table: str,
        id: str,
        *,
        body: Mapping[str, Any] | None,
        query: QueryArgument,
        headers: Mapping[str, str] | None,
    ) -> Context:
        return in_process_context(
            Context,
            self._runtime,
            endpoint.operation,
            method=endpoint.method,
            path=f"/{table}/{id}" if id else f"/{table}",
            query=_query_bytes(query),
            headers=_header_pairs(headers),
            body=b"" if body is None else self._runtime.encode(body),
        )


def _is_on_one(endpoint: Endpoint) -> bool:
    """Whether a record's id is all that the path of the endpoint takes."""
    if endpoint.operation is Operation.READ_HISTORY:  # of a record, or of all of them
        return endpoint.path.endswith("{id}/history")
    return endpoint.path.endswith("}")


def _as_ours(response: Any) -> Response:
    """An answer of Starlette, which applications may give, as one of ours."""
    if isinstance(response, Response):
        return response
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    kind = headers.pop("content-type", "application/octet-stream")
    stream = getattr(response, "body_iterator", None)
    return Response(
        response.status_code,
        headers=headers,
        content_type=kind,
        body=None if stream is not None else bytes(response.body),
        stream=stream,
    )


def _query_bytes(query: QueryArgument) -> bytes:
    # What is no Unicode goes on as it is, to be refused like the same bytes of a client.
    raw = query if isinstance(query, str) else urlencode(query, doseq=True, errors="surrogatepass")
    return _bytes(raw) if raw else b""


def _header_pairs(headers: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
    return [(_bytes(name.lower()), _bytes(value)) for name, value in (headers or {}).items()]


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


# Code outside requests, bound by the scope rules to one identity: `server.scoped`, and scoped handlers.
#
# Inside such a block `server.db` is bound too: it finds the block by context.


class Scoped(DatabaseAccess):
    """The database inside the scope of one identity; an open transaction is joined."""

    def __init__(self, runtime: Runtime, auth: AuthInfo, *, is_run: bool = False) -> None:
        self.runtime = runtime
        self.auth = auth
        # What rules ask is a context; there is no request in this one.
        self._ctx = in_process_context(Context, runtime, Operation.ACTION, method="", path="")
        self._ctx.auth = auth
        self._is_run = is_run

    @property
    def rules(self) -> ServerRules | None:
        rules = self.runtime.rules
        return rules if rules.scoped_models else None

    async def _conditions_by(self, rule: TableRule) -> Sequence[Forced | Narrowed]:
        try:
            return await rule.rule.conditions(self._ctx)
        except RequestError as error:
            if self._is_run:  # another attempt would know no more of its caller
                raise Fatal(f"a scope rule cannot be applied to this run: {error}") from error
            raise

    def require_raw_sql(self) -> None:
        if self.rules is not None:
            refusal = RawSqlRefused()
            raise Fatal(str(refusal)) if self._is_run else refusal

    def transaction(
        self,
        isolation: Isolation | str | None = None,
        *,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction on the default database, or on that of the model `on`; or join the open one."""
        return transaction(self.adapter_on(on), isolation=isolation, read_only=read_only)

    def unscoped(self) -> Unscoped:
        """The database without rules: the explicit way around them."""
        return Unscoped(self)


_block: ContextVar[Scoped | None] = ContextVar("maniflex_scoped", default=None)


def current_scope(runtime: Runtime) -> Scoped | None:
    """The block that code of this server is in, if it is in one."""
    scoped = _block.get()
    return scoped if scoped is not None and scoped.runtime is runtime else None


@contextmanager
def scoped_code(scoped: Scoped) -> Iterator[Scoped]:
    """Bind the code of the block."""
    token = _block.set(scoped)
    try:
        yield scoped
    finally:
        _block.reset(token)


def bind_run(runtime: Runtime, caller: Caller) -> AbstractContextManager[Scoped]:
    """Bind the handler of a run or a message by the caller on whose behalf that was submitted."""
    auth = AuthInfo(caller.actor_id or "", tenant_id=caller.tenant_id or "", auth_method="run")
    return scoped_code(Scoped(runtime, auth, is_run=True))
