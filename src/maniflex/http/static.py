"""Files of a directory, below a prefix of their own."""

from __future__ import annotations

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
_FAILURE = (b"STATIC_ERROR", b"the file could not be served")


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
        routes=[Route(prefix, to_folder), Mount(prefix, StaticFiles(directory=directory, html=True))],
        exception_handlers={HTTPException: refuse},
    )
