"""Entering the panel: signing in and out, an account and its sessions, the tenant to work in."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from math import ceil
from typing import Any

from maniflex._client_address import caller_network
from maniflex.admin import csrf
from maniflex.admin.audit import account_names
from maniflex.admin.declare import time_zones
from maniflex.admin.lists import ask_record
from maniflex.admin.people import COOKIE, METHOD, Person, identity_of, put_into_tenant, read_identity
from maniflex.admin.search import Hit, find_records
from maniflex.admin.site import ModelSite
from maniflex.admin.tables import AdminEvent, AdminSession
from maniflex.admin.visit import (
    LANGUAGE_COOKIE,
    THEME_COOKIE,
    ZONE_COOKIE,
    PanelRoute,
    Visit,
    own,
    show,
)
from maniflex.errors import Abort, DeclarationError, NotFound
from maniflex.middleware.auth.passwords import verify_password
from maniflex.model.texts import localized_fields
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.response import Response

LOOPBACK = ("127.0.0.1", "::1")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
WINDOW = timedelta(minutes=15)
MOST_FOR_PAIR = 5  # failures for one account from one network
MOST_FOR_NETWORK = 20
MOST_FOR_ACCOUNT = 50  # from all networks where it has not signed in before
_PROXY_HEADERS = ("x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via")
# Headers of the browser's own request, which mean something else to the requests behind a page.
_NOT_FORWARDED = frozenset((
    "host", "content-length", "content-type", "transfer-encoding", "connection", "expect", "range",
    "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "idempotency-key",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginView:
    """What `login.html` is given."""

    next: str
    error: str
    username: str
    hint: str  # what to type while there is no superuser
    fields: tuple[str, ...] = ()


async def find_person(visit: Visit) -> Person | None:
    """Who asks, or None without a session; 401 or 403 for a caller who may not enter."""
    if visit.panel.admin.allow_unauthenticated:
        return _open_person(visit)
    if visit.panel.admin.auth == "pipeline":
        return await _piped_person(visit)
    token = visit.cookies.get(COOKIE, "")
    session = await visit.panel.sessions.find(token) if token else None
    if session is None:
        return None
    auth = await _current_identity(visit, session)
    if auth is None:
        await visit.panel.sessions.close(session.id)
        return None
    _require_role(visit, auth)
    csrf_token = csrf.token_of_session(token)
    return Person(auth=auth, name=session.name, csrf=csrf_token, session_id=session.id)


def _require_role(visit: Visit, auth: AuthInfo) -> None:
    role = visit.panel.admin.role
    if role is not None and role not in auth.roles:
        raise Abort(403, "FORBIDDEN", visit.t("role_needed", role=role))


async def _current_identity(visit: Visit, session: AdminSession) -> AuthInfo | None:
    """The identity of a session; asks again after a minute whether it still holds."""
    auth = read_identity(session.identity, session.id, session.tenant_id)
    if not visit.panel.sessions.is_due(session):
        return auth
    if visit.panel.admin.auth == "superuser":
        user = await visit.panel.superusers.read(session.user_id)
        fresh = None if user is None else identity_of(user)
    else:
        refresh = getattr(visit.panel.admin.auth, "refresh", None)
        # Without the tenant that was chosen: an identity that came back with it could not leave it.
        own = read_identity(session.identity, "", None)
        fresh = own if refresh is None else await refresh(own)
    if fresh is None:
        return None
    await visit.panel.sessions.confirm(session.id, fresh)
    return put_into_tenant(fresh, session.id, session.tenant_id)


def _open_person(visit: Visit) -> Person:
    """Anybody on this machine; a page of another site is kept out by its name of the host."""
    ctx = visit.ctx
    peer = (ctx.scope.get("client") or ("",))[0]  # behind a socket nobody knows who asks
    host = (ctx.header("host") or "localhost").lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if peer not in LOOPBACK or _is_forwarded(ctx) or name not in _LOCAL_HOSTS:
        raise Abort(403, "FORBIDDEN", visit.t("open_only_here"))
    return Person(auth=None, name=visit.t("nobody"), csrf=visit.csrf_token)


async def _piped_person(visit: Visit) -> Person:
    ctx = visit.ctx
    try:
        await visit.panel.private.auth_step(ctx)
    finally:
        response, ctx.response = ctx.response, None
    if response is not None and response.status != 204:
        error = response.error or {}
        raise Abort(
            response.status,
            str(error.get("code", "UNAUTHORIZED")),
            str(error.get("message", "sign in first")),
        )
    if ctx.auth is None or response is None:
        raise Abort(401, "UNAUTHORIZED", visit.t("sign_in_first"))
    _require_role(visit, ctx.auth)
    names = dict.fromkeys(name.decode("latin-1") for name, _ in ctx.scope["headers"])
    headers = {name: ctx.header(name) or "" for name in names if name not in _NOT_FORWARDED}
    auth = replace(ctx.auth, auth_method=METHOD)
    name = str(auth.claims.get("email") or auth.claims.get("name") or auth.user_id)
    person = Person(auth=auth, name=name, csrf=visit.csrf_token, forwarded_headers=headers)
    if name == auth.user_id:
        labels = await account_names(replace(visit, person=person), [name])
        person = replace(person, name=labels.get(name, name))
    return person


# -- signing in


async def show_login(visit: Visit, *, error: str = "", status: int = 200) -> Response:
    """The login page."""
    if not visit.panel.has_login:
        return visit.redirect("/")
    hint = ""
    if visit.panel.admin.auth == "superuser" and not await visit.panel.superusers.any():
        hint = "maniflex createsuperuser app:server"
    view = LoginView(
        next=visit.safe_next(visit.param("next") or visit.form_text("next") or "/"),
        error=error,
        username=visit.form_text("username")[:254],
        hint=hint,
        fields=tuple(getattr(visit.panel.admin.auth, "fields", ())),
    )
    return await visit.page("login.html", view, title=visit.t("sign_in"), status=status)


async def login(visit: Visit) -> Response:
    """Sign in, or show the page again."""
    ctx = visit.ctx
    if not visit.panel.has_login:
        return visit.redirect("/")
    if not _is_private(ctx):
        return await show_login(visit, error=visit.t("plain_http"), status=403)
    account = _account(visit.form_text("username"))
    event = await _begin_attempt(visit, account)
    if isinstance(event, int):
        _count(visit, "limited")
        return _make_wait(await show_login(visit, error=visit.t("too_many_logins"), status=429), event)
    identity = await _identify(visit)
    if identity is None:
        _count(visit, "refused")
        return await show_login(visit, error=visit.t("wrong_login"), status=401)
    auth, name = identity
    if visit.panel.admin.role is not None and visit.panel.admin.role not in auth.roles:
        _count(visit, "no_role")
        await visit.panel.trail.records.update(event.id, outcome="no role", actor_id=auth.user_id)
        text = visit.t("role_needed", role=visit.panel.admin.role)
        return await show_login(visit, error=text, status=403)
    _count(visit, "ok")
    await _end_old_session(visit)
    token = await visit.panel.sessions.open(
        auth, name, address=ctx.client_ip, user_agent=ctx.header("user-agent") or ""
    )
    await visit.panel.trail.records.update(
        event.id,
        action="login",
        outcome="ok",
        actor_id=auth.user_id,
        actor_name=name[:200],
        tenant_id=auth.tenant_id or None,
    )
    await visit.panel.trail.sweep()
    visit.set_cookie(COOKIE, token, max_age=visit.panel.admin.session_lifetime.total_seconds())
    visit.set_cookie(csrf.COOKIE, "", max_age=0)
    return visit.redirect(visit.safe_next(visit.form_text("next") or "/"))


def _count(visit: Visit, outcome: str) -> None:
    numbers = visit.ctx.runtime.request_numbers
    if numbers is not None:
        numbers.admin_logins[outcome] += 1


async def _end_old_session(visit: Visit) -> None:
    """A login makes a new session; the one that the browser had goes."""
    token = visit.cookies.get(COOKIE, "")
    session = await visit.panel.sessions.find(token) if token else None
    if session is not None:
        await visit.panel.sessions.close(session.id)


async def _identify(visit: Visit) -> tuple[AuthInfo, str] | None:
    """Who signs in, and the name to show."""
    username, password = visit.form_text("username"), visit.form_text("password")
    if visit.panel.admin.auth == "superuser":
        user = await visit.panel.superusers.verify(username, password)
        return None if user is None else (identity_of(user), user.email)
    method: Any = getattr(visit.panel.admin.auth, "login", None)
    if method is None:
        own_login: Callable[[Context, str, str], Awaitable[AuthInfo | None]] = visit.panel.admin.auth  # type: ignore[assignment]
        auth = await own_login(visit.ctx, username, password)
    else:
        auth = await method(visit.ctx, {k: v for k, v in visit.form.items() if isinstance(v, str)})
    if auth is None or not auth.user_id:
        return None
    return replace(auth, auth_method=METHOD), username or auth.user_id


def _is_private(ctx: Context) -> bool:
    """Whether nobody on the way can read the password: TLS, or a browser on this machine."""
    if ctx.scheme == "https":
        return True
    return ctx.client_ip in (*LOOPBACK, "") and not _is_forwarded(ctx)


def _is_forwarded(ctx: Context) -> bool:
    """Whether a proxy passed the request on, so that the machine of the browser is another one."""
    return any(ctx.header(name) is not None for name in _PROXY_HEADERS)


# -- limits


async def _begin_attempt(visit: Visit, account: str, reason: str = "") -> AdminEvent | int:
    """Note an attempt as failed before it is looked at, so that many at once are all counted.

    Seconds to wait come back in place of the event where there were too many.
    """
    wait = await _seconds_to_wait(visit, account, own=0)
    if wait is not None:
        return wait
    trail = visit.panel.trail
    event = await trail.note(visit, "login_failed", account=account, outcome="refused", reason=reason)
    wait = await _seconds_to_wait(visit, account, own=1)
    if wait is not None:
        await trail.records.update(event.id, action="login_limited", outcome="limited")
        return wait
    return event


async def _seconds_to_wait(visit: Visit, account: str, own: int) -> int | None:
    """How long a network or an account waits that has had too many attempts; `own` are noted already.

    A stranger can use up what all networks may try for an account. Its owner comes in from a network that it
    has signed in from before, where the account has a count of its own.
    """
    trail, network = visit.panel.trail, caller_network(visit.ctx.client_ip)
    now = visit.panel.runtime.clock.now()
    limits = (
        (MOST_FOR_PAIR, {"network": network, "account": account}),
        (MOST_FOR_NETWORK, {"network": network}),
        (MOST_FOR_ACCOUNT, {"account": account}),
    )
    for most, of in limits:
        failures = await trail.failures(now - WINDOW, most=most, **of)
        if len(failures) - own >= most:
            if "network" not in of and await trail.has_signed_in(network=network, account=account):
                continue
            seconds = (failures[most - 1 if own == 0 else most].created_at + WINDOW - now).total_seconds()
            return max(ceil(seconds), 1)
    return None


def _make_wait(response: Response, seconds: int) -> Response:
    response.set_header("retry-after", str(seconds))
    return response


def _account(username: str) -> str:
    """What attempts for an account are counted under; what was typed may be a password."""
    return sha256(" ".join(username.casefold().split()).encode("utf-8", "replace")).hexdigest()[:32]


# Signing out, one's sessions and password, theme and time zone; and the files of the panel.


# The first that fits: most browsers also call themselves by the names of others.
_BROWSERS = (
    ("Edge", r"Edg\w*/(\d+)"), ("Opera", r"OPR/(\d+)"), ("Firefox", r"Firefox/(\d+)"),
    ("Chrome", r"Chrome/(\d+)"), ("Safari", r"Version/(\d+)\S* .*Safari/"),
)  # fmt: skip
_SYSTEMS = (
    ("Windows", "Windows"), ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"),
    ("macOS", "Mac OS X"), ("Linux", "Linux"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One browser that is signed in."""

    address: str
    browser: str  # its name and system
    user_agent: str  # all that it says of itself
    seen_at: str
    is_this: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """What `account.html` is given."""

    name: str
    roles: tuple[str, ...]
    sessions: Sequence[SessionRow]
    has_password: bool
    theme: str
    zone: str
    zones: Sequence[str]
    language: str
    languages: Sequence[str]  # of records; none where no text has translations
    usual_language: str
    errors: Sequence[str] = ()


async def serve_asset(visit: Visit) -> Response:
    return visit.panel.assets.serve(visit.params["file"])


async def logout(visit: Visit) -> Response:
    """End this session."""
    person = visit.signed_in
    if person.session_id:
        await visit.panel.sessions.close(person.session_id)
        await visit.panel.trail.note(visit, "logout")
    visit.set_cookie(COOKIE, "", max_age=0)
    return visit.redirect("/-/login" if visit.panel.has_login else "/")


async def logout_everywhere(visit: Visit) -> Response:
    """End all sessions of this person."""
    await visit.panel.sessions.close_all(_require_session(visit))
    await visit.panel.trail.note(visit, "logout", reason="everywhere")
    visit.set_cookie(COOKIE, "", max_age=0)
    return visit.redirect("/-/login")


async def show_account(visit: Visit, errors: Sequence[str] = (), status: int = 200) -> Response:
    """The page of one's own account."""
    person = visit.signed_in
    sessions = await visit.panel.sessions.of(person.id) if person.session_id else []
    view = AccountView(
        name=person.name,
        roles=tuple(person.auth.roles) if person.auth is not None else (),
        sessions=[_session_row(visit, session) for session in sessions],
        has_password=visit.panel.admin.auth == "superuser" and bool(person.session_id),
        theme=visit.cookies.get(THEME_COOKIE, ""),
        zone=visit.zone.key,
        zones=sorted(time_zones()),
        language=visit.language,
        languages=_languages(visit),
        usual_language=visit.ctx.runtime.config.locale.default,
        errors=tuple(errors),
    )
    return await visit.page("account.html", view, title=visit.t("account"), status=status)


def _languages(visit: Visit) -> Sequence[str]:
    """The languages that a person can choose for records."""
    has_texts = any(localized_fields(site.meta) for site in visit.panel.sites.by_table.values())
    return visit.ctx.runtime.config.locale.supported if has_texts else ()


def browser_name(user_agent: str) -> str:
    """The browser and the system in a few words, as far as they are known ones.

    >>> browser_name("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/141.0 Safari/537.36")
    'Chrome 141, Linux'
    """
    name = next(
        (f"{label} {match[1]}" for label, pattern in _BROWSERS if (match := re.search(pattern, user_agent))),
        "",
    )
    system = next((label for label, word in _SYSTEMS if word in user_agent), "")
    return ", ".join(part for part in (name, system) if part) or user_agent


def _session_row(visit: Visit, session: AdminSession) -> SessionRow:
    return SessionRow(
        address=session.address,
        browser=browser_name(session.user_agent),
        user_agent=session.user_agent,
        seen_at=session.seen_at.astimezone(visit.zone).strftime("%Y-%m-%d %H:%M %Z"),
        is_this=session.id == visit.signed_in.session_id,
    )


async def change_password(visit: Visit) -> Response:
    """Change one's password, which ends the other sessions."""
    user_id = _require_session(visit)
    superusers = visit.panel.superusers
    user = await superusers.read(user_id) if visit.panel.admin.auth == "superuser" else None
    if user is None:
        raise NotFound(visit.t("no_such_page"))
    # A stolen session must not find the password out: a guess here counts as one of the login.
    event = await _begin_attempt(visit, _account(user.email), reason="current password")
    if isinstance(event, int):
        return _make_wait(await show_account(visit, [visit.t("too_many_logins")], 429), event)
    if not await verify_password(visit.form_text("password"), user.password):
        return await show_account(visit, [visit.t("wrong_password")], 422)
    events = visit.panel.trail.records
    await events.update(event.id, action="password", reason="")
    if visit.form_text("new_password") != visit.form_text("new_password_again"):
        return await show_account(visit, [visit.t("passwords_differ")], 422)
    try:
        await superusers.set_password(user, visit.form_text("new_password"))
    except DeclarationError as error:
        return await show_account(visit, list(error.problems), 422)
    await visit.panel.sessions.close_all(user_id, besides=visit.signed_in.session_id)
    await events.update(event.id, outcome="ok")
    return visit.redirect("/-/account", ok=visit.t("password_changed"))


async def set_preferences(visit: Visit) -> Response:
    """Remember theme, time zone and the language of records in this browser."""
    theme, zone = visit.form_text("theme"), visit.form_text("zone")
    visit.set_cookie(THEME_COOKIE, theme if theme in ("light", "dark") else "")
    if zone in time_zones():
        visit.set_cookie(ZONE_COOKIE, zone.replace("/", "%2F"))
    if "language" in visit.form:
        code = visit.form_text("language")
        visit.set_cookie(LANGUAGE_COOKIE, code if code in _languages(visit) else "")
    return visit.redirect("/-/account", ok=visit.t("saved"))


def _require_session(visit: Visit) -> str:
    """The id of a person who signed in here."""
    if not visit.signed_in.session_id:
        raise Abort(403, "FORBIDDEN", visit.t("no_account_here"))
    return visit.signed_in.id


# Choosing the tenant to work in, for an identity that belongs to none; nobody leaves its own.


_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantView:
    """What `tenant.html` is given."""

    current: str
    hits: Sequence[Hit]
    url: str


def _site(visit: Visit) -> ModelSite:
    site = visit.tenant_site
    if site is None:
        raise NotFound(visit.t("no_such_page"))
    if not visit.signed_in.may_choose_tenant:
        raise Abort(403, "FORBIDDEN", visit.t("tenant_fixed"))
    return site


def _outside_tenants(visit: Visit) -> Visit:
    """The same person in no tenant: what can be chosen does not depend on what was chosen before."""
    person = visit.signed_in
    auth = None if person.auth is None else replace(person.auth, tenant_id="", tenant_chosen=False)
    return replace(visit, person=replace(person, auth=auth))


async def show_tenants(visit: Visit) -> Response:
    """The tenants that this identity may list."""
    site = _site(visit)
    hits = await find_records(_outside_tenants(visit), site, visit.param("q").strip()[:200], _MOST)
    view = TenantView(current=visit.signed_in.tenant_id, hits=hits, url=visit.url("-", "tenant"))
    return await visit.page("tenant.html", view, title=visit.t("change_tenant"))


async def choose_tenant(visit: Visit) -> Response:
    """Work in a tenant from now on, or in none."""
    site, person = _site(visit), visit.signed_in
    tenant = visit.form_text("tenant").strip()
    if tenant:
        await ask_record(_outside_tenants(visit), site, tenant)
    await visit.panel.sessions.update(person.session_id, tenant_id=tenant or None)
    await visit.panel.trail.note(visit, "tenant", model=site.meta.name, record_id=tenant)
    return visit.redirect("/", ok=visit.t("tenant_chosen"))


ROUTES = (
    PanelRoute("GET", "/-/login", show_login, is_open=True),
    PanelRoute("POST", "/-/login", login, is_open=True, needs_token=True),
    PanelRoute("GET", "/static/{file}", serve_asset, is_open=True),
    own("/-/logout", logout),
    show("/-/account", show_account),
    own("/-/account/password", change_password),
    own("/-/account/logout-all", logout_everywhere),
    own("/-/account/preferences", set_preferences),
    show("/-/tenant", show_tenants),
    own("/-/tenant", choose_tenant),
)
