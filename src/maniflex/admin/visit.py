"""One request to the panel: who asks, what was sent, and how pages answer it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit
from zoneinfo import ZoneInfo

from maniflex._json import read_back
from maniflex.admin import csrf
from maniflex.admin.call import Api
from maniflex.admin.declare import name_of
from maniflex.admin.operations.parts import may_see
from maniflex.admin.people import AdminContext, Person
from maniflex.admin.rendering import SECURITY_HEADERS, Flash, Layout, NavGroup, NavItem
from maniflex.admin.site import ModelSite
from maniflex.admin.texts import Texts
from maniflex.errors import Abort, NotFound
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.query.parse import pairs

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts
    from maniflex.files.model import StoredFile


HTML = "text/html; charset=utf-8"
FLASH_COOKIE = "maniflex_admin_flash"
THEME_COOKIE = "maniflex_admin_theme"
ZONE_COOKIE = "maniflex_admin_zone"
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
        return Api(self.panel.in_process, self.panel.private, self.signed_in, self.ctx)

    def admin_context(self, form: Any = None) -> AdminContext:
        """What code of the application is given that acts for this person."""
        return AdminContext(self.signed_in, self.api, self.ctx, form)

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone that this person chose."""
        name = self.cookies.get(ZONE_COOKIE, "").replace("%2F", "/")
        return self.panel.zone(name)

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
        durable = self.panel.durable
        is_used = durable is not None and durable.processes.is_used
        return is_used and may_see(self.panel.operation_rules, self.signed_in)

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
