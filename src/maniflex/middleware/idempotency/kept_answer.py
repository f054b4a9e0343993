"""An answer as it is kept beside the rows it speaks of, and given again."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from maniflex.errors import Abort
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.redacted_answers import write_for_caller
from maniflex.pipeline.response import JSON, Response

_REPLAYED = ((b"idempotent-replayed", b"true"),)
# These belong to a request, not to what came of it.
_OF_REQUEST = ("x-request-id", "access-control-", "ratelimit-")


class _KeptAnswer(msgspec.Struct, array_like=True):
    status: int
    content_type: str
    headers: dict[str, str] | None
    added_headers: list[tuple[bytes, bytes]]  # by `ctx.add_header`
    body: bytes
    models: list[str] = []  # whose records an action showed, as far as they have fields to redact


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_KeptAnswer).decode


async def keep_answer(ctx: Context, headers_before: int, most: int) -> bytes | None:
    """The answer as bytes to store; None for one that cannot be given twice.

    `headers_before` counts the headers of the time before the claim: a repetition adds those itself.
    """
    response: Any = ctx.response
    if type(response) is not Response or response.stream is not None:
        return None
    if response.body is None:
        body = await write_for_caller(ctx, response)
        if body:
            response.body = body  # as it is sent, too
    return keep_response(ctx, response, headers_before, most)


def keep_response(ctx: Context, response: Response, headers_before: int, most: int) -> bytes | None:
    """The same of an answer whose body is written."""
    if ctx.keeps_answer_secret:
        return None
    own_headers = ctx.extra_headers[headers_before:] if ctx.extra_headers is not None else []
    headers = response.headers
    if headers:  # code that sets the whole of them may write their names in any case
        headers = {name.lower(): value for name, value in headers.items()}
    if own_headers and any(name == b"set-cookie" for name, _ in own_headers):
        return None
    if headers and "set-cookie" in headers:
        return None
    body = response.body or b""
    if len(body) > most:
        return None
    if headers:
        headers = {name: value for name, value in headers.items() if not name.startswith(_OF_REQUEST)}
    if own_headers:
        own_headers = [
            (name, value) for name, value in own_headers if not name.decode().startswith(_OF_REQUEST)
        ]
    models = list(ctx.shown_models)
    return _encode(_KeptAnswer(response.status, response.content_type, headers, own_headers, body, models))


def replay_answer(ctx: Context, answer: bytes | None) -> Awaitable[None] | None:
    """Answer as the first request was answered; 409 when its answer was not kept.

    Fields that have been hidden from the caller since are left out, which is to be awaited.
    """
    if answer is None:
        raise Abort(
            409,
            "IDEMPOTENCY_NOT_REPLAYABLE",
            "a request with this Idempotency-Key has succeeded, and its answer cannot be given again",
        )
    first = _decode(answer)
    response = Response(first.status, body=first.body or None, content_type=first.content_type)
    response.headers, response.marks = first.headers, _REPLAYED
    if first.added_headers:
        ctx.extra_headers = [*(ctx.extra_headers or ()), *first.added_headers]
    ctx.response = ctx.early_response = response
    return _hide_since(ctx, response, first.models) if ctx.runtime.redactions.rules else None


async def _hide_since(ctx: Context, response: Response, models: Sequence[str]) -> None:
    """Leave out what the caller of today may not see."""
    names = await _hidden_names(ctx, models)
    if names and response.body and response.content_type == JSON:
        response.body = msgspec.json.encode(_without(msgspec.json.decode(response.body), names))
        if response.headers:
            response.headers.pop("etag", None)  # it was made of what the caller saw


async def _hidden_names(ctx: Context, models: Sequence[str]) -> frozenset[str]:
    """The keys that this caller may not see in the records of an answer."""
    stores = ctx.runtime.stores
    classes = [store.meta.cls for store in stores.values() if store.meta.name in models]
    about: ModelMeta | None = ctx.model
    names: frozenset[str] = frozenset()
    for model in dict.fromkeys(classes if about is None else [about.cls, *classes]):
        if model in ctx.runtime.redactions:
            names |= await ctx.redacted(model)
    return names


def _without(value: Any, names: frozenset[str]) -> Any:
    """The JSON value without these keys, at whatever level a record may be."""
    if isinstance(value, dict):
        return {name: _without(part, names) for name, part in value.items() if name not in names}
    return [_without(part, names) for part in value] if isinstance(value, list) else value
