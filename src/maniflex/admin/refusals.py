"""Pages for what cannot be shown or done: the API's own code and message, inside the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.admin.layout import SECURITY_HEADERS
from maniflex.pipeline.response import Response

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit


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
