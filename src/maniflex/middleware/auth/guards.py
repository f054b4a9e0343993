"""Guards: who may pass, once it is known who is asking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from maniflex.errors import Abort
from maniflex.middleware.auth.authenticator import unknown_caller
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.admission import Admission
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, Seat
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation


def require_role(*roles: str) -> Entry:
    """Let callers pass that have one of the roles: 401 for an anonymous caller, else 403."""
    return RoleGuard(roles)


def require_auth() -> Entry:
    """Let every known caller pass: 401 for an anonymous one."""
    return IdentityGuard()


def require_scope(*scopes: str) -> Entry:
    """Let callers pass that have all of the scopes: 401 for an anonymous caller, else 403."""
    return ScopeGuard(scopes)


class CallerGuard(Admission, Entry):
    """An entry that refuses some callers."""

    homes: ClassVar = {"auth": ANYWHERE}
    guards_files = True
    in_actions = True
    in_description = True
    judges_caller = True

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={401: ["UNAUTHORIZED"], 403: ["FORBIDDEN"]})

    def _read_names(self, kind: str, names: Iterable[object]) -> frozenset[str]:
        """The names as plain texts, also where they are members of an enumeration of texts."""
        texts = [str.__str__(name) if isinstance(name, str) else "" for name in names]
        if not all(texts):
            self.mistakes.append(f"{kind} are texts that are not empty")
        return frozenset(texts)


class RoleGuard(CallerGuard):
    """Asks for one of several roles."""

    name = "auth.require_role"

    def __init__(self, roles: tuple[str, ...]) -> None:
        super().__init__()
        self._roles = self._read_names("roles", roles)

    @property
    def terms(self) -> str:
        return ", ".join(sorted(self._roles))

    def warnings(self, seat: Seat) -> Iterable[str]:
        if not self._roles:
            yield "no role is named, so nobody passes"

    def admit(self, ctx: Context) -> None:
        auth = ctx.auth
        if auth is None or self._roles.isdisjoint(auth.roles):
            if auth is None or not auth.user_id:
                raise unknown_caller(ctx)
            raise Abort(403, "FORBIDDEN", "you may not do this")


class IdentityGuard(CallerGuard):
    """Asks for any identity."""

    name = "auth.require_auth"

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={401: ["UNAUTHORIZED"]})

    def admit(self, ctx: Context) -> None:
        if ctx.auth is None or not ctx.auth.user_id:
            raise unknown_caller(ctx)


class ScopeGuard(CallerGuard):
    """Asks for all of several scopes."""

    name = "auth.require_scope"

    def __init__(self, scopes: tuple[str, ...]) -> None:
        super().__init__()
        self._scopes = self._read_names("scopes", scopes)
        if not scopes:
            self.mistakes.append("name the scopes that are needed")
        if any(not scope.isascii() or set(scope) & set(' "\\') for scope in self._scopes):
            self.mistakes.append("a scope has neither spaces nor quotes")
        scope_text = " ".join(sorted(self._scopes))
        self._headers = {"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope_text}"'}

    @property
    def terms(self) -> str:
        return ", ".join(sorted(self._scopes))

    def admit(self, ctx: Context) -> None:
        auth = ctx.auth
        if auth is None or not self._scopes.issubset(auth.scopes):
            if auth is None or not auth.user_id:
                raise unknown_caller(ctx)
            raise Abort(403, "FORBIDDEN", "a scope is missing", headers=self._headers)
