"""`auth.block_operation`: routes that stay mounted and answer 405 to everybody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from maniflex._names import did_you_mean
from maniflex.errors import Abort
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Seat
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import At, Middleware, Next
from maniflex.pipeline.response import Response

FIRST = -100  # rank: blocked means blocked for everybody, so nobody is asked for a credential before
_COLLECTION = {"GET": Operation.LIST, "HEAD": Operation.HEAD, "POST": Operation.CREATE}
_ITEM = {
    "DELETE": Operation.DELETE,
    "GET": Operation.READ,
    "HEAD": Operation.HEAD,
    "PATCH": Operation.UPDATE,
}
_SINGLETON = {"GET": Operation.READ, "HEAD": Operation.HEAD, "PATCH": Operation.UPDATE}
_BELOW = {
    "restore": {"POST": Operation.UPDATE},
    "export": {"GET": Operation.EXPORT, "HEAD": Operation.HEAD},
    "aggregate": {"GET": Operation.LIST, "HEAD": Operation.HEAD, "POST": Operation.LIST},
}


def block_operation(*operations: Operation | str) -> Entry:
    """Answer 405 to these operations for every caller; `Allow` and OPTIONS leave them out."""
    return OperationBlock(operations)


class OperationBlock(Entry):
    """Refuses operations of models and actions."""

    name = "auth.block_operation"
    homes: ClassVar = {"auth": ANYWHERE}
    guards_files = True

    def __init__(self, operations: Iterable[Any]) -> None:
        super().__init__()
        self._operations: frozenset[Operation] = frozenset()
        operation_names = {str(operation) for operation in Operation}
        names = [str(operation) for operation in operations]
        self.mistakes += [
            f"there is no operation {name!r}{did_you_mean(name, operation_names)}"
            for name in names
            if name not in operation_names
        ]
        if not names:
            self.mistakes.append("name the operations to block")
        if not self.mistakes:
            self._operations = frozenset(Operation(name) for name in names)

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        yield Piece("auth", self._refuser, rank=FIRST)
        yield Piece("response", self._editor, At.AFTER, operations=frozenset({Operation.OPTIONS}))

    def _refuser(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        # HEAD is of a list or of a record, which only the request tells.
        both = (covered(self._operations, operation, item=item) for item in (True, False))
        return self if any(both) else None

    def _editor(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if model is None else self._shorten_allow

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        is_refused = self._refuser(model, operation) is not None
        return EntryDocs(refusals={405: ["METHOD_BLOCKED"]}) if is_refused else None

    async def __call__(self, ctx: Context, next: Next) -> None:
        methods = _methods_of(ctx)
        if not self._is_blocked(ctx, ctx.operation):
            await next()
            return
        methods_left = [
            method for method, operation in methods.items() if not self._is_blocked(ctx, operation)
        ]
        model: ModelMeta | None = ctx.model
        allow = ", ".join(methods_left if model is None else sorted([*methods_left, "OPTIONS"]))
        raise Abort(405, "METHOD_BLOCKED", "this operation is blocked", headers={"allow": allow})

    async def _shorten_allow(self, ctx: Context, next: Next) -> None:
        await next()
        methods = _methods_of(ctx)
        response = ctx.response
        if isinstance(response, Response) and response.headers and "allow" in response.headers:
            all_methods = [m.strip() for m in response.headers["allow"].split(",")]
            methods_left = [
                m for m in all_methods if m not in methods or not self._is_blocked(ctx, methods[m])
            ]
            response.set_header("allow", ", ".join(methods_left))

    def _is_blocked(self, ctx: Context, operation: Operation) -> bool:
        model: ModelMeta | None = ctx.model
        is_one = bool(ctx.resource_id or (model is not None and model.options.singleton))
        return covered(self._operations, operation, item=is_one)


def _methods_of(ctx: Context) -> dict[str, Operation]:
    """The methods of the path that was asked for, and the operation each is."""
    model: ModelMeta | None = ctx.model
    last = ctx.scope["path"].rstrip("/").rpartition("/")[2]
    if model is None or (last != ctx.resource_id and last != model.table):
        return _BELOW.get(last, {})
    if last == ctx.resource_id:
        return _ITEM
    return _SINGLETON if model.options.singleton else _COLLECTION
