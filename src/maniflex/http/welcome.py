"""`GET /`: a small page for a browser on the machine itself, which leads to the others."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from html import escape
from pathlib import Path

from maniflex.config import Config
from maniflex.errors import NotFound
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder, RouteDocs

RELOAD_ERROR = "_MANIFLEX_RELOAD_ERROR"  # names the file with what is wrong with the code that was saved last
_STYLE = """
:root { color-scheme: light dark; font: 100%/1.6 system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
body { max-width: 34rem; margin: 14vh auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; } ul { padding: 0; list-style: none; } pre { overflow: auto; }
li { border-top: 1px solid #8884; } a { display: block; padding: .6rem 0; }
"""
_STYLE_HASH = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_LOOPBACK = ("127.0.0.1", "::1")
_HIDDEN = RouteDocs(hidden=True)


class Welcome:
    """The page; other clients than those of the machine itself get a 404."""

    def __init__(self, routes: RouteBuilder, pages: Mapping[str, str]) -> None:
        self._routes = routes
        self._pages = pages  # by what they are called

    def endpoints(self) -> Iterator[Endpoint]:
        for method in ("GET", "HEAD"):
            yield self._routes.bare(method, "/", self._show, owner="welcome", about=_HIDDEN, mount=Mount.ROOT)

    async def _show(self, ctx: Context) -> None:
        is_forwarded = ctx.header("x-forwarded-for") is not None  # a proxy on the machine asks for others
        if is_forwarded or ctx.client_ip not in _LOOPBACK:
            raise NotFound("no such path")
        root = escape(ctx.scope.get("root_path") or "")
        items = "".join(
            f'<li><a href="{root}{escape(path)}">{escape(text)}</a></li>'
            for text, path in self._pages.items()
        )
        page = f"<h1>It runs</h1><ul>{items}</ul>"
        error = _reload_error()
        if error:
            page = f"<h1>The code that was saved last does not start</h1><pre>{escape(error)}</pre>{page}"
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>maniflex</title>'
        )
        body = f'<!doctype html><html lang="en">{head}<style>{_STYLE}</style><body><main>{page}</main>'
        ctx.response = Response(
            200, body=body.encode(), content_type="text/html; charset=utf-8", headers=_HEADERS
        )


def _reload_error() -> str:
    path = os.environ.get(RELOAD_ERROR)
    try:
        return Path(path).read_text() if path else ""
    except OSError:  # there is none
        return ""


# The addresses of a server that people look at.


def pages_of(config: Config, panel: str = "") -> dict[str, str]:
    """The paths of the pages that are on, by what they are called."""
    pages = {"panel": f"{panel}/"} if panel else {}
    if config.openapi_enabled and config.docs_enabled:
        pages["API reference"] = "/docs"
    if config.openapi_enabled:
        pages["API description"] = f"{config.path_prefix}/openapi.json"
    if "health" in config.probes:
        pages["health"] = "/health"
    if config.metrics_enabled and not config.metrics_port:
        pages["numbers"] = "/metrics"
    return pages
