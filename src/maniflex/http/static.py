"""Files of a directory, below a prefix of their own."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

_REFUSALS = {
    404: (b"NOT_FOUND", b"no such file"),
    405: (b"METHOD_NOT_ALLOWED", b"method not allowed"),
}
_WELL_KNOWN = ".well-known"  # by its standard the one such name that is public
_FAILURE = (b"STATIC_ERROR", b"the file could not be served")


class _Published(StaticFiles):
    """The files of a directory, but for those that nobody means to publish: names that begin with a dot."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if _is_hidden(path) else super().lookup_path(path)


def _is_hidden(path: str) -> bool:
    first, *others = os.path.normpath(path).split(os.sep)
    names = others if first in (".", _WELL_KNOWN) else [first, *others]
    return any(name.startswith(".") for name in names)


def static_app(directory: Path, prefix: str) -> Starlette:
    """An application that serves the directory; a folder shows its index.html or nothing."""

    async def to_folder(request: Request) -> Response:
        return RedirectResponse(request.scope.get("root_path", "") + prefix + "/", status_code=301)

    async def refuse(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        body = b'{"error":{"code":"%s","message":"%s"}}' % _REFUSALS.get(status, _FAILURE)
        headers = {"allow": "GET, HEAD"} if status == 405 else None
        return Response(body, status, headers, media_type="application/json")

    return Starlette(
        routes=[Route(prefix, to_folder), Mount(prefix, _Published(directory=directory, html=True))],
        exception_handlers={HTTPException: refuse},
    )
