"""Annotation → `Shape`: which kind of column a type becomes, or why it cannot become one.

The only place that looks inside annotations of columns. It never raises: a type without a column
gives a `Shape` whose `trouble` says so.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from importlib.util import find_spec
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, EmailStr, JsonValue, NameEmail, SecretBytes, SecretStr
from typing_extensions import is_typeddict

from maniflex.model.declared import Kind
from maniflex.model.field import FieldSpec, LocaleString

# The annotation of a kind; None: JSON has several (`_is_json`).
TYPES: dict[Kind, type | None] = {
    Kind.TEXT: str,
    Kind.INT: int,
    Kind.FLOAT: float,
    Kind.BOOL: bool,
    Kind.DECIMAL: Decimal,
    Kind.DATETIME: datetime,
    Kind.DATE: date,
    Kind.TIME: time,
    Kind.UUID: UUID,
    Kind.BYTES: bytes,
    Kind.JSON: None,
}
_SCALARS: dict[Any, Kind] = {cls: kind for kind, cls in TYPES.items() if cls is not None}
_ADDRESSES = frozenset(
    {
        ipaddress.IPv4Address,
        ipaddress.IPv4Interface,
        ipaddress.IPv4Network,
        ipaddress.IPv6Address,
        ipaddress.IPv6Interface,
        ipaddress.IPv6Network,
    }
)
SUPPORTED = (
    f"{', '.join(cls.__name__ for cls in _SCALARS)}, Literal, StrEnum, EmailStr, HttpUrl, dict, list, "
    "a dataclass, a TypedDict or a pydantic model, each with or without `| None`"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What an annotation means for a column."""

    kind: Kind
    type: Any
    nullable: bool = False
    enum: tuple[Any, ...] | None = None
    specs: tuple[FieldSpec, ...] = ()
    trouble: str | None = None

    @property
    def is_plain_text(self) -> bool:
        return self.kind is Kind.TEXT and self.enum is None

    @property
    def is_text_like(self) -> bool:
        """Whether a type of pydantic checks the text and gives it its usual form."""
        return self.is_plain_text and self.type is not str

    @property
    def is_structured(self) -> bool:
        """Whether stored JSON must be turned into objects rather than plain dicts and lists."""
        return self.kind is Kind.JSON and _is_structured(self.type)


def classify(annotation: Any) -> Shape:
    """Read an annotation, through `Annotated`, type aliases and `| None`."""
    specs: list[FieldSpec] = []
    bare, nullable = _unwrap(annotation, specs)
    kind, enum, trouble = _kind_of(bare)
    return Shape(kind, bare, nullable, enum, tuple(specs), trouble)


def is_unresolved(annotation: Any) -> bool:
    """Whether a name in the annotation has not been found yet."""
    return any(isinstance(part, (str, ForwardRef)) for part in _parts(annotation))


def _unwrap(annotation: Any, specs: list[FieldSpec]) -> tuple[Any, bool]:
    if annotation is JsonValue:  # whatever JSON can say; the alias names itself, so it is not looked into
        return annotation, False
    if _is_alias(annotation):
        return _unwrap(annotation.__value__, specs)
    if isinstance(annotation, NewType):
        return _unwrap(annotation.__supertype__, specs)
    origin = get_origin(annotation)
    if origin is Annotated:
        bare, nullable = _unwrap(annotation.__origin__, specs)
        specs.extend(item for item in annotation.__metadata__ if isinstance(item, FieldSpec))
        return bare, nullable
    if origin in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        nullable = len(members) < len(get_args(annotation))
        if len(members) == 1:
            bare, inner_nullable = _unwrap(members[0], specs)
            return bare, nullable or inner_nullable
        return Union[tuple(members)], nullable  # noqa: UP007 - the members are known only now
    return annotation, False


def _kind_of(bare: Any) -> tuple[Kind, tuple[Any, ...] | None, str | None]:
    if not _is_hashable(bare):
        return Kind.JSON, None, f"no column can hold {type_name(bare)}; use {SUPPORTED}"
    if bare in _SCALARS:
        return _SCALARS[bare], None, None
    if get_origin(bare) is Literal:
        return _enumeration(get_args(bare))
    if isinstance(bare, type) and issubclass(bare, Enum):
        return _enumeration(tuple(member.value for member in bare))
    if _is_text_like(bare):
        return Kind.TEXT, None, _missing_library(bare)
    if bare in (SecretStr, SecretBytes):
        return Kind.TEXT, None, f"no column can hold {bare.__name__}; write str with field(writeonly=True)"
    if _relation_hint(bare):
        return Kind.JSON, None, _relation_hint(bare)
    if _is_json(bare):
        return Kind.JSON, None, None
    return Kind.JSON, None, f"no column can hold {type_name(bare)}; use {SUPPORTED}"


def _is_text_like(bare: Any) -> bool:
    """Whether pydantic reads and writes the type as text: addresses of mail, the web and networks."""
    if not isinstance(bare, type):
        return False
    is_own = bare.__module__ == "pydantic.networks" or issubclass(bare, str)
    return bare in _ADDRESSES or (is_own and hasattr(bare, "__get_pydantic_core_schema__"))


def _missing_library(bare: Any) -> str | None:
    if bare in (EmailStr, NameEmail) and find_spec("email_validator") is None:
        return f'{bare.__name__} needs email-validator: pip install "maniflex[email]"'
    return None


def _enumeration(values: tuple[Any, ...]) -> tuple[Kind, tuple[Any, ...] | None, str | None]:
    if not values:
        return Kind.TEXT, (), "the enum has no members"
    if any(value == "" for value in values):
        return Kind.TEXT, values, "an enum member is empty"
    if all(isinstance(value, str) for value in values):
        return Kind.TEXT, values, None
    if all(type(value) is int or (isinstance(value, int) and isinstance(value, Enum)) for value in values):
        return Kind.INT, values, None
    return Kind.TEXT, values, "the members of an enum must be all text or all integers"


def _is_json(bare: Any) -> bool:
    origin = get_origin(bare) or bare
    return bare is JsonValue or origin in (dict, list, LocaleString) or _is_structured(bare)


def _is_structured(bare: Any) -> bool:
    return any(
        is_typeddict(part)
        or (isinstance(part, type) and dataclasses.is_dataclass(part))
        or _issubclass(part, BaseModel)
        or part in (LocaleString, datetime, date, time, Decimal, UUID, bytes)
        for part in _parts(bare)
        if _is_hashable(part)
    )


def _relation_hint(bare: Any) -> str | None:
    if _is_model(bare):
        return f"{bare.__name__} is a model: write `= belongs_to()` beside a column for its id"
    if get_origin(bare) is list and any(map(_is_model, get_args(bare))):
        return "a list of models is a relation: write `= has_many()` or `= many_to_many(through=...)`"
    return None


def _is_model(candidate: Any) -> bool:
    """Whether it is a model class; by what all of them have, because `Model` is made with this module."""
    return isinstance(candidate, type) and hasattr(candidate, "__relations__")


def _parts(annotation: Any) -> Iterator[Any]:
    """The annotation and everything it is made of; Literal members are values, not types."""
    yield annotation
    if annotation is JsonValue:
        return
    if _is_alias(annotation):
        yield from _parts(annotation.__value__)
    elif get_origin(annotation) is Annotated:
        yield from _parts(annotation.__origin__)
    elif get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from _parts(argument)


def _is_alias(annotation: Any) -> bool:
    # `type X = ...`: the class lives in typing or in typing_extensions, depending on the Python.
    return type(annotation).__name__ == "TypeAliasType"


def type_name(annotation: Any) -> str:
    """The annotation as a reader would write it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _issubclass(candidate: Any, parent: type) -> bool:
    try:
        return issubclass(candidate, parent)
    except TypeError:
        return False


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
