"""Files of a directory, below a prefix of their own."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


def static_app(directory: Path, prefix: str) -> Starlette:
    """An application that serves the directory; a folder shows its index.html or nothing."""

    async def to_folder(request: Request) -> Response:
        return RedirectResponse(prefix + "/", status_code=301)

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        code = _CODES.get(status, "STATIC_ERROR")
        body = b'{"error":{"code":"%s","message":"no such file"}}' % code.encode()
        return Response(body, status, media_type="application/json")

    return Starlette(
        routes=[Route(prefix, to_folder), Mount(prefix, StaticFiles(directory=directory, html=True))],
        exception_handlers={HTTPException: refused},
    )
