"""One request to the panel: who asks, what was sent, how pages answer it, and what they ask the API."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote, unquote, urlencode, urlsplit
from zoneinfo import ZoneInfo

import msgspec

from maniflex._json import read_back
from maniflex._locales import locale_code
from maniflex.admin import csrf
from maniflex.admin.declare import name_of
from maniflex.admin.people import AdminContext, Origin, Person
from maniflex.admin.rendering import SECURITY_HEADERS, Flash, Layout, NavGroup, NavItem
from maniflex.admin.site import ModelSite
from maniflex.admin.texts import Texts
from maniflex.errors import Abort, NotFound, RequestError
from maniflex.features.as_of import with_as_of
from maniflex.features.export import private_export_endpoints
from maniflex.features.files.downloads import private_attachment_endpoints
from maniflex.features.history import private_history_endpoints
from maniflex.http.asgi import Router
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.answer import answer
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.exchange import IN_PROCESS, LANGUAGE
from maniflex.pipeline.in_process import BodyArgument, InProcess, RequestOptions, in_process_context
from maniflex.pipeline.model_routes import browse_endpoints, private_endpoints, upload_endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Encode, Response
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.steps.browse import PAGE, PageRequest
from maniflex.query.operators import Op
from maniflex.query.parse import pairs
from maniflex.query.query import Forced

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.files.store import StoredFile


HTML = "text/html; charset=utf-8"
FLASH_COOKIE = "maniflex_admin_flash"
THEME_COOKIE = "maniflex_admin_theme"
ZONE_COOKIE = "maniflex_admin_zone"
LANGUAGE_COOKIE = "maniflex_admin_language"
_YEAR = 365 * 24 * 3600
_ADDRESS = "/?#[]@!$&'()*+,;=:%-._~"  # what is no text of an address, but its form


@dataclass(eq=False)
class Visit:
    """A request to the panel."""

    ctx: Context
    panel: PanelParts
    params: Mapping[str, str] = field(default_factory=dict)
    person: Person | None = None
    form: Any = None  # of a POST: a `starlette.datastructures.FormData`
    stored_files: dict[str, StoredFile] = field(default_factory=dict)  # of the records that are shown, by key

    # -- what was sent

    @cached_property
    def root(self) -> str:
        """Where the panel begins, also when another application mounts the server."""
        return f"{self.ctx.scope.get('root_path') or ''}{self.panel.admin.path}"

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The parameters of the query string, in order."""
        return [pair for pair in pairs(self.ctx.scope["query_string"]) if pair[0]]

    def param(self, name: str) -> str:
        """A parameter of the query string, empty when it is not there."""
        return next((value for key, value in self.query if key == name), "")

    @cached_property
    def cookies(self) -> dict[str, str]:
        text = self.ctx.header("cookie") or ""
        parts = [part.strip().partition("=") for part in text.replace(", ", "; ").split(";")]
        # Of two with one name the first counts: browsers send that of the longer path first, which is ours.
        return {name: value.strip('"') for name, _, value in reversed(parts) if name}

    @cached_property
    def is_fragment(self) -> bool:
        """Whether a script asks for a part of the page to put it into the one that is shown."""
        return self.ctx.header("x-fragment") == "1"

    def form_text(self, name: str) -> str:
        """A control of the form, empty when it is not there."""
        value = self.form.get(name) if self.form is not None else None
        return value if isinstance(value, str) else ""

    def short_text(self, name: str, longest: int) -> str:
        """The same without blanks around it; one with more characters is refused."""
        text = self.form_text(name).strip()
        if len(text) > longest:
            raise Abort(422, "VALIDATION_FAILED", self.t("too_long", count=longest))
        return text

    def form_texts(self, name: str) -> list[str]:
        """All controls of the form with this name."""
        values = self.form.getlist(name) if self.form is not None else []
        return [value for value in values if isinstance(value, str)]

    @cached_property
    def inside(self) -> str:
        """The path below the panel's own; servers send it with or without that of a mount."""
        path: str = self.ctx.scope["path"]
        start = self.root if path.startswith(self.root) else self.panel.admin.path
        return path.removeprefix(start)

    @property
    def path(self) -> str:
        """The path inside the panel, with its query string."""
        inside = self.inside
        raw = self.ctx.scope["query_string"].decode("ascii", "replace")
        return quote(inside or "/", safe="/-._~!$&'()*+,;=:@") + (f"?{raw}" if raw else "")

    @property
    def public_address(self) -> str:
        """Where this browser reaches the server."""
        host, root = self.ctx.header("host") or "localhost", self.ctx.scope.get("root_path") or ""
        return f"{self.ctx.scheme}://{host}{root}"

    # -- who asks

    @property
    def signed_in(self) -> Person:
        """The person, whom every page but the login has."""
        assert self.person is not None
        return self.person

    @cached_property
    def api(self) -> Api:
        """The API as this person sees it."""
        return Api(self.panel.in_process, self.panel.private, self.signed_in, self.ctx, self.language)

    def admin_context(self, form: Any = None) -> AdminContext:
        """What code of the application is given that acts for this person."""
        return AdminContext(self.signed_in, self.api, self.ctx, form)

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone that this person chose."""
        name = self.cookies.get(ZONE_COOKIE, "").replace("%2F", "/")
        return self.panel.zone(name)

    @cached_property
    def language(self) -> str:
        """The language of records that this person chose; empty for the usual one."""
        code = locale_code(self.cookies.get(LANGUAGE_COOKIE, ""))
        return self.ctx.runtime.config.locale.match(code)

    @property
    def t(self) -> Texts:
        """The texts of the panel."""
        return self.panel.texts

    def site(self) -> ModelSite:
        """The model that the path names."""
        site = self.panel.sites.by_table.get(self.params.get("model", ""))
        if site is None:
            raise NotFound(self.t("no_such_page"))
        return site

    # -- answers

    async def page(
        self,
        template: str,
        view: Any,
        *,
        title: str,
        status: int = 200,
        crumbs: Sequence[tuple[str, str]] = (),
    ) -> Response:
        """A page inside the layout, or without it for a fragment."""
        layout = await self.layout(title, crumbs)
        return self.whole(self.panel.render(template, layout=layout, view=view, t=self.t), layout, status)

    def whole(self, body: str, layout: Layout, status: int = 200) -> Response:
        """The answer with a page that is rendered, whose message is shown once."""
        if layout.flash is not None:
            self.set_cookie(FLASH_COOKIE, "", max_age=0)
        return Response(status, body=body.encode(), content_type=HTML, headers=SECURITY_HEADERS)

    def part(self, template: str, **values: Any) -> Response:
        """A part of a page without its layout; 304 when the browser has it already."""
        body = self.panel.render(template, t=self.t, **values).encode()
        etag = f'"{sha256(body).hexdigest()[:32]}"'
        headers = {**SECURITY_HEADERS, "etag": etag}
        if self.ctx.header("if-none-match") == etag:
            return Response(304, body=b"", content_type=HTML, headers=headers)
        return Response(200, body=body, content_type=HTML, headers=headers)

    def redirect(self, path: str, *, ok: str = "", warning: str = "") -> Response:
        """Lead the browser to a path of the panel, with a message to show there."""
        text = ok or warning
        if text:
            level = "ok" if ok else "warning"
            raw = json.dumps([level, text[:500]]).encode()
            self.set_cookie(FLASH_COOKIE, urlsafe_b64encode(raw).decode().rstrip("="), max_age=60)
        headers = {**SECURITY_HEADERS, "location": quote(self.root + path, safe=_ADDRESS)}
        return Response(303, body=b"", content_type=HTML, headers=headers)

    def set_cookie(self, name: str, value: str, *, max_age: float | None = _YEAR) -> None:
        """A cookie of the panel: only sent to it, and to no script."""
        secure = self.ctx.scheme == "https"
        path = self.root or "/"
        self.ctx.set_cookie(name, value, max_age=max_age, path=path, secure=secure, same_site="lax")

    def url(self, *parts: str, **query: Any) -> str:
        """An address inside the panel; parts are escaped."""
        text = "/".join([self.root, *(quote(part, safe="~") for part in parts)])
        return f"{text}?{urlencode(query, doseq=True)}" if query else text

    def safe_next(self, text: str) -> str:
        """A path inside the panel to go on to after the login, or its front page."""
        parts = urlsplit(text)
        is_inside = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.netloc
        is_inside = is_inside and not {".", ".."} & set(unquote(parts.path).split("/"))
        return text if is_inside and "\\" not in text and text.isprintable() else "/"

    @property
    def csrf_token(self) -> str:
        """The token for the forms of this page; somebody without a session gets one in a cookie."""
        if self.person is not None and self.person.csrf:
            return self.person.csrf
        token = self.cookies.get(csrf.COOKIE, "")
        if len(token) != 64 or not token.isalnum():
            token = self.cookies[csrf.COOKIE] = csrf.new_token()
            self.set_cookie(csrf.COOKIE, token, max_age=None)
        return token

    def _flash(self) -> Flash | None:
        raw = self.cookies.get(FLASH_COOKIE, "")
        try:
            level, text = read_back(urlsafe_b64decode(raw + "=" * (-len(raw) % 4)))
            return Flash(str(level), str(text)) if raw else None
        except (ValueError, TypeError):
            return None

    async def layout(self, title: str, crumbs: Sequence[tuple[str, str]] = ()) -> Layout:
        """What every page is put into."""
        panel, person = self.panel, self.person
        theme = self.cookies.get(THEME_COOKIE, "")
        return Layout(
            title=panel.title,
            page_title=title,
            root=self.root,
            style=f"{self.root}/static/{panel.assets.style}",
            module=f"{self.root}/static/{panel.assets.module}",
            icon=f"{self.root}/static/{panel.assets.icon}",
            navigation=[] if person is None else await self._navigation(),
            person=None if person is None else person.name,
            has_account=person is not None and bool(person.session_id),
            csrf=self.csrf_token,
            banner=self.t("open_banner") if panel.admin.allow_unauthenticated else "",
            flash=self._flash(),
            theme=theme if theme in ("light", "dark") else "",
            zone=self.zone.key,
            crumbs=list(crumbs),
            is_fragment=self.is_fragment,
            tenant="" if person is None else await self.tenant_label(person.tenant_id),
            tenants_url=self._tenants_url(),
        )

    def _tenants_url(self) -> str:
        """Where the person chooses a tenant; empty for one that has a tenant of its own."""
        may_choose = self.person is not None and self.person.may_choose_tenant
        return self.url("-", "tenant") if may_choose and self.panel.admin.tenants is not None else ""

    @property
    def tenant_site(self) -> ModelSite | None:
        """The model of tenants, if the panel names one."""
        tenants = self.panel.admin.tenants
        return None if tenants is None else self.panel.sites.with_routes.get(name_of(tenants))

    async def tenant_label(self, tenant: str) -> str:
        """What a tenant is called; its id where this person cannot read its record."""
        site = self.tenant_site
        if not tenant or "/" in tenant or site is None:
            return tenant
        answer = await self.api.ask("GET", self.api.path(site, tenant))
        return site.label_of(answer.data) if answer.ok and isinstance(answer.data, Mapping) else tenant

    @property
    def sees_work(self) -> bool:
        """Whether this person sees durable work, if there is any in the application."""
        durable, rules = self.panel.durable, self.panel.operation_rules
        is_used = durable is not None and durable.processes.is_used
        return is_used and rules is not None and rules.admit(self.signed_in)

    async def _navigation(self) -> list[NavGroup]:
        here = self.params.get("model", "")
        groups = [
            NavGroup("", [NavItem(self.t("dashboard"), f"{self.root}/", not here and self.path == "/")])
        ]
        for label, sites in self.panel.sites.groups:
            items = [
                NavItem(
                    site.title if site.is_singleton else site.plural, self.url(site.table), site.table == here
                )
                for site in sites
                if await self.api.may(site, Operation.READ if site.is_singleton else Operation.LIST)
            ]
            if items:
                groups.append(NavGroup(label or self.t("records"), items))
        own = [
            NavItem(page.title, self.root + page.path, self.path == page.path)
            for page in self.panel.admin.pages
        ]
        if own:
            groups.append(NavGroup(self.t("pages"), own))
        extra = [
            NavItem(self.t(route.link), self.root + route.path, self.path.startswith(route.path))
            for route in self.panel.linked_routes
            if route.shows_link(self)
        ]
        if extra:
            groups.append(NavGroup(self.t("panel"), extra))
        return groups


# One route of the panel.


Handler = Callable[["Visit"], Awaitable[Response]]


def _shows_always(visit: Visit) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PanelRoute:
    """A method and a path below the panel's own, and the page that answers."""

    method: str
    path: str
    handler: Handler
    writes: bool = False  # it changes records or durable work, so a panel that only shows has none
    is_open: bool = False  # it needs no session
    needs_token: bool = False  # of an open one: its form carries a token all the same
    most_bytes: int = 0  # of its form with files; 0: as `max_upload_size` says
    link: str = ""  # the key of its text in the navigation below the models; empty: it has no link there
    shows_link: Callable[[Visit], bool] = _shows_always


def show(path: str, handler: Handler, *, link: str = "") -> PanelRoute:
    """A page that is looked at."""
    return PanelRoute("GET", path, handler, link=link)


def act(path: str, handler: Handler) -> PanelRoute:
    """A form that changes records or durable work."""
    return PanelRoute("POST", path, handler, writes=True)


def own(path: str, handler: Handler) -> PanelRoute:
    """A form about the person itself, which every panel has."""
    return PanelRoute("POST", path, handler)


# Requests of the panel: in this process, through all steps, as the person who is signed in. Nothing else.


MOST_COUNTED = 10_000
_KEPT_SECONDS = 60.0
_MOST_KEPT = 20_000
Pairs = Sequence[tuple[str, str]]


class Refusal(RequestError):
    """An answer of the API that is no success: shown with its own status, code and message."""

    def __init__(self, response: Response) -> None:
        error = response.error or {}
        super().__init__(str(error.get("message", "the request was refused")))
        self.status = response.status
        self.code = str(error.get("code", "REFUSED"))
        self.details = error.get("details")
        self.headers = {k: v for k, v in (response.headers or {}).items() if k == "retry-after"} or None


class ApiAnswer:
    """What the API answered, decoded."""

    def __init__(self, response: Response, encode: Encode) -> None:
        self.response = response
        self.status = response.status
        self._body: Any = None
        if response.error is None and response.stream is None:
            # Middleware may have changed the data; what a client would get of it counts.
            content = response.body if response.body is not None else response.encode(encode)
            self._body = msgspec.json.decode(content) if content else None

    @property
    def ok(self) -> bool:
        return self.status < 400

    @property
    def data(self) -> Any:
        """What the envelope carries, or the refusal as an error."""
        if not self.ok:
            raise Refusal(self.response)
        return self._body["data"] if isinstance(self._body, dict) and "data" in self._body else self._body

    @property
    def code(self) -> str:
        return str((self.response.error or {}).get("code", ""))

    @property
    def message(self) -> str:
        return str((self.response.error or {}).get("message", ""))

    @property
    def details(self) -> list[Mapping[str, Any]]:
        details = (self.response.error or {}).get("details")
        return [d for d in details if isinstance(d, Mapping)] if isinstance(details, list) else []

    @property
    def etag(self) -> str:
        return (self.response.headers or {}).get("etag", "")


@dataclass(frozen=True, slots=True)
class Permission:
    """What the auth step said of a person and an operation."""

    may_pass: bool
    stamped: frozenset[str]  # the fields whose values scope rules give to what is written
    until: float


class PrivateRoutes:
    """Endpoints that are on no path, made when they are first asked for."""

    def __init__(self, routes: RouteBuilder, headless: Sequence[ModelSite] = ()) -> None:
        self._routes = routes
        self.runtime: Runtime = routes.runtime
        # The auth step of a request that is about no model.
        self.auth_step = routes.composer.steps(
            ("auth", "passed"), {"passed": _note_passing}, None, Operation.ACTION, item=False
        )
        self._browse: dict[ModelMeta, tuple[Endpoint, Endpoint]] = {}
        # By the path they would begin with: routes of headless models that have pages.
        self.headless_endpoints = {one.api_path: _headless_endpoints(routes, one.meta) for one in headless}
        self._headless = {
            path: _in_process_routes(routes, path, endpoints)
            for path, endpoints in self.headless_endpoints.items()
        }
        self._uploads: dict[tuple[ModelMeta, Operation], Endpoint] = {}
        self._auth: dict[tuple[ModelMeta, Operation, bool], Endpoint] = {}
        self.answers: dict[tuple[Any, ...], Permission] = {}

    def of_headless(self, path: str) -> InProcess | None:
        """What answers a path of a model that has pages and no routes of its own."""
        start = next((one for one in self._headless if path == one or path.startswith(f"{one}/")), None)
        return None if start is None else self._headless[start]

    def browse(self, meta: ModelMeta) -> tuple[Endpoint, Endpoint]:
        """The page and the count of a model."""
        if meta not in self._browse:
            self._browse[meta] = browse_endpoints(self._routes, meta)
        return self._browse[meta]

    def uploading(self, meta: ModelMeta, operation: Operation) -> Endpoint:
        """The first half of a create or update that brings files."""
        key = (meta, operation)
        if key not in self._uploads:
            self._uploads[key] = upload_endpoint(self._routes, meta, operation)
        return self._uploads[key]

    def auth_only(self, meta: ModelMeta, operation: Operation, item: bool) -> Endpoint:
        """The auth step of an operation, alone."""
        key = (meta, operation, item)
        if key not in self._auth:
            self._auth[key] = self._routes.endpoint(
                "GET",
                f"/{meta.table}",
                operation,
                model=meta,
                steps=(*TRIMMED, "passed"),
                defaults={"passed": _note_passing},
                item=item,
            )
        return self._auth[key]


def _headless_endpoints(routes: RouteBuilder, meta: ModelMeta) -> list[Endpoint]:
    """What a model with routes would have of its own: records, their past, their files and exports."""
    return [
        *with_as_of(routes, private_endpoints(routes, meta)),
        *private_history_endpoints(routes, meta),
        *private_export_endpoints(routes, meta),
        *private_attachment_endpoints(routes, meta),
    ]


def _in_process_routes(routes: RouteBuilder, path: str, endpoints: Sequence[Endpoint]) -> InProcess:
    """What answers requests to routes that only this process can ask."""
    router: Router[Endpoint] = Router()
    for endpoint in endpoints:
        router.add(endpoint.method, path.rpartition("/")[0] + endpoint.path, endpoint)
    return InProcess(routes.runtime, endpoints, router.find)


async def _note_passing(ctx: Context) -> None:
    ctx.response = Response(204)


class Api:
    """The API as one person sees it."""

    def __init__(
        self,
        in_process: InProcess,
        private: PrivateRoutes,
        person: Person,
        ctx: Origin,
        language: str = "",
    ) -> None:
        self._language: Mapping[str, Any] = {LANGUAGE: language} if language else {}
        self._in_process = in_process
        self._private = private
        self._runtime = private.runtime
        self._person = person
        self._ctx = ctx
        peer = ctx.scope.get("client")
        self._client: tuple[str, int] | None = (ctx.client_ip, peer[1] if peer else 0) if peer else None

    @property
    def _auth(self) -> AuthInfo | None:
        # A copy: middleware may change it, and the next request is to begin with the person as it is.
        person = self._person
        return None if person.auth is None or person.forwarded_headers else replace(person.auth)

    async def request(
        self,
        method: str,
        path: str,
        scope: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Response:
        """The answer to a request as a client would send it; `scope` says more than a client could."""
        options["headers"] = {**self._person.forwarded_headers, **(options.get("headers") or {})}
        in_process = self._private.of_headless(path) or self._in_process
        return await in_process.call(
            method,
            path,
            auth=self._auth,
            request_id=self._ctx.request_id,
            client=self._client,
            scope={**self._language, **(scope or {})},
            **options,
        )

    async def ask(self, method: str, path: str, **options: Unpack[RequestOptions]) -> ApiAnswer:
        """As `request`, with the answer decoded."""
        return ApiAnswer(await self.request(method, path, **options), self._runtime.encode)

    async def answer(
        self,
        endpoint: Endpoint,
        record_id: str = "",
        *,
        query: Pairs = (),
        json: Any = None,
        scope: Mapping[str, Any] | None = None,
    ) -> ApiAnswer:
        """The answer of an endpoint that is on no path."""
        body = b"" if json is None else self._runtime.encode(json)
        path = endpoint.path.replace("{id}", record_id)
        ctx = self._context(endpoint, path, urlencode(query).encode(), body)
        ctx.model, ctx.resource_id = endpoint.model, record_id  # type: ignore[assignment]  # as for any route
        ctx.scope.update(scope or {})
        response = await self._in_process.answer(endpoint, ctx, self._auth)
        return ApiAnswer(response, self._runtime.encode)

    async def upload(self, site: ModelSite, record_id: str, body: BodyArgument, boundary: str) -> ApiAnswer:
        """Store the files of a form as a create does, or with an id as an update; no record is written."""
        operation = Operation.UPDATE if record_id or site.is_singleton else Operation.CREATE
        endpoint = self._private.uploading(site.meta, operation)
        kind = f"multipart/form-data; boundary={boundary}"
        ctx = self._context(endpoint, endpoint.path.replace("{id}", record_id), body=body, kind=kind)
        ctx.model, ctx.resource_id = site.meta, record_id
        response = await self._in_process.answer(endpoint, ctx, self._auth)
        return ApiAnswer(response, self._runtime.encode)

    def route(self, path: str) -> str:
        """The address of a route of the API that begins with no model."""
        return self._runtime.config.path_prefix + path

    def path(self, site: ModelSite, *parts: str) -> str:
        """The address of a record in the API."""
        if any(not part or "/" in part for part in parts):  # no id is so, and it would be another path
            raise NotFound("no such record")
        return "/".join([site.api_path, *(quote(part, safe="") for part in parts)])

    async def page(self, site: ModelSite, query: Pairs, page: PageRequest) -> ApiAnswer:
        """One page of the records of a model."""
        return await self._browse(site, query, page, 0)

    async def count(self, site: ModelSite, query: Pairs, page: PageRequest | None = None) -> int | None:
        """How many records match, at most one more than `MOST_COUNTED`; None when that cannot be told."""
        if not self._counts(site.meta):
            return None
        request = replace(page) if page is not None else PageRequest(MOST_COUNTED)
        request.limit = min(request.limit, MOST_COUNTED) if page is None else MOST_COUNTED
        answer_ = await self._browse(site, query, request, 1)
        return int(answer_.data) if answer_.ok else None

    async def count_some(
        self, site: ModelSite, filters: Sequence[tuple[str, str, Any]], most: int
    ) -> int | None:
        """How many records match filters of the panel's own, at most one more than `most`."""
        if not self._counts(site.meta):
            return None
        answer_ = await self._browse(site, (), PageRequest(most, filters=tuple(filters)), 1)
        return int(answer_.data) if answer_.ok else None

    def _counts(self, meta: ModelMeta) -> bool:
        """Whether records are counted: not where a policy hides some, nor by a backend that counts none."""
        return not self._runtime.rules[meta.cls].hides_rows and self._runtime.stores[meta.cls].counts

    async def _browse(self, site: ModelSite, query: Pairs, page: PageRequest, which: int) -> ApiAnswer:
        endpoint = self._private.browse(site.meta)[which]
        ctx = self._context(endpoint, f"/{site.table}", urlencode(query).encode())
        ctx.model = site.meta
        ctx.scope[PAGE] = page
        response = await self._in_process.answer(endpoint, ctx, self._auth)
        return ApiAnswer(response, self._runtime.encode)

    def _context(
        self,
        endpoint: Endpoint,
        path: str,
        query: bytes = b"",
        body: BodyArgument = b"",
        kind: str = "application/json",
    ) -> Context:
        ctx = in_process_context(
            Context,
            self._runtime,
            endpoint.operation,
            method=endpoint.method,
            path=path,
            query=query,
            headers=[
                *(
                    (k.encode("latin-1"), v.encode("latin-1"))
                    for k, v in self._person.forwarded_headers.items()
                ),
                *([(b"content-type", kind.encode("latin-1"))] if body else []),
            ],
            body=body,
            request_id=self._ctx.request_id,
            client=self._client,
        )
        ctx.scope.update(self._language)
        return ctx

    async def may(self, site: ModelSite, operation: Operation, *, item: bool | None = None) -> bool:
        """Whether the auth step lets this person do it; what comes later may still refuse."""
        return (await self._permission(site, operation, item)).may_pass

    async def stamped_fields(
        self, site: ModelSite, operation: Operation = Operation.CREATE
    ) -> frozenset[str]:
        """The fields that the application fills in what this person writes, so that no form asks for them.

        Scope rules do it in each write, `service.owner_scope` in new records.
        """
        stamped_names = (await self._permission(site, operation, None)).stamped
        if operation is not Operation.CREATE or self._auth is None:
            return stamped_names
        return stamped_names | site.owner_fields(self._auth.roles)

    async def _permission(self, site: ModelSite, operation: Operation, item: bool | None) -> Permission:
        on_one = (
            operation not in (Operation.LIST, Operation.CREATE, Operation.EXPORT) if item is None else item
        )
        key = (self._person.key, site.meta.name, operation, on_one)
        now, answers = time.monotonic(), self._private.answers
        answer_before = answers.get(key)
        if answer_before is not None and answer_before.until > now and not self._person.forwarded_headers:
            return answer_before
        endpoint = self._private.auth_only(site.meta, operation, on_one)
        ctx = self._context(endpoint, f"/{site.table}")
        ctx.model = site.meta
        ctx.scope[IN_PROCESS] = True
        ctx.auth = self._auth
        ctx.authenticated, ctx.csrf_exempt = ctx.auth is not None, True
        response = await answer(endpoint, ctx, self._runtime.watch)
        conditions = () if ctx._query is None else ctx._query.forced
        values = [one for one in conditions if isinstance(one, Forced) and one.op is Op.EQ]
        names = frozenset(one.name for one in values if one.on(site.meta) is not None)
        permission = Permission(response.status == 204, names, now + _KEPT_SECONDS)
        if len(answers) >= _MOST_KEPT:
            answers.clear()
        answers[key] = permission
        return permission
