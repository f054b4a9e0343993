"""The panel of a sealed server: its declaration, its route table, and the way of a request to a page."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from zoneinfo import ZoneInfo

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from maniflex._names import did_you_mean
from maniflex.admin import (
    actions,
    audit,
    bulk_run,
    csrf,
    dashboard,
    entry,
    history,
    inlines,
    records,
    saving,
    search,
    views,
)
from maniflex.admin.actions import ActionForms, relation_problems
from maniflex.admin.audit import Trail
from maniflex.admin.declare import Admin, ModelAdmin, ModelName, Operations, name_of, time_zones
from maniflex.admin.entry import find_person
from maniflex.admin.inlines import inline_problems
from maniflex.admin.operations import pages as operations
from maniflex.admin.operations.parts import DurableParts, rules_of
from maniflex.admin.people import Sessions, Superusers
from maniflex.admin.rendering import SECURITY_HEADERS, Assets, error_page, make_environment, render
from maniflex.admin.site import Computeds, ModelSite, Sites, site_problems
from maniflex.admin.texts import TEXTS, Texts
from maniflex.admin.transfers import imports
from maniflex.admin.transfers import pages as transfer_pages
from maniflex.admin.transfers.runner import TransferRunner
from maniflex.admin.transfers.store import Transfers
from maniflex.admin.views import Views
from maniflex.admin.visit import HTML, PanelRoute, PrivateRoutes, Visit
from maniflex.background.runs.api import Work
from maniflex.config import Config
from maniflex.db.current import OnPrimary
from maniflex.db.port import Adapter
from maniflex.errors import Abort, BodyTooLarge, NotFound
from maniflex.features.actions import Action
from maniflex.http.asgi import Router
from maniflex.middleware.service.service_entry import OwnerEntry
from maniflex.middleware.workflow import Machine
from maniflex.model.class_body import field_texts
from maniflex.model.history_row import is_history
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import unknown_model
from maniflex.pipeline.answer import failure
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Seat
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import takes
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder, RouteDocs
from maniflex.pipeline.runtime import Runtime


class PanelParts:
    """The declaration, the models, the tables and the files of one panel."""

    in_process: InProcess  # attached when the server is assembled

    def __init__(
        self,
        admin: Admin,
        routes: RouteBuilder,
        sites: Sites,
        *,
        title: str,
        api_actions: Sequence[Action],
        own_authenticators: Sequence[str],
        work: Work,
        durable: DurableParts | None = None,
    ) -> None:
        self.admin = admin
        self.sites = sites
        self.title = title
        self.api_actions = tuple(api_actions)
        types = [*(one.form for one in admin.actions), *(one.request for one in api_actions)]
        self.action_forms = ActionForms(types, sites)
        # auth middleware of the application that is no catalogue entry
        self.own_authenticators = tuple(own_authenticators)
        self.durable = durable
        self.operation_rules = rules_of(admin)
        self.runtime: Runtime = routes.runtime
        self.texts = Texts(admin.texts)
        self.assets = Assets(admin.assets, self.texts.of_module())
        self.private = PrivateRoutes(routes, [site for site in sites.all if site.meta.options.headless])
        self.trail = Trail(self.runtime, self.runtime.config.admin_retention)
        self.views = Views(self.runtime)
        self.transfers = Transfers(self.runtime)
        self.work = work
        self.sessions = Sessions(self.runtime, admin.session_lifetime, admin.idle_timeout)
        self.superusers = Superusers(self.runtime)
        self.has_login = admin.auth != "pipeline" and not admin.allow_unauthenticated
        self.linked_routes = [route for route in panel_routes(admin) if route.link]
        self._environment = make_environment(admin.templates)

    def render(self, template: str, **values: Any) -> str:
        """The text of a page."""
        return render(self._environment, template, values)

    def zone(self, name: str) -> ZoneInfo:
        """A time zone by its name, or the panel's own."""
        return ZoneInfo(name if name in time_zones() else self.admin.time_zone)

    def adapter_of(self, meta: ModelMeta) -> Adapter:
        """The database of a model."""
        return self.runtime.stores[meta.cls].adapter


# The route table; the navigation shows those with a link in this order.


PAGES: tuple[PanelRoute, ...] = (
    *entry.ROUTES,
    *dashboard.ROUTES,
    *search.ROUTES,
    *transfer_pages.ROUTES,
    *transfer_pages.EXPORT_ROUTES,
    *imports.ROUTES,
    *audit.ROUTES,
    *views.ROUTES,
    *records.ROUTES,
    *records.REVEAL_ROUTES,
    *inlines.ROUTES,
    *saving.ROUTES,
    *bulk_run.ROUTES,
    *actions.ROUTES,
    *history.ROUTES,
)


def panel_routes(admin: Admin) -> list[PanelRoute]:
    """The routes of a panel: one that only shows has none that write."""
    of_work = operations.ROUTES if admin.operations else ()
    routes = [*of_work, *PAGES, *dashboard.own_page_routes(admin.pages)]
    return [route for route in routes if not (admin.read_only and route.writes)]


_HIDDEN = RouteDocs(hidden=True)
_MOST_CONTROLS = 5_000
_MOST_FILES = 200


class Panel:
    """Answers everything below the panel's path."""

    def __init__(self, parts: PanelParts, routes: RouteBuilder) -> None:
        self.parts = parts
        self._routes = routes
        self._router: Router[PanelRoute] = Router()
        for route in panel_routes(parts.admin):
            self._router.add(route.method, route.path, route)

    def endpoints(self) -> Iterator[Endpoint]:
        """Everything below the path, which the panel finds its own way in."""
        root = self.parts.admin.path
        for method in ("GET", "HEAD", "POST"):
            for path in (root, f"{root}/", f"{root}/{{rest...}}"):
                yield self._routes.bare(
                    method, path, self.serve, owner="the panel", about=_HIDDEN, mount=Mount.ROOT
                )

    def read_sources(self) -> None:
        """Read what models say of their fields, which takes too long for a request: 20 ms for 1,000 lines."""
        for site in self.parts.sites.with_routes.values():
            field_texts(site.meta.cls)

    # -- one request

    async def serve(self, ctx: Context) -> None:
        """Answer a request to the panel with a page, whatever happens."""
        visit = Visit(ctx, self.parts)
        try:
            with OnPrimary():  # sessions, and what the page before has just saved
                ctx.response = await self._answer(visit)
        except Exception as error:  # a refusal, or a failure whose cause goes to the log
            ctx.response = await error_page(visit, failure(ctx, error))

    async def _answer(self, visit: Visit) -> Response:
        ctx = visit.ctx
        method = "GET" if ctx.scope["method"] == "HEAD" else ctx.scope["method"]
        if not visit.inside:
            return visit.redirect("/")
        route, params = self._router.find(visit.inside, method)
        match = None if route is None else route.methods.get(method)
        if route is not None and match is not None and params:
            [*names] = route.names[method]
            visit.params = {names[0]: params} if isinstance(params, str) else params
        if match is not None and match.is_open and not match.needs_token:
            return await match.handler(visit)
        if method == "POST":
            csrf.check_origin(ctx)
        if match is None or not match.is_open:
            visit.person = await find_person(visit)
            if visit.person is None:
                return self._to_login(visit)
        if match is None:
            raise NotFound(self.parts.texts("no_such_page"))
        if method == "POST":
            await self._read_form(visit, match.most_bytes or self.parts.runtime.config.max_upload_size)
        return await match.handler(visit)

    def _to_login(self, visit: Visit) -> Response:
        """Lead to the login; a script is told that the session has ended."""
        if visit.is_fragment:
            raise Abort(401, "UNAUTHORIZED", self.parts.texts("session_ended"))
        if not self.parts.has_login:
            raise Abort(401, "UNAUTHORIZED", self.parts.texts("sign_in_first"))
        target = visit.path if visit.ctx.scope["method"] in ("GET", "HEAD") else "/"
        query = "" if target == "/" else "?" + urlencode({"next": target})
        headers = {**SECURITY_HEADERS, "location": f"{visit.root}/-/login{query}"}
        return Response(302, body=b"", content_type=HTML, headers=headers)

    async def _read_form(self, visit: Visit, most_bytes: int) -> None:
        """Read the controls, and refuse a form that did not come from one of our pages."""
        ctx = visit.ctx
        header = ctx.header(csrf.HEADER) or ""
        page_token = visit.person.csrf if visit.person is not None else visit.cookies.get(csrf.COOKIE, "")
        if header:  # before the body is read, where it can be
            csrf.check_token(page_token, header)
        kind = (ctx.header("content-type") or "").partition(";")[0].strip().lower()
        # Files are taken from people who are inside; a login has none.
        if kind == "multipart/form-data" and visit.person is not None:
            visit.form = await self._multipart_form(ctx, most_bytes)
        elif kind == "application/x-www-form-urlencoded":
            visit.form = await self._plain_form(ctx)
        else:
            visit.form = FormData()
        if any("\x00" in part for pair in visit.form.multi_items() for part in pair if isinstance(part, str)):
            raise Abort(422, "VALIDATION_FAILED", self.parts.texts("nul_in_form"))
        ctx.body_complete = kind != "multipart/form-data" or visit.person is not None
        if not header:
            csrf.check_token(page_token, visit.form_text(csrf.FIELD))

    async def _multipart_form(self, ctx: Context, most_bytes: int) -> FormData:
        stream = _limit(ctx.request.stream(), most_bytes)
        parser = MultiPartParser(
            ctx.request.headers, stream, max_files=_MOST_FILES, max_fields=_MOST_CONTROLS
        )
        try:
            async with aclosing(stream):
                return await parser.parse()
        except (MultiPartException, KeyError):  # KeyError: a form without a boundary
            raise Abort(400, "MULTIPART_ERROR", self.parts.texts("unreadable_form")) from None

    async def _plain_form(self, ctx: Context) -> FormData:
        limit, body = self.parts.runtime.config.max_body_size, bytearray()
        async for part in ctx.request.stream():
            body += part
            if len(body) > limit:
                raise BodyTooLarge(f"the form is larger than {limit} bytes")
        try:
            text = body.decode()
            controls = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_CONTROLS, errors="strict")
        except ValueError:
            raise Abort(400, "MULTIPART_ERROR", self.parts.texts("unreadable_form")) from None
        return FormData(list[tuple[str, str | UploadFile]](controls))


async def _limit(chunks: AsyncIterator[bytes], most_bytes: int) -> AsyncGenerator[bytes, None]:
    """The chunks, until they are too many: files are kept on the disk before anybody looks at them."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > most_bytes:
            raise BodyTooLarge(f"the form is larger than {most_bytes} bytes")
        yield chunk


# From the declaration of a panel to its routes: every mistake named, every default filled in.


_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)+")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ON = ("record", "records", "model")
_RESERVED = ("static", "-")


def panel_problems(
    admin: Admin, config: Config, models: Sequence[ModelMeta] | None, api_actions: Sequence[Action] = ()
) -> Iterator[str]:
    """The mistakes of a declaration, one sentence each; those about models as far as these can be read."""
    yield from _path_problems(admin, config)
    yield from _entry_problems(admin, config)
    yield from _option_problems(admin)
    if models is not None:
        yield from _model_problems(admin, models)
        yield from _form_problems(admin, models, api_actions)


def _path_problems(admin: Admin, config: Config) -> Iterator[str]:
    path, prefix = admin.path, config.path_prefix
    if not _PATH.fullmatch(path):
        yield f"admin: path {path!r} is written like /admin"
        return
    if not prefix:
        yield "admin: the API has no path_prefix, so the panel has no place beside it"
    others = {"path_prefix": prefix, "static_prefix": config.static_prefix, "the API description": "/docs"}
    probes = {f"the probe {probe}": probe for probe in ("/health", "/live", "/ready", "/metrics")}
    for what, place in {**others, **probes}.items():
        if place and (f"{path}/".startswith(f"{place}/") or f"{place}/".startswith(f"{path}/")):
            yield f"admin: path {path!r} would share its paths with {what} {place!r}"


def _entry_problems(admin: Admin, config: Config) -> Iterator[str]:
    auth: Any = admin.auth
    if admin.allow_unauthenticated:
        if config.host not in _LOOPBACK:
            yield f"admin: allow_unauthenticated works only on loopback; the server listens on {config.host}"
        if config.production:
            yield "admin: allow_unauthenticated does not go with production"
        return
    if isinstance(auth, str):
        if auth not in ("superuser", "pipeline"):
            yield f'admin: auth={auth!r} is none of "superuser", "pipeline", a function or an AdminAuth'
    elif hasattr(auth, "login"):
        if not takes(auth.login, 2):
            yield "admin: login of the AdminAuth is called with (ctx, form), which it does not take"
    elif not callable(auth) or not takes(auth, 3):
        yield "admin: a login is called with (ctx, username, password), which it does not take"
    if auth == "superuser" and find_spec("argon2") is None:
        yield 'admin: superusers need argon2-cffi: pip install "maniflex[admin]"'


def _option_problems(admin: Admin) -> Iterator[str]:
    for option in ("templates", "assets"):
        place = getattr(admin, option)
        if place is not None and not Path(place).is_dir():
            yield f"admin: {option}: there is no directory {str(place)!r}"
    if admin.time_zone not in time_zones():
        hint = did_you_mean(admin.time_zone, time_zones())
        yield f"admin: time_zone: there is no zone {admin.time_zone!r}{hint}"
    for key in admin.texts:
        if key not in TEXTS:
            yield f"admin: texts: there is no text {key!r}{did_you_mean(key, TEXTS)}"
    for option in ("session_lifetime", "idle_timeout"):
        if getattr(admin, option).total_seconds() < 60:
            yield f"admin: {option} is at least a minute"
    yield from operations_problems(admin.operations)
    for page in admin.pages:
        if not _PATH.fullmatch(page.path) or page.path.startswith("/-"):
            yield f"admin: page: the path {page.path!r} is written like /sales"
        if not _has_template(admin, page.template):
            place = (
                "templates= names no directory" if admin.templates is None else f"not in {admin.templates}"
            )
            yield f"admin: page {page.path}: there is no template {page.template!r} ({place})"
    for action in admin.actions:
        if action.on not in _ON:
            yield f"admin: action {action.name}: on={action.on!r} is none of {', '.join(_ON)}"


def _has_template(admin: Admin, name: str) -> bool:
    places = [
        files("maniflex.admin") / "templates",
        *([] if admin.templates is None else [Path(admin.templates)]),
    ]
    return any((place / name).is_file() for place in places)


def operations_problems(operations: Any) -> Iterator[str]:
    """The mistakes in `operations=`."""
    if isinstance(operations, bool):
        return
    if not isinstance(operations, Operations):
        yield f"admin: operations={operations!r} is none of True, False and Operations(...)"
        return
    for option in ("role", "view_role"):
        role = getattr(operations, option)
        if not (isinstance(role, str) and role) and not (option == "view_role" and role is None):
            yield f"admin: Operations: {option}={role!r} is no role"
    if isinstance(operations.redact, str) or not all(map(str, operations.redact)):
        yield "admin: Operations: redact lists the names of keys"


def _model_problems(admin: Admin, models: Sequence[ModelMeta]) -> Iterator[str]:
    by_name = {meta.name: meta for meta in models}
    shown_metas = {meta.name for meta in shown_models(admin, models)}
    mentions: list[tuple[str, ModelName]] = [("models", m) for m in admin.models or ()]
    mentions += [("exclude", m) for m in admin.exclude]
    mentions += [("ModelAdmin", one.model) for one in admin.model_admins]
    mentions += [(f"action {one.name}", one.model) for one in admin.actions]
    mentions += [("tenants", admin.tenants)] if admin.tenants is not None else []
    mentions += [("accounts", admin.accounts)] if admin.accounts is not None else []
    for where, model in mentions:
        if problem := unknown_model(model, by_name):
            yield f"admin: {where}: {problem}"
    for one in admin.model_admins:
        meta = by_name.get(one.model_name)
        if meta is not None:
            yield from (f"admin: {problem}" for problem in site_problems(one, meta))
            yield from (f"admin: {problem}" for problem in inline_problems(one, meta, by_name))
    names = [one.model_name for one in admin.model_admins]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"admin: there are two ModelAdmin for {name}"
    for name in shown_metas:
        if by_name[name].table in _RESERVED:
            yield f"admin: {name}: a table called {by_name[name].table!r} has no place in the panel"
    pages = {page.path.strip("/") for page in admin.pages}
    for name in shown_metas:
        if by_name[name].table in pages:
            yield f"admin: page: the path '/{by_name[name].table}' is that of the model {name}"


def _form_problems(admin: Admin, models: Sequence[ModelMeta], api_actions: Sequence[Action]) -> Iterator[str]:
    """Relations in the types of actions that lead nowhere."""
    by_name = {meta.name: meta for meta in models}
    forms = [(f"admin: action {one.name}: form", one.form) for one in admin.actions]
    forms += [
        (f"action {one.method} {one.path}: request", one.request)
        for one in api_actions
        if not one.type_problems()
    ]
    for where, form in forms:
        if form is not None:
            yield from (f"{where}: {problem}" for problem in relation_problems(form, by_name))


def shown_models(admin: Admin, models: Sequence[ModelMeta]) -> list[ModelMeta]:
    """The models in the navigation."""
    chosen_names = None if admin.models is None else {name_of(m) for m in admin.models}
    excluded_names = {name_of(m) for m in admin.exclude}
    private_names = {one.model_name for one in admin.model_admins if one.private}
    return [
        meta
        for meta in models
        if (not meta.options.headless or meta.name in private_names)
        and not meta.is_internal
        and not is_history(meta)
        and (chosen_names is None or meta.name in chosen_names)
        and meta.name not in excluded_names
    ]


def build_panel(
    admin: Admin,
    routes: RouteBuilder,
    models: Sequence[ModelMeta],
    *,
    title: str,
    own_authenticators: Sequence[str],
    api_actions: Sequence[Action],
    machines: Sequence[Machine],
    owner_seats: Sequence[tuple[OwnerEntry, Seat]],
    work: Work,
    durable: DurableParts | None = None,
) -> Panel:
    """The panel of a server that is being sealed."""
    config = routes.runtime.config
    by_name: Mapping[str, ModelMeta] = {meta.name: meta for meta in models}
    admins = {one.model_name: one for one in admin.model_admins}
    computeds = Computeds(routes.computed)

    def site_of(meta: ModelMeta) -> ModelSite:
        return ModelSite(
            meta=meta,
            admin=admins.get(meta.name) or ModelAdmin(meta.name),
            api_path=f"{config.path_prefix}/{meta.table}",
            computed=computeds.of(meta),
            models=by_name,
            actions=tuple(one for one in admin.actions if one.model_name == meta.name),
            read_only=admin.read_only,
            state_rules={
                rules.field.name: rules
                for rules in (machine.states_of(meta) for machine in machines if machine.is_on(meta))
            },
            owner_entries=[
                entry
                for entry, seat in owner_seats
                if meta in seat.models and (seat.operations is None or Operation.CREATE in seat.operations)
            ],
        )

    shown_metas = shown_models(admin, models)
    others = [
        m
        for m in models
        if m not in shown_metas and not (m.options.headless or m.is_internal or is_history(m))
    ]
    sites = Sites([site_of(meta) for meta in shown_metas], [site_of(meta) for meta in others])
    parts = PanelParts(
        admin,
        routes,
        sites,
        title=admin.title or config.service_name or title or "Admin",
        api_actions=api_actions,
        own_authenticators=own_authenticators,
        work=work,
        durable=durable,
    )
    admin.transfer_handler = TransferRunner(parts).handle
    return Panel(parts, routes)
