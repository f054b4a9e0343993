"""Gates: who may write a field. They answer before any rule for values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from maniflex.errors import Abort
from maniflex.middleware.arguments import is_function, is_text
from maniflex.middleware.validate.rule_entry import BODIES
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Piece, Seat, ask, require_field
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At, Middleware, Next

_FIRST = -10  # before other middleware of the step


def restrict_field(field: str, allowed: Callable[[Context], Any]) -> Entry:
    """Let those callers set a field for whom `allowed(ctx)` is true: 403 for others."""
    return FieldGate(field, allowed)


def field_role(field: str, *roles: str) -> Entry:
    """Let callers set a field that have one of the roles: 403 for others, and without roles for all."""
    return RoleGate(field, roles)


def forbidden_field(field: FieldMeta) -> Abort:
    """The refusal of a write that sets a field it may not set."""
    message = f'you may not set "{field.api}"'
    return Abort(403, "FIELD_FORBIDDEN", message, [{"field": field.api, "message": message}])


class FieldGate(Entry):
    """Asks a function of the application whether the caller may set a field."""

    name = "validate.restrict_field"
    homes: ClassVar = {"validate": (At.BEFORE,)}
    acts_for = BODIES

    def __init__(self, field: str, allowed: Callable[[Context], Any]) -> None:
        super().__init__()
        self.fields = (field,)
        self._allowed = allowed
        if not is_function(allowed, 1):
            self.mistakes.append("allowed is a function of (ctx)")

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece("validate", self.make, At.BEFORE, _FIRST),)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return EntryDocs(refusals={403: ["FIELD_FORBIDDEN"]}) if operation in BODIES else None

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in BODIES:
            return None
        field = require_field(model, self.fields[0])
        is_allowed = self._allowed

        async def guard_field(ctx: Context, next: Next) -> None:
            body = ctx._body
            if body is not None and body.is_from_client(field.api) and not await ask(ctx, is_allowed, ctx):
                raise forbidden_field(field)
            await next()

        return guard_field


class RoleGate(FieldGate):
    """Asks for a role of the caller."""

    name = "validate.field_role"

    def __init__(self, field: str, roles: tuple[str, ...]) -> None:
        names = frozenset(map(str, roles))
        super().__init__(field, lambda ctx: ctx.auth is not None and not names.isdisjoint(ctx.auth.roles))
        if not all(map(is_text, roles)):
            self.mistakes.append("roles are texts that are not empty")
        self._has_roles = bool(roles)
        self._terms = f"{field}: {', '.join(sorted(names))}"

    @property
    def terms(self) -> str:
        return self._terms

    def warnings(self, seat: Seat) -> Iterable[str]:
        if not self._has_roles:
            yield f"no role is named, so nobody may set {self.fields[0]}"
