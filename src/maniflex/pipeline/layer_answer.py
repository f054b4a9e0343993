"""Answers that a layer gives by itself, before a request has a route."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from maniflex.pipeline.answer_headers import Header
from maniflex.pipeline.exchange import OBSERVED, AsgiScope, Send
from maniflex.pipeline.response import JSON, Response
from maniflex.pipeline.runtime import Runtime

_NO_STORE = (b"cache-control", b"no-store")


async def send_answer(
    response: Response, scope: AsgiScope, send: Send, runtime: Runtime, headers: Sequence[Header] = ()
) -> None:
    """Send a small answer whole, with the headers that all answers have."""
    body = response.encode(runtime.encode)
    if response.error is not None and OBSERVED in scope:
        scope[OBSERVED].code = str(response.error.get("code", ""))
    own = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in (response.headers or {}).items()
    ]
    start = [(b"x-request-id", runtime.request_ids.identify(scope)[0]), *own, *headers]
    if response.status != 204:
        start += [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body)), _NO_STORE]
    await send({"type": "http.response.start", "status": response.status, "headers": start})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def change_headers(send: Send, change: Callable[[list[Header]], list[Header]]) -> Send:
    """The same, with the headers of the answer changed on their way."""

    async def send_changed(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": change(list(message.get("headers", ())))}
        await send(message)

    return send_changed


def merge_vary(headers: list[Header], *names: bytes) -> list[Header]:
    """The headers with these names in their one `Vary`."""
    values = [value for name, value in headers if name.lower() == b"vary"]
    present = [part.strip() for value in values for part in value.split(b",") if part.strip()]
    if b"*" in present:
        return headers
    lower_names = {part.lower() for part in present}
    missing = [name for name in names if name.lower() not in lower_names]
    others = [header for header in headers if header[0].lower() != b"vary"]
    return [*others, (b"vary", b", ".join([*present, *missing]))]
