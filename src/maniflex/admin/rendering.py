"""Pages: the layout around them, templates, and the headers they are sent with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
    nodes,
)
from jinja2.bccache import Bucket, BytecodeCache
from jinja2.exceptions import TemplateSyntaxError
from markupsafe import Markup, escape

from maniflex.admin.widgets import render_markdown
from maniflex.errors import NotFound
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


# Templates → pages: ours, or those of the application with the same names. Everything in them is
# escaped.


_LINK = re.compile(r"(https?://[^\s<>\"']+|mailto:[^\s<>\"']+)")


class _EscapingEnvironment(Environment):
    """An environment in which no template can switch escaping off."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(nodes.ScopedEvalContextModifier):
            raise TemplateSyntaxError("autoescape cannot be switched", node.lineno, name, filename)
        return tree


class _CompiledTemplates(BytecodeCache):
    """Compiled templates by their name and text, for all panels of the process: tests make hundreds."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        assert bucket.code is not None
        self._codes[bucket.key, bucket.checksum] = bucket.code


_compiled = _CompiledTemplates()


def make_environment(own: str | Path | None) -> Environment:
    """The templates of a panel; a file in `own` stands before ours, which stays there as `panel/<name>`."""
    ours = PackageLoader("maniflex.admin", "templates")
    loaders: list[Any] = [] if own is None else [PrefixLoader({"panel": ours}), FileSystemLoader(str(own))]
    environment = _EscapingEnvironment(
        loader=ChoiceLoader([*loaders, ours]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        bytecode_cache=_compiled,
    )
    for unsafe in ("safe",):
        del environment.filters[unsafe]
    environment.filters["markdown"] = render_markdown
    environment.filters["marked"] = mark_hits
    environment.filters["linked"] = link_addresses
    return environment


def mark_hits(text: str, words: str) -> Markup:
    """The text with the words of a search marked."""
    parts = [re.escape(word) for word in words.split() if len(word) > 1]
    if not parts:
        return escape(text)
    pieces = re.split(f"({'|'.join(parts)})", text, flags=re.IGNORECASE)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(piece) if i % 2 else escape(piece) for i, piece in enumerate(pieces)
    )


def link_addresses(text: str) -> Markup:
    """The text with links for web and mail addresses in it, and for nothing else."""
    return Markup("").join(
        Markup('<a href="{0}" rel="noreferrer noopener">{0}</a>').format(piece) if i % 2 else escape(piece)
        for i, piece in enumerate(_LINK.split(text))
    )


def render(environment: Environment, template: str, values: Mapping[str, Any]) -> str:
    """The text of a page."""
    return environment.get_template(template).render(values)


# Style sheet, module and icon, under names with their digest, so that browsers keep them for good.


STYLE, MODULE, ICON = "panel.css", "panel.js", "panel.svg"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files below `static/`: ours, and those of the application in front of them.

    The module begins with `panelTexts`, the words of this panel that it shows.
    """

    def __init__(self, own: str | Path | None, texts: Mapping[str, str]) -> None:
        contents = {
            name: (files("maniflex.admin") / "assets" / name).read_bytes() for name in (STYLE, MODULE, ICON)
        }
        if own is not None:
            contents |= {p.name: p.read_bytes() for p in sorted(Path(own).iterdir()) if p.is_file()}
        # Not a name of the module: one of the application may have it, too.
        contents[MODULE] = f"globalThis.panelTexts = {json.dumps(dict(texts))};\n".encode() + contents[MODULE]
        self._plain = contents
        self._hashed = {hashed_name(name, content): name for name, content in contents.items()}
        names = {name: digest_name for digest_name, name in self._hashed.items()}
        self.style, self.module, self.icon = names[STYLE], names[MODULE], names[ICON]

    def serve(self, name: str) -> Response:
        """The file; one that is asked for by its digest may be kept."""
        plain = self._hashed.get(name, name)
        content = self._plain.get(plain)
        kind = _TYPES.get(Path(plain).suffix.lower())
        if content is None or kind is None:
            raise NotFound("no such file")
        caching = _FOREVER if name in self._hashed else "no-cache"
        return Response(
            200, body=content, content_type=kind, headers={**SECURITY_HEADERS, "cache-control": caching}
        )


def hashed_name(name: str, content: bytes) -> str:
    """`panel.css` → `panel.1f2e3d4c.css`."""
    path = Path(name)
    return f"{path.stem}.{sha256(content).hexdigest()[:12]}{path.suffix}"
