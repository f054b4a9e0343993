"""Which types come back from a JSON column as they went in.

The only home of that question. Stored text is written by a type's own serializer and read by its own
validation, and the two need not agree: a field may be left out, masked or named differently. Give it
the core schema of a column; get every part that would be lost, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

_NOT_WALKED = frozenset({"config", "default", "expected", "members", "metadata", "serialization"})
_FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})


@dataclass(frozen=True, slots=True)
class _TypePlace:
    """Where in the type we are."""

    owner: str = ""
    field: str = ""
    # What is not inside a pydantic class is written by what it is at run time: plain names, all values.
    own_serializer: bool = False
    config: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.owner}.{self.field}" if self.field else self.owner

    def setting(self, name: str, default: Any = None) -> Any:
        value = (self.config or {}).get(name)
        return default if value is None else value


def roundtrip_problems(schema: Any, definitions: Mapping[str, Any]) -> list[str]:
    """What of a column of this schema the database would not give back."""
    walk = _Walk(dict(definitions))
    problems = dict.fromkeys((str(place), why) for place, why in walk.node(schema, _TypePlace()))
    return [f"{where} would not come back from the database: {why}".lstrip() for where, why in problems]


class _Walk:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._seen: set[tuple[str, bool]] = set()

    def node(self, schema: Any, place: _TypePlace) -> Iterator[tuple[_TypePlace, str]]:
        place = _place_inside(schema, place)
        yield from _troubles(schema, place)
        if schema["type"] == "definitions":
            self._definitions |= {item["ref"]: item for item in schema["definitions"]}
            yield from self.node(schema["schema"], place)
        elif schema["type"] == "definition-ref":
            yield from self._follow_ref(schema["schema_ref"], place)
        else:
            for key, part in schema.items():
                if key not in _NOT_WALKED:
                    yield from self._part(part, place)

    def _follow_ref(self, ref: str, place: _TypePlace) -> Iterator[tuple[_TypePlace, str]]:
        if (ref, place.own_serializer) not in self._seen and ref in self._definitions:
            self._seen.add((ref, place.own_serializer))
            yield from self.node(self._definitions[ref], place)

    def _part(self, part: Any, place: _TypePlace) -> Iterator[tuple[_TypePlace, str]]:
        if isinstance(part, dict) and isinstance(part.get("type"), str):
            yield from self.node(part, place)
        elif isinstance(part, dict):
            for name, item in part.items():
                is_field = isinstance(item, dict) and item.get("type") in _FIELDS
                yield from self._part(item, replace(place, field=name) if is_field else place)
        elif isinstance(part, (list, tuple)):
            for item in part:
                yield from self._part(item, place)


def _place_inside(schema: Any, place: _TypePlace) -> _TypePlace:
    match schema["type"]:
        case "model":
            return _TypePlace(schema["cls"].__name__, "", True, schema.get("config"))
        case "dataclass":
            own = place.own_serializer or hasattr(schema["cls"], "__pydantic_serializer__")
            return _TypePlace(schema["cls"].__name__, "", own, schema.get("config"))
        case "typed-dict":
            cls = schema.get("cls")
            return _TypePlace(getattr(cls, "__name__", ""), "", place.own_serializer, schema.get("config"))
        case "dataclass-field":
            return replace(place, field=schema["name"])
        case "computed-field":
            return replace(place, field=schema["property_name"])
        case _:
            return place


def _troubles(schema: Any, place: _TypePlace) -> Iterator[tuple[_TypePlace, str]]:
    kind = schema["type"]
    why = _written_wrong(schema.get("serialization") or {}, place)
    if why:
        yield place, why
    if kind in _FIELDS:
        yield from ((place, why) for why in _field_troubles(schema, place))
    elif kind == "json":
        yield place, "Json is stored as its value but read from text"
    elif kind == "computed-field" and place.setting("extra_fields_behavior", "ignore") != "ignore":
        yield place, f"a computed field is stored, and {place.owner} would take it for an extra one"
    elif kind == "bytes" and place.own_serializer:
        stored_as = place.setting("ser_json_bytes", "utf8")
        read_as = place.setting("val_json_bytes", "utf8")
        if stored_as != read_as:
            yield place, f"bytes are stored as {stored_as} but read as {read_as}"


def _written_wrong(serialization: Mapping[str, Any], place: _TypePlace) -> str | None:
    function = serialization.get("function")
    if function is None:
        return None
    ours = str(getattr(function, "__module__", "")).startswith("pydantic")
    if ours:
        return "a secret is stored as asterisks" if "secret" in function.__name__ else None
    return "it has a serializer of its own" if place.own_serializer else None


def _field_troubles(schema: Any, place: _TypePlace) -> Iterator[str]:
    if schema.get("init_only"):
        yield "an InitVar is not stored"
        return
    if place.own_serializer and schema.get("serialization_exclude"):
        yield "exclude=True keeps it out of what is stored"
    elif place.own_serializer and schema.get("serialization_exclude_if"):
        yield "exclude_if may keep it out of what is stored"
    else:
        alias = schema.get("serialization_alias") if place.own_serializer else None
        stored_as, names = alias or place.field, _names_read(schema, place)
        if stored_as not in names:
            yield f"it is stored as {stored_as!r} but read as {' or '.join(map(repr, names)) or 'nothing'}"


def _names_read(schema: Any, place: _TypePlace) -> list[str]:
    alias = schema.get("validation_alias")
    if alias is None:
        return [place.field]
    paths = [[alias]] if isinstance(alias, str) else alias if isinstance(alias[0], list) else [alias]
    names = [".".join(map(str, path)) for path in paths] if place.setting("validate_by_alias", True) else []
    by_name = place.setting("validate_by_name") or place.setting("populate_by_name")
    return [*names, place.field] if by_name else names
