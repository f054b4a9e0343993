"""The request as every step and middleware sees it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from starlette.requests import Request
from typing_extensions import TypeVar

from maniflex import _json
from maniflex._caller import Caller, Source
from maniflex.db.current import current_tx, innermost_tx, transaction
from maniflex.db.includes import attach
from maniflex.db.port import Adapter, AfterCommit, Isolation, Tx
from maniflex.errors import Abort, DeclarationError, Detail, EmptyBody, RawSqlRefused
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.access import DatabaseAccess, Unscoped
from maniflex.pipeline.answer_headers import AnswerHeaders
from maniflex.pipeline.binding import binder
from maniflex.pipeline.body import Body, written_number
from maniflex.pipeline.exchange import OBSERVED, Exchange
from maniflex.pipeline.exchange import AsgiScope as AsgiScope
from maniflex.pipeline.exchange import Receive as Receive
from maniflex.pipeline.later_receive import ClientRequest
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.read_body import check_type_of_kept, keep_body, read_body
from maniflex.pipeline.request_log import RequestLogger, request_fields
from maniflex.pipeline.request_query import RequestQuery
from maniflex.pipeline.request_state import Columns, State
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.scope_table import ScopeTable, TableRule
from maniflex.query.parse import pairs
from maniflex.query.query import ClientQuery, Forced, ModellessQuery, Narrowed, Query

if TYPE_CHECKING:
    from maniflex.app.server import Server
    from maniflex.pipeline.runtime import Runtime, Work

T = TypeVar("T")
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

    async def read_body(self) -> bytes:
        """The bytes of the body, at every step, up to `max_body_size`; empty where there is none.

        They are read once and kept, so that the steps behind find them, too.
        """
        return await keep_body(self) if self.raw_body is None else self.raw_body

    async def bind_json(self, type: Any = None) -> Any:
        """The JSON body, validated against `type` when one is given."""
        if self.raw_body is None:
            self.raw_body = await read_body(self)
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
        return Body({}) if self._body is None else self._body

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
        return default if self._body is None else self._body.get(field.api if field else name, default)

    def set_field(self, name: str, value: Any, *, checked: bool = True) -> None:
        """Set a field on the server's behalf; what clients may not set is open to you.

        With `checked=False` the field's own rules do not judge the value, such as a hash that is longer
        than a password may be.
        """
        field = self.model.field(name)
        if field is None or field.name == "id":
            what = "is assigned by the framework" if field else "is not a field"
            raise DeclarationError(f"{self.model.name}.{name} {what}; it cannot be set")
        if self._body is None:
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
        if self.raw_body is None or self._body is None or not self._body.is_from_client(name):
            return None
        return written_number(self.raw_body, name)

    def delete_field(self, name: str) -> None:
        """Take a field out of the body."""
        field = self.model.field(name)
        if self._body is not None:
            self._body.remove(field.api if field else name)
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
        self.client_listing = listing = self.runtime.stores[about.cls].listings.get(query_string)
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
        names = self.runtime.redactions.hidden(request, self.runtime.store(model).meta.cls)
        return names if isinstance(names, frozenset) else await names

    async def hidden_fields(self, model: ModelMeta) -> tuple[FieldMeta, ...]:
        names = await self.redacted(model.cls) if model.cls in self.runtime.redactions else ()
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
        return await self.runtime.redactions.read(
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
        return current_tx(self.adapter)

    @property
    def rules(self) -> ScopeTable:
        """The scope rules that bind code here, by the name of the model."""
        return self.runtime.scopes

    async def _conditions_by(self, rule: TableRule) -> Sequence[Forced | Narrowed]:
        return await rule.rule.conditions(self)

    def require_raw_sql(self) -> None:
        """Refuse SQL of the application in an action that rules bind: they cannot be put into it."""
        if self.operation is Operation.ACTION and (self.runtime.scopes or self.bound_action):
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
