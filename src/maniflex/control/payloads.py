"""Payloads that clients write: the models in them are bound as on their create routes."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError

from maniflex.background.jsons import decode, encode
from maniflex.background.runs.handlers import Handler
from maniflex.errors import ValidationFailed
from maniflex.model.omission import BY_ATTRIBUTE
from maniflex.pipeline.binding import binder


def run_payload(payload: Any, handler: Handler | None) -> Any:
    """The payload to store for one run: its records whole, so that every attempt has the same."""
    return _stored(payload, handler, exclude_unset=False)


def schedule_payload(payload: Any, handler: Handler | None) -> Any:
    """The payload to store for many runs: what the client set, so that each has ids and times of its own."""
    return _stored(payload, handler, exclude_unset=True)


def _stored(payload: Any, handler: Handler | None, *, exclude_unset: bool) -> Any:
    bound = _bound({} if payload is None else payload, handler)
    if bound is None or handler is None or handler.payload is None:
        return payload
    options: Any = {"by_alias": True, "exclude_unset": exclude_unset, "context": BY_ATTRIBUTE}
    try:
        return decode(handler.payload.adapter.dump_json(bound[0], **options))
    except PydanticSerializationError:
        encode(bound[0], "payload")  # says why in plain words
        raise


def _bound(payload: Any, handler: Handler | None) -> tuple[Any] | None:
    """The payload as its type, if that holds models; `ValidationFailed` when a client cannot say it."""
    if handler is None or handler.payload is None:
        return None
    known = binder(handler.payload.declared)
    try:
        bound = known.fit(payload)
    except ValidationFailed as failed:
        details: Any = failed.details
        found = [{**d, "field": f"payload.{d['field']}".rstrip(".")} for d in details]
        raise ValidationFailed(details=found) from None
    return (bound,) if known.holds_models else None
