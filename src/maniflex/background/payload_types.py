"""Typed payloads on their way through the database: what arrives is equal to what was given, or is refused.

A value is written by its type's serializer and read by its type's validation, and the two need not
agree: a field may have one name to be written by and another to be read by. So a value of the declared
type is read back before it is stored. Where the usual names lose something, those that the type reads
are written instead; where that loses something too, `ValidationFailed` names the place.

A value that is not of the declared type (a dict for a model) is data for its validation, stored as it
is.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaSerializer

from maniflex._json import TO_READ_BACK, TO_SEAL, check_text, encode
from maniflex.errors import ValidationFailed
from maniflex.model.core_schema import is_of_class, serializer_by_read_names, validates_by_functions


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

    def write(self, payload: Any, usual: str, *, to_seal: bool = False) -> str:
        """The text to store, `usual` if possible; `ValidationFailed` when the value read would differ."""
        if not self._is_of_type(payload):
            return usual
        place = ""
        for make_text in (lambda: usual, *self._writers(payload, to_seal)):
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
        if isinstance(payload, dict) and self._is_class():
            return False
        try:
            candidate = deepcopy(payload) if self._calls_functions else payload
            value = self.adapter.validate_python(candidate, by_alias=True, by_name=True)
            return value is payload or not first_difference(payload, value, inside=False)
        except KeyboardInterrupt:
            raise
        except BaseException:  # it does not fit, which its run will say; or the type is not complete yet
            return False

    def _is_class(self) -> bool:
        try:
            return is_of_class(self.adapter.core_schema)
        except (PydanticUserError, AttributeError, KeyError):  # not complete yet
            return False

    @cached_property
    def _calls_functions(self) -> bool:
        """Whether validation calls functions of the type's own: they may change the instances it accepts."""
        return validates_by_functions(self.adapter.core_schema)

    def _writers(self, payload: Any, to_seal: bool) -> Iterator[Callable[[], str]]:
        context = TO_SEAL if to_seal else TO_READ_BACK
        yield lambda: self._text_by_read_names(payload, context, by_alias=True)
        # For types that are not read by their aliases.
        yield lambda: self._text_by_read_names(payload, context, by_alias=False)

    def _text_by_read_names(self, payload: Any, context: object, *, by_alias: bool) -> str:
        if self._by_read_names is None:
            self._by_read_names = serializer_by_read_names(self.adapter.core_schema)
        options: Any = {"by_alias": by_alias, "context": context, "warnings": "none"}
        return check_text(self._by_read_names.to_json(payload, **options), "payload")


def _first_line(error: BaseException) -> str:
    if isinstance(error, ValidationError):  # whose text holds values
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    return error.message if isinstance(error, ValidationFailed) else type(error).__name__


def _read_back_error(place: str) -> ValidationFailed:
    message = "would not reach its handler as it is: what its type writes as JSON it reads as another value"
    return ValidationFailed(f"{place} {message}", [{"field": place.split(" ")[0], "message": message}])


# Whether a payload that was read back is the one that was given, and where it is not.
#
# A class may compare its instances by less than they hold, by their id for example. So values are
# compared part by part, and `==` counts only for those that have no parts. A tuple may be a list, which
# it is in JSON. What no payload carries (private attributes, `__omitted__` fields) does not count.


_PLAIN = frozenset({str, int, float, bool, type(None), bytes, Decimal, UUID, datetime, date, time, timedelta})
_WHOLE = object()  # the kind of what has no parts by name: whether two are equal is theirs to say


class _ValueShape(NamedTuple):
    """What the values of a class consist of."""

    kind: object  # what two values have to have in common
    compare: Callable[[Any, Any, _ValueShape, bool], str | None]
    names: tuple[str, ...] | None = None  # of its fields, for a class that has some


def first_difference(original: Any, copy: Any, *, inside: bool = True) -> str:
    """The path to the first difference of a payload and its copy; empty when they are equal.

    Without `inside`, two instances of one class with fields are equal.

    >>> first_difference({"a": [1, 2]}, {"a": [1, 3]})
    'payload.a.1'
    """
    way = _difference(original, copy, inside)
    return "" if way is None else f"payload{way}"


def has_fields(cls: Any) -> bool:
    """Whether it is a class of pydantic's models or a dataclass."""
    return isinstance(cls, type) and _shape(cls).names is not None


@lru_cache(maxsize=512)  # pydantic answers `isinstance` in Python, which is slow for each value of a list
def _shape(cls: Hashable) -> _ValueShape:
    assert isinstance(cls, type)
    if issubclass(cls, BaseModel):
        left_out = getattr(cls, "__omitted__", ())
        return _ValueShape(cls, _of_models, tuple(n for n in cls.__pydantic_fields__ if n not in left_out))
    if dataclasses.is_dataclass(cls):
        names = tuple(f.name for f in dataclasses.fields(cls) if f.init or f.compare)
        return _ValueShape(cls, _of_dataclasses, names)
    if issubclass(cls, dict):
        return _ValueShape(dict, _of_dicts)
    if issubclass(cls, deque) or hasattr(cls, "_fields"):
        return _ValueShape(cls, _of_sequences if issubclass(cls, deque | tuple) else _of_wholes)
    if issubclass(cls, list | tuple):
        return _ValueShape(list, _of_sequences)
    return _ValueShape(_WHOLE, _of_sets if issubclass(cls, set | frozenset) else _of_wholes)


def _difference(original: Any, copy: Any, inside: bool) -> str | None:
    """The way to where two values differ first; None when they do not."""
    cls: Any = type(original)
    other_cls: Any = type(copy)
    shape, other = _shape(cls), _shape(other_cls)
    if shape.kind is not other.kind:  # a mapping of another kind may still say that it equals a dict
        by_name = shape.names is not None or other.names is not None
        return "" if by_name or _WHOLE not in (shape.kind, other.kind) else _of_wholes(original, copy)
    return None if not inside and shape.names is not None else shape.compare(original, copy, shape, inside)


def _of_wholes(original: Any, copy: Any, *_: object) -> str | None:
    try:
        return None if original == copy else ""
    except Exception:  # the class has a comparison of its own
        return ""


def _of_sets(original: Any, copy: Any, shape: _ValueShape, inside: bool) -> str | None:
    if original != copy:
        return ""
    by_itself = {value: value for value in copy}
    same = all(_difference(value, by_itself[value], inside) is None for value in original)
    return None if same else ""


def _of_dataclasses(original: Any, copy: Any, shape: _ValueShape, inside: bool) -> str | None:
    fields = ((n, getattr(original, n, None), getattr(copy, n, None)) for n in shape.names or ())
    return _of_parts(fields, inside)


def _of_models(original: Any, copy: Any, shape: _ValueShape, inside: bool) -> str | None:
    extra = original.__pydantic_extra__ or {}, copy.__pydantic_extra__ or {}
    ours, theirs = original.__dict__, copy.__dict__
    if not _plainly_equal(ours, theirs, ours.values(), theirs.values()):
        way = _of_parts(((name, ours.get(name), theirs.get(name)) for name in shape.names or ()), inside)
        if way is not None:
            return way
    return _of_dicts(*extra, shape, inside) if extra[0] or extra[1] else None


def _of_dicts(original: Any, copy: Any, shape: _ValueShape, inside: bool) -> str | None:
    if original.keys() != copy.keys():
        return ""
    if _plainly_equal(original, copy, original.values(), copy.values()):
        return None
    return _of_parts(((key, value, copy[key]) for key, value in original.items()), inside)


def _of_sequences(original: Any, copy: Any, shape: _ValueShape, inside: bool) -> str | None:
    if len(original) != len(copy):
        return ""
    if _plainly_equal(original, copy, original, copy):
        return None
    pairs = enumerate(zip(original, copy, strict=True))
    return _of_parts(((n, value, other) for n, (value, other) in pairs), inside)


def _of_parts(parts: Iterator[tuple[Any, Any, Any]], inside: bool) -> str | None:
    for name, value, other in parts:
        if type(value) in _PLAIN and type(other) is type(value):
            way = None if value == other else ""
        else:
            way = _difference(value, other, inside)
        if way is not None:
            return f".{name}{way}"
    return None


def _plainly_equal(original: object, copy: object, values: Collection[Any], others: Collection[Any]) -> bool:
    """Whether they are equal and hold nothing but values without parts: the usual case, and a quick one."""
    return _PLAIN.issuperset(map(type, values)) and _PLAIN.issuperset(map(type, others)) and original == copy
