"""What the layout of every page is given, and the headers of every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
