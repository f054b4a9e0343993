"""Whether a payload that was read back is the one that was given, and where it is not.

A class may compare its instances by less than they hold, by their id for example. So values are compared part
by part, and `==` counts only for those that have no parts. A tuple may be a list, which it is in JSON. What
no payload carries (private attributes, `__omitted__` fields) does not count.

>>> first_difference({"a": [1, 2]}, {"a": [1, 3]})
'payload.a.1'
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel

_PLAIN = frozenset({str, int, float, bool, type(None), bytes, Decimal, UUID, datetime, date, time, timedelta})
_WHOLE = object()  # the kind of what has no parts by name: whether two are equal is theirs to say


class _Shape(NamedTuple):
    """What the values of a class consist of."""

    kind: object  # what two values have to have in common
    compare: Callable[[Any, Any, _Shape, bool], str | None]
    names: tuple[str, ...] | None = None  # of its fields, for a class that has some


def first_difference(given: Any, arrived: Any, *, inside: bool = True) -> str:
    """Where a payload differs from what arrives; nothing when they are equal.

    Without `inside`, two instances of one class with fields are equal.
    """
    way = _difference(given, arrived, inside)
    return "" if way is None else f"payload{way}"


def has_fields(cls: Any) -> bool:
    """Whether it is a class of pydantic's models or a dataclass."""
    return isinstance(cls, type) and _shape(cls).names is not None


@lru_cache(maxsize=512)  # pydantic answers `isinstance` in Python, which is slow for each value of a list
def _shape(cls: Hashable) -> _Shape:
    assert isinstance(cls, type)
    if issubclass(cls, BaseModel):
        left_out = getattr(cls, "__omitted__", ())
        return _Shape(cls, _of_models, tuple(n for n in cls.__pydantic_fields__ if n not in left_out))
    if dataclasses.is_dataclass(cls):
        names = tuple(f.name for f in dataclasses.fields(cls) if f.init or f.compare)
        return _Shape(cls, _of_dataclasses, names)
    if issubclass(cls, dict):
        return _Shape(dict, _of_dicts)
    if issubclass(cls, deque) or hasattr(cls, "_fields"):
        return _Shape(cls, _of_sequences if issubclass(cls, deque | tuple) else _of_wholes)
    if issubclass(cls, list | tuple):
        return _Shape(list, _of_sequences)
    return _Shape(_WHOLE, _of_sets if issubclass(cls, set | frozenset) else _of_wholes)


def _difference(given: Any, arrived: Any, inside: bool) -> str | None:
    """The way to where two values differ first; None when they do not."""
    cls: Any = type(given)
    other_cls: Any = type(arrived)
    shape, other = _shape(cls), _shape(other_cls)
    if shape.kind is not other.kind:  # a mapping of another kind may still say that it equals a dict
        by_name = shape.names is not None or other.names is not None
        return "" if by_name or _WHOLE not in (shape.kind, other.kind) else _of_wholes(given, arrived)
    return None if not inside and shape.names is not None else shape.compare(given, arrived, shape, inside)


def _of_wholes(given: Any, arrived: Any, *_: object) -> str | None:
    try:
        return None if given == arrived else ""
    except Exception:  # a comparison of somebody's own
        return ""


def _of_sets(given: Any, arrived: Any, shape: _Shape, inside: bool) -> str | None:
    if given != arrived:
        return ""
    by_itself = {value: value for value in arrived}
    same = all(_difference(value, by_itself[value], inside) is None for value in given)
    return None if same else ""


def _of_dataclasses(given: Any, arrived: Any, shape: _Shape, inside: bool) -> str | None:
    fields = ((n, getattr(given, n, None), getattr(arrived, n, None)) for n in shape.names or ())
    return _of_parts(fields, inside)


def _of_models(given: Any, arrived: Any, shape: _Shape, inside: bool) -> str | None:
    extra = given.__pydantic_extra__ or {}, arrived.__pydantic_extra__ or {}
    ours, theirs = given.__dict__, arrived.__dict__
    if not _plainly_equal(ours, theirs, ours.values(), theirs.values()):
        way = _of_parts(((name, ours.get(name), theirs.get(name)) for name in shape.names or ()), inside)
        if way is not None:
            return way
    return _of_dicts(*extra, shape, inside) if extra[0] or extra[1] else None


def _of_dicts(given: Any, arrived: Any, shape: _Shape, inside: bool) -> str | None:
    if given.keys() != arrived.keys():
        return ""
    if _plainly_equal(given, arrived, given.values(), arrived.values()):
        return None
    return _of_parts(((key, value, arrived[key]) for key, value in given.items()), inside)


def _of_sequences(given: Any, arrived: Any, shape: _Shape, inside: bool) -> str | None:
    if len(given) != len(arrived):
        return ""
    if _plainly_equal(given, arrived, given, arrived):
        return None
    pairs = enumerate(zip(given, arrived, strict=True))
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


def _plainly_equal(given: object, arrived: object, values: Collection[Any], others: Collection[Any]) -> bool:
    """Whether they are equal and hold nothing but values without parts: the usual case, and a quick one."""
    return _PLAIN.issuperset(map(type, values)) and _PLAIN.issuperset(map(type, others)) and given == arrived
