"""The payload of a run as a form, from the type its handler declares; parts that are no plain value are JSON.

`payload_fields` makes the controls, `read_payload` reads them back. A handler without a type, or with one
that is no object, has one control: the whole payload as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.admin.names import title_of
from maniflex.admin.operations.masking import SECRET_NAMES, is_secret
from maniflex.admin.operations.run_actions import read_json
from maniflex.admin.visit import Visit
from maniflex.background.runs.handlers import RunHandler

_KINDS = {"boolean": "bool", "integer": "number", "number": "number", "string": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadField:
    """One control."""

    name: str
    label: str
    kind: str  # text, number, bool, choice or json
    text: str
    required: bool
    options: Sequence[str] = ()
    help: str = ""
    errors: Sequence[str] = ()


def payload_schema(handler: RunHandler | None) -> Mapping[str, Any] | None:
    """The properties that a handler takes; None when its payload is not an object with names."""
    if handler is None or handler.payload is None:
        return None
    try:
        schema = handler.payload.adapter.json_schema()
    except Exception:  # a type that pydantic can read and cannot describe
        return None
    if "$ref" in schema:
        schema = {
            **schema.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}),
            "$defs": schema["$defs"],
        }
    return schema if schema.get("type") == "object" and schema.get("properties") else None


def payload_fields(
    schema: Mapping[str, Any], values: Mapping[str, Any], errors: Mapping[str, Sequence[str]]
) -> list[PayloadField]:
    """The controls, filled with what is there."""
    fields = []
    for name, part in schema["properties"].items():
        kind, options = _kind_of(part, schema)
        default = None if is_secret(name, SECRET_NAMES) else part.get("default")
        value = values.get(name, default)
        messages = [m for place, texts in errors.items() if _is_below(place, name) for m in texts]
        fields.append(
            PayloadField(
                name=name,
                label=title_of(name),
                kind=kind,
                text=_text_of(kind, value),
                required=name in schema.get("required", ()),
                options=options,
                help=str(part.get("description", "")),
                errors=messages,
            )
        )
    return fields


def _is_below(place: str, name: str) -> bool:
    return place == f"payload.{name}" or place.startswith((f"payload.{name}.", f"payload.{name}["))


def _kind_of(part: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    variants = [_resolve(one, schema) for one in (part, *part.get("anyOf", ()), *part.get("allOf", ()))]
    for one in variants:
        if "enum" in one and all(isinstance(value, str) for value in one["enum"]):
            return "choice", list(one["enum"])
    types = {one["type"] for one in variants if isinstance(one.get("type"), str)} - {"null"}
    return _KINDS.get(types.pop(), "json") if len(types) == 1 else "json", []


def _resolve(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in part:
        return part
    target: Mapping[str, Any] = schema.get("$defs", {}).get(part["$ref"].rpartition("/")[2], {})
    return target


def _text_of(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_payload(visit: Visit, schema: Mapping[str, Any] | None) -> Any:
    """What was sent: the whole as JSON, or by the names of the fields."""
    if schema is None or visit.form_text("payload").strip():
        value = read_json(visit, visit.form_text("payload"))
        return {} if value is None else value
    values: dict[str, Any] = {}
    for field in payload_fields(schema, {}, {}):
        text = visit.form_text(f"f.{field.name}")
        if field.kind == "bool":
            values[field.name] = bool(text)
        elif text:
            values[field.name] = _value_of(visit, field.kind, text)
    return values


def _value_of(visit: Visit, kind: str, text: str) -> Any:
    if kind == "json":
        return read_json(visit, text)
    if kind != "number":
        return text
    try:
        number = json.loads(text)
    except ValueError:
        return text
    return number if isinstance(number, int | float) else text
