"""Payloads that clients write: the models in them are bound as on their create routes."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError

from maniflex.background.json_text import decode, encode
from maniflex.background.runs.handlers import RunHandler
from maniflex.errors import ValidationFailed
from maniflex.model.base import BY_ATTRIBUTE
from maniflex.pipeline.binding import binder


def run_payload(payload: Any, handler: RunHandler | None) -> Any:
    """The payload to store for one run: its records whole, so that every attempt has the same."""
    return _payload_to_store(payload, handler, exclude_unset=False)


def schedule_payload(payload: Any, handler: RunHandler | None) -> Any:
    """The payload to store for many runs: what the client set, so that each has ids and times of its own."""
    return _payload_to_store(payload, handler, exclude_unset=True)


def _payload_to_store(payload: Any, handler: RunHandler | None, *, exclude_unset: bool) -> Any:
    binding = _bind_models({} if payload is None else payload, handler)
    if binding is None or handler is None or handler.payload is None:
        return payload
    options: Any = {"by_alias": True, "exclude_unset": exclude_unset, "context": BY_ATTRIBUTE}
    try:
        return decode(handler.payload.adapter.dump_json(binding[0], **options))
    except PydanticSerializationError:
        encode(binding[0], "payload")  # says why in plain words
        raise


def _bind_models(payload: Any, handler: RunHandler | None) -> tuple[Any] | None:
    """The payload as its type, if that holds models; `ValidationFailed` when a client cannot say it."""
    if handler is None or handler.payload is None:
        return None
    payload_binder = binder(handler.payload.declared)
    try:
        value = payload_binder.fit(payload)
    except ValidationFailed as failed:
        details: Any = failed.details
        payload_details = [{**d, "field": f"payload.{d['field']}".rstrip(".")} for d in details]
        raise ValidationFailed(details=payload_details) from None
    return (value,) if payload_binder.holds_models else None
