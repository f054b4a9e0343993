"""Fields whose type is a dataclass or a pydantic model: a control for each of its parts.

Parts are called `f.<field>.<part>`. What nobody touched keeps its value and spelling, and so do keys of
the stored value that the type does not know.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter

from maniflex._callables import cache_by_class
from maniflex.admin.controls import Control
from maniflex.admin.json_text import read_json_text
from maniflex.admin.names import title_of
from maniflex.admin.texts import Texts
from maniflex.admin.widgets import UnreadableText
from maniflex.model.meta import FieldMeta, Kind

MISSING: Any = object()
_KINDS = {"boolean": "bool", "integer": "text", "number": "text", "string": "text"}
_NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    name: str
    control: str
    options: Sequence[str]
    is_required: bool
    is_nullable: bool
    is_number: bool


def has_parts(field: FieldMeta) -> bool:
    """Whether a form shows the parts of the field instead of its JSON."""
    kind = field.type
    is_known = isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, BaseModel))
    return field.kind is Kind.JSON and is_known and bool(_parts(kind))


@cache_by_class
def _parts(kind: type) -> tuple[_Part, ...]:
    """The parts of a type; none of one that is edited as JSON."""
    try:
        schema = TypeAdapter(kind).json_schema()
    except Exception:  # a type that has no schema
        return ()
    required_names = set(schema.get("required", ()))
    parts = []
    for name, part in schema.get("properties", {}).items():
        shapes = [_resolve(schema, one) for one in (part, *part.get("anyOf", ()), *part.get("allOf", ()))]
        kinds = [str(one["type"]) for one in shapes if "type" in one]
        options = next((tuple(map(str, one["enum"])) for one in shapes if "enum" in one), ())
        plain = next((one for one in kinds if one != "null"), "")
        control = "choice" if options else _KINDS.get(plain, "code")
        if control == "bool" and "null" in kinds:
            control, options = "choice", ("true", "false")
        parts.append(
            _Part(
                name=name,
                control=control,
                options=options,
                is_required=name in required_names,
                is_nullable="null" in kinds,
                is_number=plain in ("integer", "number"),
            )
        )
    return tuple(parts)


def part_names(field: FieldMeta) -> list[str]:
    """What errors call the parts of a field: `address.city`."""
    return [f"{field.api}.{part.name}" for part in _parts(field.type)] if has_parts(field) else []


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(part.get("$ref", "")).rpartition("/")[2]
    target: Mapping[str, Any] = schema.get("$defs", {}).get(name, part)
    return target


def _text(value: Any, control: str) -> str:
    if value is None:
        return ""
    if control == "code":
        return json.dumps(value, ensure_ascii=False, indent=2)
    return str(value).lower() if isinstance(value, bool) else str(value)


def part_controls(
    field: FieldMeta, value: Any, texts: Mapping[str, str] | None, errors: Mapping[str, Any]
) -> Iterator[Control]:
    """The controls of the parts, with what is stored or with the texts that were typed."""
    values = value if isinstance(value, Mapping) else {}
    for part in _parts(field.type):
        key = f"{field.api}.{part.name}"
        text = _text(values.get(part.name), part.control) if texts is None else texts.get(f"f.{key}", "")
        if part.control == "bool" and texts is not None:
            text = "true" if text else "false"
        yield Control(
            kind=part.control,
            name=key,
            label=title_of(part.name),
            text=text,
            required=part.is_required and not part.is_nullable,
            options=[(one, one) for one in part.options],
            can_be_empty=part.is_nullable or not part.is_required,
            errors=tuple(errors.get(key, ())),
        )


def read_parts(field: FieldMeta, base: Any, texts: Mapping[str, str], say: Texts) -> Any:
    """The value with the parts that were changed; `MISSING` when none was; `UnreadableText` for none."""
    values = dict(base) if isinstance(base, Mapping) else {}
    is_changed = False
    for part in _parts(field.type):
        name = part.name
        text = texts.get(f"f.{field.api}.{name}")
        before = _text(values.get(name), part.control)
        if part.control == "bool":
            text, before = ("true" if text else "false"), before or "false"
        if text is None or text.replace("\r\n", "\n") == before:
            continue
        is_changed = True
        if not text and (part.is_nullable or not part.is_required):
            values.pop(name, None)
            values |= {name: None} if part.is_nullable else {}
        else:
            values[name] = _read(part, text, say)
    return values if is_changed else MISSING


def _read(part: _Part, text: str, say: Texts) -> Any:
    """A part of its own type, as far as its text says; the rules of the type are the API's to apply."""
    if text in ("true", "false") and part.control in ("bool", "choice"):
        return text == "true"
    if part.control == "code":
        try:
            return read_json_text(text)
        except ValueError as error:
            raise UnreadableText(str(error), part=part.name) from None
    if part.is_number:
        number = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
        if not math.isfinite(number):
            raise UnreadableText(say("no_number"), part=part.name)
        plain = text.strip()
        return int(plain) if plain.lstrip("+-").isdigit() else number
    return text
