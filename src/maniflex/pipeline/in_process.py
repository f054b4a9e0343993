"""Requests that the application makes of itself: no wire, the same pipeline.

The only home of how such a request looks: `server.execute`, `server.openapi` and actions that schedules
call get their `Context` here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from maniflex._caller import caller
from maniflex.errors import DeclarationError, InvalidJson, NotFound
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.value_rules import text_trouble
from maniflex.pipeline.answer import answer
from maniflex.pipeline.context import AsgiScope, AuthInfo, Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.read_body import IN_PROCESS
from maniflex.pipeline.response import Response, error_response
from maniflex.pipeline.runtime import Runtime

C = TypeVar("C", bound=Context)
QueryArgument = str | Mapping[str, Any] | Sequence[tuple[str, Any]]
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
    body: bytes = b"",
    request_id: str = _IN_PROCESS_ID,
) -> C:
    """The context of a request that is whole already."""
    scope: AsgiScope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": headers,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    ctx = context(runtime, scope, receive, operation, request_id)
    ctx.called_from = caller()
    return ctx


class InProcess:
    """Runs the operations of models through the whole pipeline."""

    def __init__(self, runtime: Runtime, endpoints: Sequence[Endpoint]) -> None:
        self._runtime = runtime
        self._endpoints = endpoints
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
        ctx.model, ctx.resource_id, ctx.auth = meta, id, auth
        ctx.authenticated = auth is not None  # the application vouches for it; no header is looked at
        ctx.csrf_exempt = True  # no browser sent it
        response: Response = await answer(endpoint, ctx, self._runtime.watch)
        return response

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
        # What is no Unicode goes on as it is, to be refused like the same bytes of a client.
        raw = query if isinstance(query, str) else urlencode(query, doseq=True, errors="surrogatepass")
        ctx = in_process_context(
            Context,
            self._runtime,
            endpoint.operation,
            method=endpoint.method,
            path=f"/{table}/{id}" if id else f"/{table}",
            query=_bytes(raw) if raw else b"",
            headers=[(_bytes(name.lower()), _bytes(value)) for name, value in (headers or {}).items()],
            body=b"" if body is None else self._runtime.encode(body),
        )
        ctx.scope[IN_PROCESS] = True  # the caller may be inside a request, whose end would be waited for
        return ctx


def _is_on_one(endpoint: Endpoint) -> bool:
    """Whether a record's id is all that the path of the endpoint takes."""
    if endpoint.operation is Operation.READ_HISTORY:  # of a record, or of all of them
        return endpoint.path.endswith("{id}/history")
    return endpoint.path.endswith("}")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
