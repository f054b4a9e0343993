"""Typed payloads on their way through the database: what arrives is equal to what was given, or is refused.

A value is written by its type's serializer and read by its type's validation, and the two need not agree: a
field may have one name to be written by and another to be read by. So a value of the declared type is read
back before it is stored. Where the usual names lose something, those that the type reads are written
instead; where that loses something too, `ValidationFailed` names the place.

A value that is not of the declared type (a dict for a model) is data for its validation, stored as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaSerializer

from maniflex.background.json_text import check_text, encode
from maniflex.background.same_value import first_difference, has_fields
from maniflex.errors import ValidationFailed
from maniflex.model.base import TO_READ_BACK

_FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})
_CLASSES = frozenset({"model", "dataclass"})
_NO_SCHEMA = frozenset({"default", "expected", "members", "metadata", "cls", "config"})


class PayloadType:
    """The declared type of a payload."""

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        self.adapter: TypeAdapter[Any] = TypeAdapter(declared)
        self._by_read_names: SchemaSerializer | None = None
        self._class = declared if has_fields(declared) else None

    def read(self, text: str | bytes) -> Any:
        """The stored payload as a value of the type."""
        return self.adapter.validate_json(text)

    def read_value(self, value: Any) -> Any:
        """As `read`, for JSON that a queue has decoded already."""
        return self.read(encode(value, "payload"))

    def write(self, payload: Any, usual: str) -> str:
        """The text to store, `usual` if possible; `ValidationFailed` when the value read would differ."""
        if not self._is_of_type(payload):
            return usual
        place = ""
        for make_text in (lambda: usual, *self._writers(payload)):
            try:
                text = make_text()
                place = first_difference(payload, self.read(text))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # the type's own functions may raise anything
                place = place or f"payload ({_first_line(error)})"
                continue
            if not place:
                return text
        raise _read_back_error(place)

    def _is_of_type(self, payload: Any) -> bool:
        if self._class is not None and isinstance(payload, self._class):
            return True
        if isinstance(payload, dict) and _outermost(self.adapter) in _CLASSES:
            return False
        try:
            candidate = deepcopy(payload) if self._calls_functions else payload
            value = self.adapter.validate_python(candidate, by_alias=True, by_name=True)
            return value is payload or not first_difference(payload, value, inside=False)
        except KeyboardInterrupt:
            raise
        except BaseException:  # it does not fit, which its run will say; or the type is not complete yet
            return False

    @cached_property
    def _calls_functions(self) -> bool:
        """Whether validation calls functions of the type's own: they may change the instances it accepts."""
        return _has_functions(self.adapter.core_schema)

    def _writers(self, payload: Any) -> Iterator[Callable[[], str]]:
        yield lambda: self._text_by_read_names(payload, by_alias=True)
        # For types that are not read by their aliases.
        yield lambda: self._text_by_read_names(payload, by_alias=False)

    def _text_by_read_names(self, payload: Any, *, by_alias: bool) -> str:
        if self._by_read_names is None:
            self._by_read_names = _serializer(_with_read_names(self.adapter.core_schema))
        options: Any = {"by_alias": by_alias, "context": TO_READ_BACK, "warnings": "none"}
        return check_text(self._by_read_names.to_json(payload, **options), "payload")


def _outermost(adapter: TypeAdapter[Any]) -> str:
    try:
        schema: Any = adapter.core_schema
        while schema["type"] == "definitions":
            schema = schema["schema"]
        return str(schema["type"])
    except (PydanticUserError, AttributeError, KeyError):  # not complete yet
        return ""


def _has_functions(schema: Any) -> bool:
    if isinstance(schema, dict):
        if str(schema.get("type", "")).startswith("function-"):
            return True
        return any(_has_functions(part) for key, part in schema.items() if key not in _NO_SCHEMA)
    return isinstance(schema, list | tuple) and any(map(_has_functions, schema))


def _serializer(schema: Any) -> SchemaSerializer:
    try:
        make: Any = SchemaSerializer
        return make(schema, None, _use_prebuilt=False)  # type: ignore[no-any-return]  # not in its stub
    except TypeError:  # an older pydantic, which never uses those of the classes
        return SchemaSerializer(schema)


def _with_read_names(schema: Any) -> Any:
    """The schema with fields that are written by the names they are read by, and without computed ones."""
    if isinstance(schema, dict):
        copy = {key: part if key in _NO_SCHEMA else _with_read_names(part) for key, part in schema.items()}
        if "computed_fields" in copy:
            copy["computed_fields"] = []
        if schema.get("type") in _FIELDS:
            copy.pop("serialization_alias", None)
            if name := _read_name(schema.get("validation_alias")):
                copy["serialization_alias"] = name
        return copy
    return [_with_read_names(part) for part in schema] if isinstance(schema, list) else schema


def _read_name(alias: Any) -> str | None:
    """The first name of a field's validation alias that is not a path into something."""
    if isinstance(alias, str) or not alias:
        return alias or None
    paths = alias if isinstance(alias[0], list) else [alias]
    return next((path[0] for path in paths if len(path) == 1), None)


def _first_line(error: BaseException) -> str:
    if isinstance(error, ValidationError):  # whose text holds values
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    return error.message if isinstance(error, ValidationFailed) else type(error).__name__


def _read_back_error(place: str) -> ValidationFailed:
    message = "would not reach its handler as it is: what its type writes as JSON it reads as another value"
    return ValidationFailed(f"{place} {message}", [{"field": place.split(" ")[0], "message": message}])
