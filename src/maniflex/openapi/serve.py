"""`/openapi.json` and `/docs`: the description of the API, behind a pipeline of its own.

The document is made on a thread, when a server has started to listen or when it is first asked for, and kept,
also compressed. Middleware of the generate or response step gets a copy each time, so nothing it does to one
answer is seen in another.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any, cast

import msgspec

from maniflex.pipeline.chain import Handler
from maniflex.pipeline.context import Context, OpenAPIContext
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import OpenAPIPipeline
from maniflex.pipeline.response import Response, digest_of, names_tag
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder, RouteDocs

_SCRIPT = "text/javascript; charset=utf-8"
ASSETS = {
    "reference.css": "text/css; charset=utf-8",
    **dict.fromkeys(("reference.js", "schemas.js", "samples.js", "try.js"), _SCRIPT),
}
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'"
_ABOUT = RouteDocs(
    name="get_openapi",
    summary="This description",
    tags=("Documentation",),
    description="The OpenAPI 3.1 document that you are reading, for programs.",
    answers={200: {"type": "object"}, 304: None},
    answer_texts={
        200: "The document, with an `ETag`.",
        304: "The caller has this version already: `If-None-Match` names its `ETag`.",
    },
    errors=(500,),
)
_PAGE = RouteDocs(hidden=True)


class Description:
    """The endpoints that show the API description."""

    def __init__(
        self, routes: RouteBuilder, pipeline: OpenAPIPipeline, make: Callable[[], dict[str, Any]]
    ) -> None:
        self._routes = routes
        self._config = routes.runtime.config
        self._make = make
        self._plain = not (pipeline.generate.registrations or pipeline.response.registrations)
        self._is_guarded = bool(pipeline.auth.registrations)
        self._document: bytes | None = None
        self._gzip_document: bytes | None = None
        self._digest = ""
        self._making = threading.Lock()
        compose = routes.composer.steps
        self.generate = compose(("generate",), {"generate": self._generate}, None, Operation.READ, item=False)

    def endpoints(self) -> Iterator[Endpoint]:
        """The document, and the page that shows it."""
        if self._config.openapi_enabled:
            yield from self._document_endpoints()
            if self._config.docs_enabled:
                yield from self._page_endpoints()

    def _document_endpoints(self) -> Iterator[Endpoint]:
        get = replace(_ABOUT, security=None if self._is_guarded else ())
        head = replace(get, name="head_openapi", summary="Headers of this description")
        for method, about in (("GET", get), ("HEAD", head)):
            yield self._routes.endpoint(
                method,
                "/openapi.json",
                Operation.READ,
                steps=("auth", "generate"),
                defaults={"generate": self._generate},
                respond=self._respond,
                owner="openapi",
                about=about,
            )

    def _page_endpoints(self) -> Iterator[Endpoint]:
        """The page and its assets at the root. Only the page has something to guard."""
        handlers = {"/docs/": _to_docs, **{f"/docs/{name}": self._asset(name) for name in ASSETS}}
        for method in ("GET", "HEAD"):
            yield self._routes.endpoint(
                method,
                "/docs",
                Operation.READ,
                steps=("auth", "page"),
                defaults={"page": self._page},
                owner="docs",
                about=_PAGE,
                mount=Mount.ROOT,
            )
            for path, handler in handlers.items():
                yield self._routes.bare(method, path, handler, owner="docs", about=_PAGE, mount=Mount.ROOT)

    # -- the document --------------------------------------------------------------------------

    def document(self) -> bytes:
        """The document as it is without any middleware."""
        with self._making:
            if self._document is None:
                with _no_collection():
                    document = msgspec.json.encode(self._make())
                self._digest = digest_of(document)
                self._gzip_document = gzip.compress(document, 6, mtime=0)
                self._document = document
        return self._document

    def make_early(self) -> None:
        """Begin to make the document on a thread, so that nobody waits for it."""
        if self._config.openapi_enabled and self._document is None:
            threading.Thread(target=self._try_to_make, name="maniflex-openapi", daemon=True).start()

    def _try_to_make(self) -> None:
        with suppress(Exception):  # the request that asks for it is told
            self.document()

    async def _generate(self, context: Context) -> None:
        ctx = cast(OpenAPIContext, context)
        if self._document is None:  # hundreds of models take seconds, in which others are answered
            await asyncio.to_thread(self.document)
        root = ctx.scope.get("root_path")
        if self._plain and not root:
            return
        ctx.spec = msgspec.json.decode(self.document())
        if root:  # mounted under another application: the paths begin there
            ctx.spec["servers"] = [{"url": root}]

    def _respond(self, context: Context) -> None:
        ctx = cast(OpenAPIContext, context)
        if ctx.response is not None:
            return
        body = msgspec.json.encode(ctx.spec) if ctx.spec else self.document()
        digest = digest_of(body) if ctx.spec else self._digest
        encoding = {}
        if not ctx.spec and self._gzip_document and takes_gzip(ctx.header("accept-encoding") or ""):
            # Other bytes need another tag: a cache would else put half of one form behind half of the other.
            body, encoding, digest = self._gzip_document, {"content-encoding": "gzip"}, f"{digest}-gzip"
        headers = {"etag": f'"{digest}"', "cache-control": "no-cache", "vary": "accept-encoding"}
        if names_tag(ctx.header("if-none-match") or "", digest):
            ctx.response = Response(304, headers=headers)
        else:
            ctx.response = Response(200, body=body, headers={**headers, **encoding})

    # -- the page ------------------------------------------------------------------------------

    def _page(self, ctx: Context) -> None:
        # Relative addresses hold wherever the application is mounted.
        place = f"{self._config.path_prefix}/openapi.json".lstrip("/")
        html = _read("reference.html").replace(b"{openapi}", escape(place).encode())
        ctx.response = Response(200, body=html, content_type="text/html; charset=utf-8", headers=_HEADERS)

    def _asset(self, name: str) -> Handler:
        async def serve(ctx: Context) -> None:
            headers = {**_HEADERS, "cache-control": "no-cache"}
            ctx.response = Response(200, body=_read(name), content_type=ASSETS[name], headers=headers)

        return serve


@contextmanager
def _no_collection() -> Iterator[None]:
    """A block without the garbage collector, which would walk all objects again and again for a document of
    hundreds of models and hold up every request meanwhile; half a second with 300 models."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def takes_gzip(accept: str) -> bool:
    """Whether an `Accept-Encoding` takes gzip: by name, or by `*`, and not with a weight of zero."""
    weights = {}
    for part in accept.lower().split(","):
        coding, _, weight = part.partition(";")
        weights[coding.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return weights.get("gzip", weights.get("*", False))


_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def _read(name: str) -> bytes:
    return (files("maniflex.openapi") / "reference" / name).read_bytes()


async def _to_docs(ctx: Context) -> None:
    ctx.response = Response(308, body=b"", headers={"location": f"{ctx.scope.get('root_path') or ''}/docs"})
