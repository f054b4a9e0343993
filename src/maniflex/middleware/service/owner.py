"""`service.owner_scope`: a new record belongs to its caller."""

from __future__ import annotations

from collections.abc import Iterable

from maniflex.errors import Abort
from maniflex.middleware.service.service_entry import ServiceEntry
from maniflex.middleware.validate.gates import forbidden_field
from maniflex.model.meta import Kind, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat, require_field
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next

_MISMATCHES = ("refuse", "overwrite")


def owner_scope(field: str, *, mismatch: str = "refuse") -> Entry:
    """Set a field of a new record to its caller; it stamps records and does not bind reads."""
    return OwnerEntry(field, mismatch)


class OwnerEntry(ServiceEntry):
    """Stamps the caller into new records, before the rules of the fields ask for the value."""

    name = "service.owner_scope"
    fills_new = True
    acts_for = frozenset({Operation.CREATE})

    def __init__(self, field: str, mismatch: str) -> None:
        super().__init__()
        self.fields, self.sets = (field,), field
        self._overwrites = mismatch == "overwrite"
        if mismatch not in _MISMATCHES:
            self.mistakes.append(f"mismatch={mismatch!r} is none of {', '.join(map(repr, _MISMATCHES))}")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("deserialize", self.make, At.AFTER, operations=frozenset({Operation.CREATE})),)

    def model_problems(self, model: ModelMeta) -> Iterable[str]:
        field = require_field(model, self.sets)
        if field.kind not in (Kind.TEXT, Kind.UUID):
            yield f"{field.name} cannot hold the id of a caller"

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        if operation is not Operation.CREATE:
            return None
        mismatch = {} if self._overwrites else {403: ["FIELD_FORBIDDEN"]}
        return EntryDocs(refusals={401: ["UNAUTHORIZED"], **mismatch})

    def of_model(self, model: ModelMeta, operation: Operation) -> Middleware | None:
        if operation is not Operation.CREATE:
            return None
        field = require_field(model, self.sets)

        async def stamp_owner(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None:
                auth = ctx.auth
                if auth is None or not auth.user_id:
                    headers = {"www-authenticate": "Bearer"}
                    raise Abort(401, "UNAUTHORIZED", "sign in first", headers=headers)
                client_value = body[field.api] if body.is_from_client(field.api) else None
                if client_value is not None and str(client_value) != auth.user_id and not self._overwrites:
                    raise forbidden_field(field)
                ctx.set_field(field.name, auth.user_id)
            await next()

        return stamp_owner
