"""What the layout of every page is given, and the headers of every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.pipeline.response import Response

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
    " trusted-types maniflex"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class NavItem:
    """A link of the navigation."""

    label: str
    url: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class NavGroup:
    """Links that belong together; the first group has no label."""

    label: str
    items: Sequence[NavItem]


@dataclass(frozen=True, slots=True)
class Flash:
    """What the page before has to say."""

    level: str  # ok, warning or error
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What `layout.html` is given, as `layout`."""

    title: str
    page_title: str
    root: str  # where the panel begins
    style: str
    module: str
    icon: str
    navigation: Sequence[NavGroup]
    person: str | None  # None on the login page
    has_account: bool
    csrf: str
    banner: str
    flash: Flash | None
    theme: str  # light, dark or as the system says
    zone: str
    crumbs: Sequence[tuple[str, str]]  # labels and addresses
    is_fragment: bool
    tenant: str
    tenants_url: str


# Pages for what cannot be shown or done: the API's own code and message, inside the layout.


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorView:
    """What `error.html` is given."""

    status: int
    code: str
    message: str
    request_id: str
    details: tuple[tuple[str, str], ...] = ()
    hint: str = ""  # of an authenticator that refuses the panel: the line to add


async def error_page(visit: Visit, response: Response) -> Response:
    """The page of a refusal or of a failure; of the latter it says no more than its code."""
    error = response.error or {}
    details = error.get("details")
    view = ErrorView(
        status=response.status,
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
        request_id=visit.ctx.request_id,
        details=tuple(
            (str(one.get("field", "")), str(one.get("message", "")))
            for one in (details if isinstance(details, list) else ())
            if isinstance(one, dict)
        ),
        hint=_authenticator_hint(visit) if response.status == 401 and visit.person is not None else "",
    )
    try:
        page = await visit.page("error.html", view, title=view.code, status=response.status)
    except Exception:
        visit.ctx.logger.exception("the error page of the panel failed")
        body = f"{view.status} {view.code} ({view.request_id})".encode()
        page = Response(500, body=body, content_type="text/plain; charset=utf-8", headers=SECURITY_HEADERS)
    for name, value in (response.headers or {}).items():
        if name in ("retry-after", "www-authenticate"):
            page.set_header(name, value)
    return page


def _authenticator_hint(visit: Visit) -> str:
    """The middleware of the application that may have refused an identity of the panel."""
    steps = visit.panel.own_authenticators
    if not steps or visit.signed_in.forwarded_headers:
        return ""
    return visit.t("authenticator_hint", names=", ".join(steps))
