"""Signing out, one's sessions and password, theme and time zone; and the files of the panel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from maniflex.admin.parts import time_zones
from maniflex.admin.superusers import COOKIE
from maniflex.admin.tables import AdminSession
from maniflex.admin.visit import THEME_COOKIE, ZONE_COOKIE, PanelRoute, Visit, own, show
from maniflex.errors import Abort, DeclarationError, NotFound
from maniflex.middleware.auth.passwords import verify_password
from maniflex.pipeline.response import Response

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
        errors=tuple(errors),
    )
    return await visit.page("account.html", view, title=visit.t("account"), status=status)


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
    if not await verify_password(visit.form_text("password"), user.password):
        return await show_account(visit, [visit.t("wrong_password")], 422)
    if visit.form_text("new_password") != visit.form_text("new_password_again"):
        return await show_account(visit, [visit.t("passwords_differ")], 422)
    try:
        await superusers.set_password(user, visit.form_text("new_password"))
    except DeclarationError as error:
        return await show_account(visit, list(error.problems), 422)
    await visit.panel.sessions.close_all(user_id, besides=visit.signed_in.session_id)
    await visit.panel.trail.note(visit, "password")
    return visit.redirect("/-/account", ok=visit.t("password_changed"))


async def set_preferences(visit: Visit) -> Response:
    """Remember theme and time zone in this browser."""
    theme, zone = visit.form_text("theme"), visit.form_text("zone")
    visit.set_cookie(THEME_COOKIE, theme if theme in ("light", "dark") else "")
    if zone in time_zones():
        visit.set_cookie(ZONE_COOKIE, zone.replace("/", "%2F"))
    return visit.redirect("/-/account", ok=visit.t("saved"))


def _require_session(visit: Visit) -> str:
    """The id of a person who signed in here."""
    if not visit.signed_in.session_id:
        raise Abort(403, "FORBIDDEN", visit.t("no_account_here"))
    return visit.signed_in.id


ROUTES = (
    PanelRoute("GET", "/static/{file}", serve_asset, is_open=True),
    own("/-/logout", logout),
    show("/-/account", show_account),
    own("/-/account/password", change_password),
    own("/-/account/logout-all", logout_everywhere),
    own("/-/account/preferences", set_preferences),
)
