"""Run one request through its endpoint. Any error inside becomes a `Response`."""

from __future__ import annotations

import asyncio
import hmac
import os
import traceback
from asyncio import current_task
from collections.abc import Callable, MutableMapping, Sequence
from time import perf_counter
from types import FrameType
from typing import Any

from maniflex._caller import asking
from maniflex._fence import Fence
from maniflex._messages import translate_error
from maniflex.errors import Abort, ExportBusy, InvalidQuery, NotFound, RequestError, Timeout
from maniflex.pipeline.context import Context, Header
from maniflex.pipeline.exchange import OBSERVED, AsgiScope, Send
from maniflex.pipeline.response import (
    JSON,
    Response,
    error_response,
    mark_language,
    no_response_error,
    panic_response,
    status_of,
)
from maniflex.pipeline.routes import Endpoint
from maniflex.pipeline.rules.reach import Refused
from maniflex.pipeline.runtime import Runtime, is_outage
from maniflex.pipeline.watch import ClientGone, RequestWatch, WatchedRequest
from maniflex.query.parse import locale_parameter

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


async def answer(endpoint: Endpoint, ctx: Context, watch: RequestWatch | None = None) -> Any:
    """The answer of the endpoint; `ClientGone` when the client went away."""
    before = asking.set(ctx)
    client_left, ctx.route_path, ctx.began = False, endpoint.route, perf_counter()
    task = current_task(watch.loop if watch is not None else None)
    if watch is not None:  # in place, because every request pays for it
        watch.requests[ctx] = task
        if watch.timer is None:
            watch.begin()
    try:
        for steps in endpoint.chains:
            try:
                try:
                    for step in steps:
                        outcome = step(ctx)
                        if outcome is not None:
                            await outcome
                except asyncio.CancelledError:
                    reason = None if ctx.watched is None else ctx.watched.take_ending()
                    if reason is None:
                        raise
                    raise reason from None
                if ctx.watched is not None:  # it may have been told to end and had its answer all the same
                    ctx.watched.take_ending()
                if ctx._after is not None and (ctx.response is None or status_of(ctx.response) < 400):
                    was_settled, ctx.settled = ctx.settled, True  # these calls may take long
                    await ctx.run_after()
                    ctx.settled = was_settled
            except Refused as refusal:
                ctx.response = refusal.response
            except BaseException as error:
                # Whatever code of the application raises is a failure of its request, and of nothing else.
                failed = Fence(task).absorb(error)
                client_left = client_left or isinstance(error, ClientGone)
                ctx.response = failure(ctx, failed)
                _forget_frames(error, failed)
            # A refusal is sent even when the time is up; its middleware still has to see it.
            ctx.settled = client_left or ctx.response is not None
    finally:
        if watch is not None:
            watch.requests.pop(ctx, None)
            if ctx.watched is not None:
                client_left = _settle_watched(ctx, watch, ctx.watched, client_left)
        if ctx.place is not None:
            ctx.place.leave()
        asking.reset(before)
    if client_left:
        raise ClientGone()
    return ctx.response if ctx.response is not None else failure(ctx, no_response_error(ctx))


def _settle_watched(ctx: Context, watch: RequestWatch, watched: WatchedRequest, client_left: bool) -> bool:
    """Note the end of a request that took long; whether its client is gone."""
    if watched.client_left and not client_left:
        client_left = True
        _report_fate(ctx)
    watch.note_end(ctx, watched)
    return client_left


def _report_fate(ctx: Context) -> None:
    """Log what became of a write whose client did not wait for the answer."""
    status = 204 if ctx.response is None else status_of(ctx.response)
    fate = "it was done" if status < 400 else "it was refused"
    method, reason = ctx.scope["method"], ClientGone()
    ctx.logger.info(
        "%s %s: %s before its %s was answered; %s (%s)",
        reason.status,
        reason.code,
        reason.message,
        method,
        fate,
        status,
    )


def _forget_frames(*errors: BaseException) -> None:
    """Let go of bodies and rows: a frame that has the error is a circle, and those wait for the collector."""
    for error in errors:
        error.__traceback__ = error.__context__ = None


def failure(ctx: Context, error: Exception) -> Response:
    """The answer to an error, which is logged if it is for the application to know."""
    response = _refusal(ctx, error) if isinstance(error, RequestError) else _panic(ctx, error)
    if ctx.runtime.messages is not None and not ctx.in_process:
        translate_refusal(response, ctx.scope, ctx.runtime)
    return response


def translate_refusal(response: Response, scope: AsgiScope, runtime: Runtime) -> None:
    """Say the texts of a refusal in the language of its request, if there is a catalogue for it."""
    if runtime.messages is None or response.error is None:
        return
    options = runtime.config.locale
    try:
        parameter = locale_parameter(scope["query_string"])
    except InvalidQuery:  # that is what it is refused for, or nothing looks at it
        parameter = None
    headers = [value for name, value in scope["headers"] if name == b"accept-language"]
    header = b",".join(headers).decode("latin-1") if options.from_header else None
    catalogue = runtime.messages.find(options.view(parameter, header).locale)
    if catalogue is not None:
        response.error = translate_error(response.error, catalogue[1])
    mark_language(response, catalogue[0] if catalogue else "en", by_header=options.from_header)


def _refusal(ctx: Context, error: RequestError) -> Response:
    if isinstance(error, ClientGone):
        ctx.logger.info("%s %s: %s", error.status, error.code, error)
    elif is_outage(error):
        ctx.runtime.outages.note(error, ctx.logger)
    elif isinstance(error, Timeout):  # where it was cut off says nothing of why it took so long
        line = f"{ctx.scope['method']} {ctx.scope['path']}".encode("unicode_escape").decode()
        ctx.logger.error("%s %s: %s: %s", error.status, error.code, line, error)
    elif error.status >= 500 and not isinstance(error, ExportBusy):  # that one is a limit at work
        ctx.logger.error("%s %s: %s", error.status, error.code, error, exc_info=error)
    elif isinstance(error, NotFound) and error.model:
        _report_missing(ctx, error)
    return error_response(error)


def _report_missing(ctx: Context, error: NotFound) -> None:
    """Log a record that the application's code looked for in vain, unless it is the one in the path."""
    if error.record_id in (ctx.resource_id, *ctx.params.values()):
        return
    reader: FrameType | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not _is_ours(frame.f_code.co_filename):
            reader = frame
        elif "ctx" in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
            reader = None  # a middleware awaited next(), and a step of ours looked for the record
    if reader is not None:
        code, line = reader.f_code, reader.f_lineno
        ctx.logger.warning("404: %s, read at %s:%s in %s", error, code.co_filename, line, code.co_name)


def _is_ours(path: str) -> bool:
    return path.startswith(_PACKAGE)


def _panic(ctx: Context, error: Exception) -> Response:
    """An unforeseen exception: the cause goes to the log, the client learns nothing of it."""
    text = "".join(traceback.format_exception(error))
    ctx.runtime.panic_logger.error(
        "unhandled exception in %s (request %s)\n%s",
        str(ctx),  # a log handler may keep it for long
        ctx.request_id,
        text,
        extra=ctx.logger.extra,
    )
    return panic_response()


# Answers that a layer gives by itself, before a request has a route.


_NO_STORE = (b"cache-control", b"no-store")


async def send_answer(
    response: Response, scope: AsgiScope, send: Send, runtime: Runtime, headers: Sequence[Header] = ()
) -> None:
    """Send a small answer whole, with the headers that all answers have."""
    translate_refusal(response, scope, runtime)
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
    """An ASGI `send` that changes the headers of the answer on their way."""

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


# A token that opens a page without a pipeline, such as `/metrics`.


def require_token(ctx: Context, token: str) -> None:
    """Refuse a request that does not bring the token as `Authorization: Bearer …`."""
    kind, _, value = (ctx.header("authorization") or "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(value.strip().encode(), token.encode()):
        headers = {"www-authenticate": "Bearer"}
        raise Abort(401, "UNAUTHORIZED", "this page asks for its token", headers=headers)
