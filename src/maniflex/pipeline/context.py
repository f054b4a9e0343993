"""The request as every step and middleware sees it."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol
from weakref import ref

from starlette.datastructures import FormData
from starlette.requests import Request
from typing_extensions import TypeVar

from maniflex import _json
from maniflex._caller import Caller, Source
from maniflex._locales import LocaleView
from maniflex.db.current import current_tx, innermost_tx, open_block, transaction
from maniflex.db.includes import attach
from maniflex.db.port import Adapter, AfterCommit, Isolation, Tx
from maniflex.errors import Abort, DeclarationError, Detail, EmptyBody, RawSqlRefused
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.access import DatabaseAccess, Unscoped
from maniflex.pipeline.binding import binder
from maniflex.pipeline.body import Body, check_type_of_kept, keep_body, read_body, written_number
from maniflex.pipeline.exchange import LANGUAGE, OBSERVED, Exchange
from maniflex.pipeline.exchange import AsgiScope as AsgiScope
from maniflex.pipeline.exchange import Receive as Receive
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response, status_of
from maniflex.query.operators import Op
from maniflex.query.parse import pairs
from maniflex.query.query import (
    ClientQuery,
    Cursor,
    Filter,
    Forced,
    Include,
    ModellessQuery,
    ModelName,
    Models,
    Narrowed,
    Query,
    Scope,
    Sort,
)

if TYPE_CHECKING:
    from maniflex.app.server import Server
    from maniflex.pipeline.rules.model_rules import ServerRules
    from maniflex.pipeline.rules.scopes import TableRule
    from maniflex.pipeline.runtime import Runtime, Work


# Headers that code adds to every kind of answer: a record, a refusal, a stream.


Header = tuple[bytes, bytes]

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_COOKIE_TEXT = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_ATTRIBUTE = re.compile(r"[\x20-\x3a\x3c-\x7e]*")
_OURS = frozenset({"connection", "content-length", "content-type", "transfer-encoding", "x-request-id"})
_SAME_SITE = {"lax": "Lax", "strict": "Strict", "none": "None"}


class AnswerHeaders:
    """The part of a context that adds headers to its answer."""

    extra_headers: list[Header] | None = None

    def add_header(self, name: str, value: str) -> None:
        """Send this header with the answer, also with a refusal; the same name may be added several times."""
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise ValueError(f"{name!r} is no name of a header that can be added")
        if any(ord(letter) < 32 and letter != "\t" for letter in value):
            raise ValueError(f"the header {name!r} contains a control character")
        header = name.lower().encode("ascii"), value.encode("latin-1")
        if self.extra_headers is None:
            self.extra_headers = [header]
        else:
            self.extra_headers.append(header)

    def set_cookie(
        self,
        name: str,
        value: str,
        *,
        max_age: timedelta | float | None = None,
        path: str = "/",
        domain: str | None = None,
        secure: bool = True,
        http_only: bool = True,
        same_site: str = "lax",
    ) -> None:
        """Have the client keep a cookie; `max_age=0` takes one away."""
        if not _TOKEN.fullmatch(name) or not _COOKIE_TEXT.fullmatch(value):
            raise ValueError(f"the cookie {name!r} has letters that no cookie can carry")
        if not _ATTRIBUTE.fullmatch(path + (domain or "")):
            raise ValueError(f"the path or domain of the cookie {name!r} cannot be written")
        parts = [f"{name}={value}", f"Path={path}"]
        if max_age is not None:
            seconds = max_age.total_seconds() if isinstance(max_age, timedelta) else max_age
            parts.append(f"Max-Age={int(seconds)}")
        if domain is not None:
            parts.append(f"Domain={domain}")
        parts += [*(["Secure"] if secure else []), *(["HttpOnly"] if http_only else [])]
        self.add_header("set-cookie", "; ".join([*parts, f"SameSite={_SAME_SITE[same_site.lower()]}"]))


# `ctx.query`: the query of a request as code sees it, to be read, narrowed and bound.
#
# A `Query` is a value that requests share; a change made here replaces the query of the one request.


T = TypeVar("T")


class QueryHolder(Protocol):
    """A request, whose query is there."""

    _query: Query | None


class _QueryPart(Generic[T]):
    """One part of the query, as an attribute that can be set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, face: RequestQuery, owner: type) -> T:
        part: T = getattr(face._value, self._name)
        return part

    def __set__(self, face: RequestQuery, value: T) -> None:
        face._value = face._value.with_(**{self._name: value})


class RequestQuery:
    """What the request asks for. It is made when code looks at `ctx.query`: no other request pays for it."""

    __slots__ = ("_holder",)

    page: _QueryPart[int] = _QueryPart()
    limit: _QueryPart[int | None] = _QueryPart()
    filters: _QueryPart[tuple[Filter, ...]] = _QueryPart()
    sorts: _QueryPart[tuple[Sort, ...]] = _QueryPart()
    includes: _QueryPart[tuple[Include, ...]] = _QueryPart()
    select: _QueryPart[tuple[FieldMeta, ...] | None] = _QueryPart()
    search: _QueryPart[str | None] = _QueryPart()
    cursor: _QueryPart[Cursor | None] = _QueryPart()

    def __init__(self, holder: QueryHolder) -> None:
        self._holder = holder

    def __repr__(self) -> str:
        return repr(self._value)

    @property
    def _value(self) -> Query:
        query = self._holder._query
        assert query is not None
        return query

    @_value.setter
    def _value(self, query: Query) -> None:
        self._holder._query = query

    @property
    def model(self) -> ModelMeta:
        return self._value.model

    @property
    def models(self) -> Models:
        return self._value.models

    @property
    def forced(self) -> Scope:
        """The conditions the request is bound to."""
        return self._value.forced

    def add_filter(self, name: str, value: Any = None, op: str = Op.EQ) -> None:
        """Narrow the list further; unlike a client, code may use any field."""
        self._value = self._value.with_filter(name, value, op)

    def add_sort(self, name: str, direction: str = "asc") -> None:
        """Sort by one more field, after those already there."""
        self._value = self._value.with_sort(name, direction)

    def force(self, name: str, value: Any = None, op: str = Op.EQ, *, model: ModelName | None = None) -> None:
        """Bind the request to rows where this holds, on every surface; a client cannot undo it.

        The condition binds every model of the request that has such a field, or `model` alone. A
        dotted name binds rows through the record they belong to: `order.tenant_id`.
        """
        holder = self._holder
        assert holder._query is not None
        holder._query = holder._query.with_force(name, value, op, model=model)


R = TypeVar("R", default=Any)


@dataclass(slots=True)
class AuthInfo:
    """Who is asking, as the auth step found out."""

    user_id: str = ""
    roles: Sequence[str] = ()
    claims: Mapping[str, Any] = field(default_factory=dict)
    tenant_id: str = ""
    identity_type: str = "human"  # human, service_account, anonymous
    scopes: Sequence[str] = ()
    session_id: str = ""
    auth_method: str = ""
    tenant_chosen: bool = False  # it is of no tenant itself and works in this one, as people of the panel may

    def __post_init__(self) -> None:
        if type(self.roles) is not tuple:
            self.roles = list_names("roles", self.roles)
        if type(self.scopes) is not tuple:
            self.scopes = list_names("scopes", self.scopes)


def list_names(kind: str, names: Any) -> list[str]:
    """Roles or scopes as a list of one's own; `TypeError` for one text, in which any part is found."""
    if isinstance(names, str | bytes):
        raise TypeError(f"{kind} of an AuthInfo are a list of texts: {kind}=[{names!r}]")
    texts = list(names)
    wrong = [name for name in texts if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{kind} of an AuthInfo are texts, and {wrong[0]!r} is none")
    return texts


@dataclass(slots=True)
class Page:
    """What a list found: the records of one page and how many there are in all."""

    items: list[Any]
    total: int
    page: int
    limit: int

    def __iter__(self) -> Any:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Context(Exchange, DatabaseAccess, AnswerHeaders, Generic[R]):
    """One request: where it goes, what it brought, what came of it.

    `Context[Order]` tells a type checker that `record` and `result` are an `Order`.
    """

    # Defaults stand on the class, so that making a context sets only what a request has.
    model: ModelMeta = None  # type: ignore[assignment]  # only an action has none
    resource_id: str = ""
    route: str = ""  # of an action whose path has parameters: the path as it was declared
    auth: AuthInfo | None = None
    authenticated: bool = False  # an authenticator has found out who asks, so no other looks
    authenticator: Any = None  # the one that did, by a credential of this request
    challenges: tuple[str, ...] = ()  # what the authenticators of the route would have taken, for a 401
    lets_anonymous_pass: bool = False  # an exemption stands before the authenticators
    csrf_exempt: bool = False  # reached without a session, such as a login, or proven by a header
    files: Mapping[str, Any] = {}
    response: Response | None = None
    trace_id: str = ""  # the 32 hexadecimal digits of the trace this request belongs to
    traceparent: str = ""  # the header that says so, which calls to others send on
    change_reason: str | None = None  # why this request changes records, for their history
    called_from: Caller | None = None  # of a request that the application makes itself: whose code does
    parent: Context | None = None  # of a view for a reached model's middleware: the request's own context
    _export_columns: Columns | None = None
    _state: State | None = None
    _view: LocaleView | None = None
    _logger: RequestLogger | None = None
    _request: Request | None = None

    def __init__(
        self, runtime: Runtime, scope: AsgiScope, receive: Receive, operation: Operation, request_id: str
    ) -> None:
        self.runtime = runtime
        self.scope = scope
        self.receive = receive
        self.operation = operation
        self.request_id = request_id
        # Every request looks at these, and what stands on the class is found last.
        self.response = self.place = self.watched = None
        self._query = self._result = self._after = None
        self.related = ()

    def __repr__(self) -> str:
        return f"<Context {self.operation} {self.scope['path']} {self.request_id}>"

    def now(self) -> datetime:
        """The time by the server's clock, which tests can move."""
        return self.runtime.clock.now()

    @property
    def server(self) -> Server:
        """The server that answers, for code that is declared before it: hooks, guards, middleware."""
        server: Server = self.runtime.server
        return server

    def require_auth(self) -> AuthInfo:
        """The identity of the caller; 401 without one."""
        if self.auth is None:
            raise Abort(401, "UNAUTHORIZED", "sign in first", headers={"www-authenticate": "Bearer"})
        return self.auth

    # -- the request -------------------------------------------------------------------------

    @property
    def request(self) -> Request:
        """The request as Starlette shows it."""
        if self._request is None:
            scope = {name: value for name, value in self.scope.items() if name != OBSERVED}
            self._request = ClientRequest(scope, self)
        if self.raw_body is not None:
            self._request._body = self.raw_body
        return self._request

    @property
    def client_ip(self) -> str:
        """The address of the client, without a port: of the connection, or as trusted proxies say."""
        return self.runtime.proxies.client_of(self.scope)

    @property
    def scheme(self) -> str:
        """`http` or `https`: of the connection, or as trusted proxies say."""
        return self.runtime.proxies.scheme_of(self.scope)

    def header(self, name: str) -> str | None:
        """A request header; one sent several times comes as one list."""
        raw_name = name.lower().encode("latin-1")
        values = [value for key, value in self.scope["headers"] if key == raw_name]
        return b", ".join(values).decode("latin-1") if values else None

    def url_param(self, name: str) -> str:
        """A parameter of the path, empty when the path has none of that name."""
        return self.params.get(name, self.resource_id if name == "id" else "")

    def query_param(self, name: str) -> str:
        """A parameter of the query string, empty when it is not there."""
        return next((value for key, value in pairs(self.scope["query_string"]) if key == name), "")

    @property
    def view(self) -> LocaleView:
        """The language that the request asks for, and how it says so."""
        if self._view is None:
            request = self
            while request.parent is not None:
                request = request.parent
            runtime = self.runtime
            header = request.header("accept-language") if runtime.config.locale.from_header else None
            header = self.scope.get(LANGUAGE, header)
            self._view = runtime.view_asked_by(self.scope["query_string"], header)
        return self._view

    @property
    def locale(self) -> str:
        """The locale that the request asks for, as the settings know it; empty where it asks for none."""
        return self.view.locale

    @property
    def direction(self) -> str:
        """`rtl` or `ltr`: how texts of that locale, or of the usual one, are written."""
        return self.view.direction

    async def read_body(self) -> bytes:
        """The bytes of the body, at every step, up to `max_body_size`; empty where there is none.

        They are read once and kept, so that the steps behind find them, too.
        """
        return await keep_body(self) if self.raw_body is None else self.raw_body

    async def bind_json(self, type: Any = None) -> Any:
        """The JSON body, validated against `type` when one is given."""
        if self.raw_body is None:
            await read_body(self)
        elif self.is_type_unchecked:
            check_type_of_kept(self)
        if not self.raw_body:
            raise EmptyBody()
        type_binder = None if type is None else binder(type)
        value = await self.parse_body(_json.loads if type_binder is None else type_binder.bind)
        if self.place is not None:  # how long it is kept from here on is the application's affair
            self.place.leave()
        return value

    async def parse_body(self, read: Callable[..., T], **options: Any) -> T:
        """What `read` makes of the bytes of the body, which are there; a large one is read on a thread."""
        body, most = self.raw_body or b"", self.runtime.config.limits.body_values
        return await self.runtime.offload.run(len(body), lambda: read(body, most=most, **options))

    def caller(self) -> Caller:
        """Who is asking, as durable work notes it."""
        auth, outer = self.auth, self.called_from
        actor, tenant = (None, None) if auth is None else (auth.user_id or None, auth.tenant_id or None)
        source = Source.REQUEST if outer is None else outer.source
        if self.operation is Operation.ACTION:
            source = Source.ACTION
        reason = self.change_reason if outer is None else self.change_reason or outer.reason
        trace = (self.trace_id or None, self.traceparent or None)
        return Caller(actor, tenant, trace[0], self.request_id or None, source, reason, trace[1])

    def database(self) -> object:
        """The database of the server that answers, which tells servers of one process apart."""
        return self.runtime.adapter

    def has_role(self, role: str) -> bool:
        """Whether the caller holds the role; a caller without an identity holds none."""
        return self.auth is not None and role in self.auth.roles

    # -- the body ----------------------------------------------------------------------------

    @property
    def body(self) -> Any:
        """The body as it was sent (a mapping, empty without one), or an action's request object."""
        body = self._own_body()
        return Body({}) if body is None else body

    def _own_body(self) -> Any:
        """The body, if there is one; that of a request answered as an earlier one is parsed now."""
        if self.unparsed is not None:
            parse, self.unparsed = self.unparsed, None
            parse(self)
        return self._body

    @property
    def record(self) -> R:
        """The body as a validated record; on update it has only the fields that were sent."""
        if self._record is None and self.changes is not None:
            self._record = self.model.cls._from_db(dict(self.changes))
        return self._record  # type: ignore[no-any-return]  # of the model that the middleware is for

    def field(self, name: str, default: Any = None) -> Any:
        """One field of the body, typed once the validate step has passed."""
        field = self.model.field(name)
        if field is not None:
            if self.changes is not None:
                if field.name in self.changes:
                    return self.changes[field.name]
            elif self._record is not None and field.name in self._record.__dict__:
                return self._record.__dict__[field.name]
        body = self._own_body()
        return default if body is None else body.get(field.api if field else name, default)

    def set_field(self, name: str, value: Any, *, checked: bool = True) -> None:
        """Set a field on the server's behalf; what clients may not set is open to you.

        With `checked=False` the field's own rules do not judge the value, such as a hash that is longer
        than a password may be.
        """
        field = self.model.field(name)
        if field is None or field.name == "id":
            what = "is assigned by the framework" if field else "is not a field"
            raise DeclarationError(f"{self.model.name}.{name} {what}; it cannot be set")
        if self._own_body() is None:
            self._body = Body({})
        self._body.stamp(field.api, value)
        if self.changes is None and self._record is None:
            return
        values = {field.name: value}
        if checked:
            values = self.model.validator.patch_from_code(values)
        if self.changes is not None:
            self.changes.update(values)
            self._record = None
        else:
            self._record.__dict__.update(values)

    def sent_digits(self, name: str) -> str | None:
        """A JSON number of the body as it was written; None for another value, or one that code has set."""
        body = self._own_body()
        if self.raw_body is None or body is None or not body.is_from_client(name):
            return None
        return written_number(self.raw_body, name)

    def delete_field(self, name: str) -> None:
        """Take a field out of the body."""
        field = self.model.field(name)
        if (body := self._own_body()) is not None:
            body.remove(field.api if field else name)
        if field is not None and self.changes is not None:
            self.changes.pop(field.name, None)
            self._record = None
        elif field is not None and self._record is not None and field.has_default:
            factory = field.default_factory
            self._record.__dict__[field.name] = field.default if factory is None else factory()
        elif field is not None and self._record is not None:
            self._record = self.model.validator.create_from_code(
                {k: v for k, v in self._record.__dict__.items() if k != field.name}
            )

    # -- the outcome -------------------------------------------------------------------------

    @property
    def query(self) -> RequestQuery:
        """What the query string asks for; middleware may narrow it further, or bind it with `force`."""
        if self._query is None:
            self._query = self._own_query()
        return RequestQuery(self)

    def current_query(self) -> Query:
        """The query as it stands; of the query string, when no step has read that yet."""
        if self._query is None:
            self._query = self._own_query()
        return self._query

    def _own_query(self) -> Query:
        about: ModelMeta | None = self.model
        if about is None or self.operation is Operation.SEARCH:
            return ModellessQuery.over({s.meta.name: s.meta for s in self.runtime.stores.values()})
        query_string = self.scope["query_string"] if self.operation in Operation.READS else b""
        listings = self.runtime.stores[about.cls].listings
        listing = listings.get(query_string)
        if listings.own.locales is not None:
            listing = listing.in_view(self.view)
        self.client_listing = listing
        return listing.query

    @property
    def export_columns(self) -> Columns:
        """The columns of an export by API name; take out what this caller may not see."""
        if self._export_columns is None:
            fields = (self.query.select or self.model.fields) if self.operation is Operation.EXPORT else ()
            self._export_columns = Columns([f.api for f in fields if f.exported])
        return self._export_columns

    @export_columns.setter
    def export_columns(self, names: Sequence[str]) -> None:
        self._export_columns = Columns(names)

    @property
    def result(self) -> R:
        """What the database step found or stored: a record, or a `Page` of them."""
        if self._result is None and self.model is not None:
            store = self.runtime.stores[self.model.cls]
            if self.row is not None:
                self._result = self._with_related(store.record(self.row), 0)
            elif self.listing is not None and self.rows is not None:
                query, fields = self.listing.query, self.listing.fields
                records = [self._with_related(store.record(r, fields), i) for i, r in enumerate(self.rows)]
                self._result = Page(records, self.total, query.page, query.limit or 0)
        return self._result  # type: ignore[return-value]  # what the database step or code has put there

    @result.setter
    def result(self, value: R) -> None:
        self._result = value

    def _with_related(self, record: Model, place: int) -> Model:
        return attach(record, self.related[place]) if self.related else record

    async def redacted(self, model: type[Model] | str) -> frozenset[str]:
        """The keys that this caller may not see in records of the model, by `response.redact_field`."""
        request = self
        while request.parent is not None:
            request = request.parent
        names = self.runtime.rules[self.runtime.store(model).meta.cls].hidden_fields(request)
        return names if isinstance(names, frozenset) else await names

    async def hidden_fields(self, model: ModelMeta) -> tuple[FieldMeta, ...]:
        names = await self.redacted(model.cls)
        return tuple([field for field in model.fields if field.api in names])

    async def read_query(
        self,
        model: type[Model] | str,
        *,
        filter: str | Iterable[str] = (),
        sort: str | Iterable[str] = (),
    ) -> ClientQuery:
        """What a client filters and sorts by, for `ctx.db(model).list`; 400 for what a list would refuse it.

        Each text is written as in a query string: `status:eq:open`, `title:desc`. An empty one is none.
        Only fields of the model itself can be named, and none that is hidden from this caller.
        """
        texts = [[part] if isinstance(part, str) else [*part] for part in (filter, sort)]
        filters, sorts = ([text for text in part if text] for part in texts)
        request = self
        while request.parent is not None:
            request = request.parent
        listings = self.runtime.store(model).listings
        return await self.runtime.rules.read(
            request, lambda hiding: listings.parse_conditions(filters, sorts, hiding)
        )

    def keep_answer_secret(self) -> None:
        """Let no store keep the answer: it shows a secret once, such as a token or a new password."""
        self.keeps_answer_secret = True

    def abort(
        self, status: int, code: str, message: str, details: Sequence[Detail] | Detail | None = None
    ) -> NoReturn:
        """End the request here with this answer."""
        if self.runtime.config.trace.on("aborts"):
            caller = sys._getframe(1)
            self.logger.debug(
                "abort %s %s at %s:%s", status, code, caller.f_code.co_filename, caller.f_lineno
            )
        raise Abort(status, code, message, details)

    @property
    def state(self) -> State:
        """Values for later middleware of the same request."""
        if self._state is None:
            self._state = State()
        return self._state

    @property
    def service_name(self) -> str:
        return self.runtime.config.service_name

    @property
    def logger(self) -> RequestLogger:
        """A logger that says which request it speaks of, and who asked."""
        if self._logger is None:
            self._logger = RequestLogger(self.runtime.logger)
        self._logger.extra = self._log_fields()
        return self._logger

    def _log_fields(self) -> Mapping[str, str]:
        """What log lines say of this request."""
        return request_fields(self)

    # -- the database ------------------------------------------------------------------------

    @property
    def adapter(self) -> Adapter:
        """The database of this request's model, or the default one."""
        meta: ModelMeta | None = self.model
        return self.runtime.adapter if meta is None else self.runtime.stores[meta.cls].home

    @property
    def tx(self) -> Tx | None:
        """The open transaction, if there is one."""
        return None if open_block() is None else current_tx(self.adapter)

    @property
    def rules(self) -> ServerRules | None:
        rules = self.runtime.rules
        return rules if rules.scoped_models else None

    async def _conditions_by(self, rule: TableRule) -> Sequence[Forced | Narrowed]:
        return await rule.rule.conditions(self)

    def require_raw_sql(self) -> None:
        """Refuse SQL of the application in an action that rules bind: they cannot be put into it."""
        if self.operation is Operation.ACTION and (self.rules is not None or self.bound_action):
            raise RawSqlRefused()

    def unscoped(self) -> Unscoped:
        """The database without conditions and rules: the explicit way around them."""
        return Unscoped(self)

    @asynccontextmanager
    async def transaction(
        self,
        isolation: Isolation | str | None = None,
        *,
        on: type[Model] | str | None = None,
        read_only: bool = False,
    ) -> AsyncIterator[Tx]:
        """Open a transaction (or join the open one); an error or an answer of 400 or more rolls it back.

        It is on the database of the model `on`; without one on that of the route's model, or the default.
        One that is `read_only` looks at one moment on SQLite and refuses writes on both.
        """
        adapter = self.adapter_on(on)
        joins = current_tx(adapter) is not None
        try:
            async with transaction(adapter, isolation=isolation, read_only=read_only) as tx:
                yield tx
                if not joins and self.response is not None and status_of(self.response) >= 400:
                    raise _LeaveTransaction
        except _LeaveTransaction:
            pass

    def after_commit(self, call: AfterCommit) -> None:
        """Run `call` once what this request wrote is committed; never when it is rolled back."""
        tx = self.tx or innermost_tx()
        if tx is not None:
            tx.after_commit(call)
        elif self._after is None:
            self._after = [call]
        else:
            self._after.append(call)

    async def run_after(self) -> None:
        """The calls that had no transaction to wait for; the request has succeeded."""
        for call in self._after or ():
            try:
                outcome = call()
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                self.logger.exception("an after-commit call failed")
        self._after = None

    def background(self, work: Work) -> None:
        """Start work that goes on after the answer; an exception in it is logged and ends nothing."""
        self.runtime.tasks.start(work, f"background of {self.request_id}")


class _LeaveTransaction(Exception):
    """Leaves a transaction's block so that it rolls back, and goes no further."""


# Small values that a context keeps for middleware.


class State(dict[str, Any]):
    """Values one middleware leaves for another, by key or by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"nothing was stored as {name!r} on ctx.state") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Columns(list[str]):
    """Names of columns; one that the client did not select can be removed all the same."""

    def remove(self, name: str) -> None:
        if name in self:
            super().remove(name)


# The request as Starlette shows it, over the channel as it will be when it is asked.


class ClientRequest(Request):
    """The request of a context. What it reads of the body is kept for the steps that come later.

    Without a model (actions, the panel) the handler is the last to read: streams and forms pass by unkept.
    """

    def __init__(self, scope: AsgiScope, ctx: Context) -> None:
        super().__init__(scope, later_receive(ctx))
        self._context = ref(ctx)  # not the context itself, which has this request

    async def body(self) -> bytes:
        ctx = self._context()
        if ctx is not None and not hasattr(self, "_body"):
            self._body = await ctx.read_body()
        return await super().body()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        await self._keep()
        async for chunk in super().stream():
            yield chunk

    async def _get_form(self, **limits: Any) -> FormData:
        await self._keep()
        return await super()._get_form(**limits)

    async def _keep(self) -> None:
        ctx = self._context()
        model: ModelMeta | None = None if ctx is None else ctx.model
        if model is not None and not self._stream_consumed:
            await self.body()


def later_receive(ctx: Exchange) -> Receive:
    """A call of the `ctx.receive` of that moment: the watch for clients that leave replaces it."""
    now, later = ctx.receive, ref(ctx)

    async def receive() -> Any:
        ctx = later()
        if ctx is None:
            return await now()
        ctx.body_asked = True
        message = await ctx.receive()
        ctx.body_complete = not message.get("more_body")
        return message

    return receive


# Log lines about one request: they name it, its caller as far as that is known, and its route.


class RequestLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of a request; fields that a call gives along are kept beside those of the request."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def request_fields(ctx: Context) -> Mapping[str, str]:
    """What a log line says of the request it is about; a text that is not known is empty."""
    auth = ctx.auth
    return {
        "request_id": ctx.request_id,
        "trace_id": ctx.trace_id,
        "traceparent": ctx.traceparent,
        "service": ctx.service_name,
        "user_id": "" if auth is None else auth.user_id,
        "tenant_id": "" if auth is None else auth.tenant_id,
        "route": ctx.route_path,
    }


# A request for the API description, as the middleware of its own pipeline sees it.


class OpenAPIContext(Context):
    """A request for the API description; `spec` is the document, from the generate step on."""

    spec: dict[str, Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spec = {}
