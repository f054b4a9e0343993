"""What OpenAPI says of the events that an API posts to URLs of its callers: its `webhooks`."""

from __future__ import annotations

from typing import Any

from maniflex.background.feed.described import DescribedType
from maniflex.openapi.schema import Schema, Schemas

STANDARD, CLOUD_EVENT = "application/json", "application/cloudevents+json"
_TEXT: Schema = {"type": "string"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_OF_EVENT = {
    "subject": "What it is about.",
    "model": "The model of the record.",
    "operation": "created, updated, deleted or restored.",
    "recordid": "The id of the record.",
    "actorid": "Who did it.",
    "tenantid": "Whose it is.",
    "changed": "Names of the fields that differ, with commas between them.",
    "sequence": "Its place among all events, in 20 digits.",
}
_HEADERS = {
    "webhook-id": "The id of the event, the same in every attempt.",
    "webhook-timestamp": "The second of this attempt.",
    "webhook-signature": "Over `id.timestamp.body`, as Standard Webhooks say; two while a secret changes.",
}
_ERROR: Schema = {
    "type": "object",
    "properties": {"code": _TEXT, "message": _TEXT},
    "required": ["code"],
}
_FAILED, _CANCELLED = "failed", "cancelled"


def describe_webhook(one: DescribedType, schemas: Schemas) -> Schema:
    """The request that an endpoint gets of an event of this type."""
    data = data_schema(one, schemas)
    return {
        "summary": one.title,
        **({"description": one.description} if one.description else {}),
        "tags": ["Webhooks"],
        "parameters": [
            {
                "name": name,
                "in": "header",
                "description": text,
                "required": True,
                "schema": _TEXT,
            }
            for name, text in _HEADERS.items()
        ],
        "requestBody": {
            "description": "The event, in the format that the endpoint asks for.",
            "required": True,
            "content": {
                STANDARD: {"schema": _standard(one, data)},
                CLOUD_EVENT: {"schema": cloud_event(one, data)},
            },
        },
        "responses": {
            "2XX": {"description": "The event is taken. Any other answer has it sent again later."},
            "410": {"description": "The endpoint is gone, and is told of nothing more."},
        },
    }


def data_schema(one: DescribedType, schemas: Schemas) -> Schema:
    """What the data of an event of this type are."""
    if one.model is not None:
        schema = {} if one.fields is None else schemas.event(one.model, one.fields)
    elif one.ending:
        schema = _end(one.ending)
    else:
        schema = {} if one.payload is None else schemas.of(one.payload, incoming=False)
    return {**schema, "examples": [one.example]} if one.example is not None else schema


def _end(ending: str) -> Schema:
    """The data of the end of a run or a job."""
    properties: dict[str, Any] = {"id": _TEXT, "type": _TEXT, "attempt": {"type": "integer"}}
    required = [*properties]
    if ending == _FAILED:
        properties["error"] = _ERROR
        required.append("error")
    elif ending != _CANCELLED:
        properties["result"] = {
            "description": "What the handler gave; missing where it is too large or encrypted."
        }
    return {"type": "object", "properties": properties, "required": required}


def _standard(one: DescribedType, data: Schema) -> Schema:
    properties = {"type": {"const": one.type}, "timestamp": _TIME, "data": data}
    return {"type": "object", "properties": properties, "required": ["type", "timestamp"]}


def cloud_event(one: DescribedType, data: Schema) -> Schema:
    """A structured CloudEvent of this type."""
    properties: dict[str, Any] = {
        "specversion": {"const": "1.0"},
        "id": _TEXT,
        "source": _TEXT,
        "type": {"const": one.type},
        "time": _TIME,
        "datacontenttype": {"const": "application/json"},
        **{name: {**_TEXT, "description": text} for name, text in _OF_EVENT.items()},
        "data": data,
    }
    return {"type": "object", "properties": properties, "required": ["specversion", "id", "source", "type"]}
