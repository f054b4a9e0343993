"""The panel of a sealed server: what it is made of, its route table, and the way of a request to a page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl, urlencode
from zoneinfo import ZoneInfo

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from maniflex.admin import (
    actions,
    audit,
    bulk_run,
    csrf,
    dashboard,
    entry,
    forms,
    history,
    records,
    saving,
    search,
    views,
)
from maniflex.admin.actions import ActionForms
from maniflex.admin.audit import Trail
from maniflex.admin.call import PrivateRoutes
from maniflex.admin.declare import Admin, time_zones
from maniflex.admin.entry import find_person
from maniflex.admin.operations import pages as operations
from maniflex.admin.operations.parts import DurableParts, rules_of
from maniflex.admin.people import Sessions, Superusers
from maniflex.admin.rendering import SECURITY_HEADERS, Assets, error_page, make_environment, render
from maniflex.admin.site import Sites
from maniflex.admin.texts import Texts
from maniflex.admin.transfers import imports
from maniflex.admin.transfers import pages as transfer_pages
from maniflex.admin.transfers.store import Transfers
from maniflex.admin.views import Views
from maniflex.admin.visit import HTML, PanelRoute, Visit
from maniflex.background.runs.api import Work
from maniflex.db.current import OnPrimary
from maniflex.db.port import Adapter
from maniflex.errors import Abort, BodyTooLarge, NotFound
from maniflex.features.actions import Action
from maniflex.http.routing import Router
from maniflex.model.class_body import field_texts
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.answer import failure
from maniflex.pipeline.context import Context
from maniflex.pipeline.in_process import InProcess
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
    *forms.ROUTES,
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
