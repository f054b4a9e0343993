"""Guards: who may pass, once it is known who is asking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from maniflex._names import did_you_mean
from maniflex.errors import Abort, RequestError
from maniflex.middleware.arguments import is_function
from maniflex.middleware.auth.authenticator import unknown_caller
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    GUARDS_ANYTHING,
    AuthEntry,
    Entry,
    EntryDocs,
    Piece,
    Seat,
    describe_nothing,
)
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import (
    FILES,
    Admission,
    At,
    AuthPart,
    Middleware,
    Next,
    Registration,
    ask,
    demands_identity,
    part_of,
)
from maniflex.pipeline.response import Response
from maniflex.pipeline.rules.policies import Policy, PolicyEntry, Where
from maniflex.pipeline.rules.scopes import ScopeRule


def require_role(*roles: str) -> Entry:
    """Let callers pass that have one of the roles: 401 for an anonymous caller, else 403."""
    return RoleGuard(roles)


def require_auth() -> Entry:
    """Let every known caller pass: 401 for an anonymous one."""
    return IdentityGuard()


def require_scope(*scopes: str) -> Entry:
    """Let callers pass that have all of the scopes: 401 for an anonymous caller, else 403."""
    return ScopeGuard(scopes)


class CallerGuard(Admission, AuthEntry):
    """An entry that refuses some callers."""

    homes: ClassVar = GUARDS_ANYTHING
    part = AuthPart.GUARD

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


# Ownership: callers touch the rows that name them.

# All but the ways to see many rows at once.
_ON_ONE = frozenset({Operation.READ, Operation.CREATE, Operation.UPDATE, Operation.DELETE})
_MANY = frozenset({Operation.LIST, Operation.EXPORT, Operation.SEARCH})


def require_owner(field: str, *, admin_roles: str | Iterable[str] = (), lists: bool = True) -> ScopeRule:
    """Bind rows to the caller named in `field`: others' rows are not there, a new row is stamped.

    Callers with one of `admin_roles` touch all rows. With `lists=False` lists show the rows of all.
    """
    return OwnerRule(field, admin_roles, lists)


class OwnerRule(ScopeRule):
    """Rows of the caller."""

    name = "auth.require_owner"
    homes: ClassVar = {"auth": ANYWHERE, "db": ANYWHERE}
    undetermined_codes: ClassVar = {401: ("UNAUTHORIZED",)}

    def __init__(self, field: Any, admin_roles: str | Iterable[str], lists: Any) -> None:
        roles = (admin_roles,) if isinstance(admin_roles, str) else tuple(admin_roles)
        super().__init__(field, _caller_of, unless_role=roles or None)
        self.opens_lists = not lists
        if not isinstance(lists, bool):
            self.mistakes.append(f"lists is True or False, not {lists!r}")
        if isinstance(field, str) and "." in field:
            self.mistakes.append(f"{field!r} is a path; the owner stands in a field of the row itself")

    def refusal(self, ctx: Context) -> RequestError:
        return Abort(401, "UNAUTHORIZED", "sign in first", headers={"WWW-Authenticate": "Bearer"})

    def operations(self, seat: Seat) -> frozenset[Operation] | None:
        if not self.opens_lists:
            return None
        if seat.operations is None:
            return _ON_ONE
        return frozenset(seat.operations) - _MANY


def _caller_of(ctx: Context) -> str | None:
    return None if ctx.auth is None else ctx.auth.user_id


# `auth.block_operation`: routes that stay mounted and answer 405 to everybody.


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
    homes: ClassVar = {"auth": ANYWHERE, FILES: ANYWHERE}

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


# Exemptions: routes that a caller without a credential may use.
#
# They stand before the authenticators. A credential that is sent is checked all the same.


LAST = 1000  # rank: after everything that may find out who is asking


def allow_anonymous() -> Entry:
    """Let requests without a credential pass the authenticators that are registered after this."""
    return Exemption()


def allow_public_read() -> Entry:
    """Let anonymous callers read; everything else on its routes needs an identity."""
    return PublicRead()


def allow_public_write() -> Entry:
    """Let anonymous callers write, such as to sign up; needs `models=` and `operations=`."""
    return PublicWrite()


class Exemption(Admission, AuthEntry):
    """Marks a request as one that needs no credential."""

    name = "auth.allow_anonymous"
    homes: ClassVar = GUARDS_ANYTHING
    part = AuthPart.EXEMPTION
    docs = describe_nothing

    def admit(self, ctx: Context) -> None:
        ctx.lets_anonymous_pass = True

    def warnings(self, seat: Seat) -> Iterable[str]:
        if seat.is_action or seat.is_named:
            everywhere = (r for r in seat.registrations if r.models is None and r.operations is None)
            for guard in (r.name for r in everywhere if part_of(r.fn) is AuthPart.GUARD):
                yield f"{guard} is for all routes and refuses anonymous callers here too; give it models="
        if seat.is_action:
            return
        place = seat.registrations.index(seat.registration)
        places = [
            index
            for index, other in enumerate(seat.registrations)
            if demands_identity(other.fn) and _overlap(seat.registration, other)
        ]
        if places and places[-1] < place:
            authenticator = seat.registrations[places[-1]].name
            yield f"it stands after {authenticator}, so it has no effect; register it before"


class PublicRead(Exemption):
    """Exempts reads, and asks for an identity everywhere else on its routes."""

    name = "auth.allow_public_read"
    homes: ClassVar = {"auth": ANYWHERE, FILES: ANYWHERE}
    acts_for = frozenset(Operation(name) for name in Operation.READS)

    def __init__(self) -> None:
        super().__init__()
        self._demand = IdentityDemand()

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        yield Piece(seat.step, self.make, seat.at)
        yield Piece(seat.step, self._make_demand, At.AFTER, rank=LAST)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in Operation.READS else None

    def _make_demand(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return None if operation in Operation.READS else self._demand


class IdentityDemand(Admission, AuthEntry):
    """Refuses an anonymous caller at the end of the auth step, whichever authenticators there are."""

    name = "auth.allow_public_read"
    part = AuthPart.DEMAND

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={401: ["UNAUTHORIZED"]})

    def admit(self, ctx: Context) -> None:
        if (ctx.auth is None or not ctx.auth.user_id) and not ctx.lets_anonymous_pass:
            raise unknown_caller(ctx)


class PublicWrite(Exemption):
    """Exempts the writes it is registered for."""

    name = "auth.allow_public_write"
    homes: ClassVar = {"auth": ANYWHERE, FILES: ANYWHERE}
    acts_for = frozenset(Operation(name) for name in Operation.WRITES)

    def problems(self, seat: Seat) -> Iterable[str]:
        if not seat.is_named or seat.operations is None:
            yield "it needs models= and operations=, or it would open more than a sign-up"

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in Operation.WRITES else None


def _overlap(one: Registration, other: Registration) -> bool:
    """Whether some request passes both."""
    if one.models is not None and other.models is not None and not one.models & other.models:
        return False
    if one.operations is None or other.operations is None:
        return True
    either = ((one.operations, other.operations), (other.operations, one.operations))
    return any(
        covered(rules, operation, item=True) for rules, operations in either for operation in operations
    )


# `auth.enforce`: rules about single rows, as functions of the caller and the record.


def enforce(policy: Policy, *, where: Where | None = None) -> Enforce:
    """Let callers touch the rows that `policy(ctx, record)` allows: others are 403, lists leave them out.

    `where(ctx)` says the same in conditions, which bind lists, counts, aggregates and searches in SQL.
    """
    return Enforce(policy, where)


def all_of(*policies: Policy) -> Policy:
    """A policy that allows what all of these allow; the first that denies is the last one asked."""
    return _Joined(policies, decisive=False)


def any_of(*policies: Policy) -> Policy:
    """A policy that allows what one of these allows; the first that allows is the last one asked."""
    return _Joined(policies, decisive=True)


def not_(policy: Policy) -> Policy:
    """A policy that allows what this one denies."""
    return _Negated(policy)


class Enforce(PolicyEntry):
    """A policy on the rows of models."""

    name = "auth.enforce"

    def __init__(self, policy: Any, where: Any) -> None:
        super().__init__(policy, where)
        self.mistakes += _mistakes(policy)
        if where is not None and not is_function(where, 1):
            self.mistakes.append(f"where is a function of (ctx), not {where!r}")


class _Combined:
    """A policy made of others."""

    word = ""

    def __init__(self, policies: tuple[Policy, ...]) -> None:
        self.policies = policies
        self.__qualname__ = f"auth.{self.word}"


class _Joined(_Combined):
    """Policies that are asked in turn until one of them decides."""

    def __init__(self, policies: tuple[Policy, ...], *, decisive: bool) -> None:
        self.word = "any_of" if decisive else "all_of"
        super().__init__(policies)
        self._decisive = decisive

    async def __call__(self, ctx: Context, record: Any) -> bool:
        for policy in self.policies:
            if bool(await ask(ctx, policy, ctx, record)) is self._decisive:
                return self._decisive
        return not self._decisive


class _Negated(_Combined):
    """The opposite of a policy."""

    word = "not_"

    def __init__(self, policy: Policy) -> None:
        super().__init__((policy,))

    async def __call__(self, ctx: Context, record: Any) -> bool:
        return not await ask(ctx, self.policies[0], ctx, record)


def _mistakes(policy: Any) -> list[str]:
    """Why something is no policy; of a combination, the mistakes of its parts."""
    if not isinstance(policy, _Combined):
        return [] if is_function(policy, 2) else [f"a policy is a function of (ctx, record), not {policy!r}"]
    if not policy.policies:
        return [f"auth.{policy.word}() has no policies, so it says nothing"]
    return [mistake for one in policy.policies for mistake in _mistakes(one)]
