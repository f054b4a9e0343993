"""`GET /`: a small page for a browser on the machine itself, which leads to the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from maniflex.errors import NotFound
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.response import Response
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.routes import RouteBuilder

RELOAD_ERROR = "_MANIFLEX_RELOAD_ERROR"  # names the file with what is wrong with the code that was saved last
_HEADERS = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
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
        body = f'<!doctype html><meta charset="utf-8"><title>maniflex</title>{page}'
        ctx.response = Response(
            200, body=body.encode(), content_type="text/html; charset=utf-8", headers=_HEADERS
        )


def _reload_error() -> str:
    path = os.environ.get(RELOAD_ERROR)
    try:
        return Path(path).read_text() if path else ""
    except OSError:  # there is none
        return ""
