"""`field(...)`, `file(...)`, `scheduled(...)`: what a class body says about a column.

The only home of the option names. Each call gives back a `FieldSpec`, as a class attribute or
inside `Annotated`; nothing is judged here, because every mistake of an application is reported at
once, when it starts (`scan`).

>>> field(max_length=20, read_only=True).unknown
('unknown option 'read_only'; did you mean 'readonly'?',)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from maniflex._names import did_you_mean
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, SoftDelete

T = TypeVar("T")
RELATION_KEYWORD = "x-relation"  # in the schema of a request: the model of the record that a part refers to

OnDeleteName = Literal["cascade", "set_null", "restrict"]
LocaleMode = Literal["split", "resolve", "dynamic"]
Acl = Literal["private", "signed", "public"]
Upload = Literal["form", "stream", "presigned"]


class LocaleString(dict[str, str]):
    """A text in several languages: locale code → translation."""


class FieldOptions(TypedDict, total=False):
    """Every option of `field(...)` beside its default."""

    filterable: bool
    sortable: bool
    searchable: bool
    unique: bool | str | Sequence[str]
    ignore_case: bool
    index: bool
    readonly: bool
    immutable: bool
    writeonly: bool
    hidden: bool
    min: int | float | Decimal
    max: int | float | Decimal
    min_length: int
    max_length: int
    pattern: str
    lock_when: Mapping[str, Any]
    lock_scope: str | type
    relation: str | type | None
    on_delete: OnDeleteName
    encrypted: bool | str
    column: str
    renamed_from: str
    alias: str
    locale: bool | LocaleMode | Mapping[str, str]


FLAGS = (
    "filterable",
    "sortable",
    "searchable",
    "unique",
    "ignore_case",
    "index",
    "readonly",
    "immutable",
    "writeonly",
    "hidden",
)
FIELD_OPTIONS = frozenset(FieldOptions.__annotations__) | {"default", "default_factory"}
FILE_OPTIONS = frozenset(
    {"max_size", "accept", "acl", "auto_delete", "upload", "max_count", "sniff", "inline"}
)
SCHEDULED_OPTIONS = frozenset({"set_field", "from_", "to", "where", "soft_delete", "hard_delete"})

# What other libraries call it, and how it is said here.
_ELSEWHERE = {
    "required": "a field without a default that is not `| None` is required",
    "nullable": "write the type as `... | None`",
    "optional": "write the type as `... | None`",
    "null": "write the type as `... | None`",
    "enum": "write the type as `Literal[...]` or a StrEnum",
    "choices": "write the type as `Literal[...]` or a StrEnum",
    "ge": "use `min`",
    "le": "use `max`",
    "regex": "use `pattern`",
    "name": "use `alias` for the API name or `column` for the database's",
    "foreign_key": "use `relation`",
    "file": "write `= file(...)`",
    "scheduled": "write `= scheduled(...)`",
}


class FieldSpec:
    """The options one call was given, and what was wrong with their names."""

    __slots__ = ("assigned", "options", "unknown")

    def __init__(
        self, options: Mapping[str, Any], unknown: Iterable[str] = (), *, assigned: bool = False
    ) -> None:
        self.options = dict(options)
        self.unknown = tuple(unknown)
        self.assigned = assigned  # stands on the attribute, so it wins over `Annotated`

    def __repr__(self) -> str:
        return f"field({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """Say in the schema of a request, which is no model, which records a part of it refers to."""
        schema = handler(core_schema)
        if "relation" not in self.options:
            return schema
        target = self.options["relation"]
        return {**schema, RELATION_KEYWORD: target.__name__ if isinstance(target, type) else target}

    def on_attribute(self) -> FieldSpec:
        return FieldSpec(self.options, self.unknown, assigned=True)


def merge_specs(specs: Sequence[FieldSpec]) -> FieldSpec:
    """One spec out of several; later ones win, and what stands on the attribute wins over all."""
    options: dict[str, Any] = {}
    unknown: list[str] = []
    for spec in sorted(specs, key=lambda spec: spec.assigned):
        if "default" in spec.options:
            options.pop("default_factory", None)
        if "default_factory" in spec.options:
            options.pop("default", None)
        options.update(spec.options)
        unknown.extend(text for text in spec.unknown if text not in unknown)
    return FieldSpec(options, unknown)


def _spec(options: dict[str, Any], known_options: frozenset[str] = FIELD_OPTIONS) -> FieldSpec:
    unknown = [_unknown_option(name, known_options) for name in options if name not in known_options]
    return FieldSpec({name: value for name, value in options.items() if name in known_options}, unknown)


def _unknown_option(name: str, known_options: frozenset[str]) -> str:
    hint = did_you_mean(name, known_options)
    if name.lower() in _ELSEWHERE:
        hint = f"; {_ELSEWHERE[name.lower()]}"
    return f"unknown option {name!r}{hint}"


@overload
def field(*, default: T, **options: Unpack[FieldOptions]) -> T: ...
@overload
def field(*, default_factory: Callable[[], T], **options: Unpack[FieldOptions]) -> T: ...
@overload
def field(**options: Unpack[FieldOptions]) -> Any: ...
def field(**options: Any) -> Any:
    """Declare a column: its default, who may read, write and query it, and which values it takes."""
    return _spec(options)


@overload
def file(
    *,
    default: T,
    max_size: int | str = ...,
    accept: Sequence[str] = ...,
    acl: Acl = ...,
    auto_delete: bool = ...,
    upload: Upload = ...,
    max_count: int = ...,
    sniff: bool = ...,
    inline: bool = ...,
    **options: Unpack[FieldOptions],
) -> T: ...
@overload
def file(
    *,
    default_factory: Callable[[], T],
    max_size: int | str = ...,
    accept: Sequence[str] = ...,
    acl: Acl = ...,
    auto_delete: bool = ...,
    upload: Upload = ...,
    max_count: int = ...,
    sniff: bool = ...,
    inline: bool = ...,
    **options: Unpack[FieldOptions],
) -> T: ...
@overload
def file(
    *,
    max_size: int | str = ...,
    accept: Sequence[str] = ...,
    acl: Acl = ...,
    auto_delete: bool = ...,
    upload: Upload = ...,
    max_count: int = ...,
    sniff: bool = ...,
    inline: bool = ...,
    **options: Unpack[FieldOptions],
) -> Any: ...
def file(**options: Any) -> Any:
    """Declare a column that holds the storage key of an uploaded file, or the keys of several."""
    settings = {name: options.pop(name) for name in FILE_OPTIONS & options.keys()}
    return _spec_with_group("file", settings, options, FILE_OPTIONS)


@overload
def scheduled(
    *,
    default: T,
    set_field: str = ...,
    from_: Any = ...,
    to: Any = ...,
    where: Mapping[str, Any] = ...,
    soft_delete: bool = ...,
    hard_delete: bool = ...,
    **options: Unpack[FieldOptions],
) -> T: ...
@overload
def scheduled(
    *,
    set_field: str = ...,
    from_: Any = ...,
    to: Any = ...,
    where: Mapping[str, Any] = ...,
    soft_delete: bool = ...,
    hard_delete: bool = ...,
    **options: Unpack[FieldOptions],
) -> Any: ...
def scheduled(**options: Any) -> Any:
    """Declare a time at which the record changes or goes by itself."""
    settings = {name: options.pop(name) for name in SCHEDULED_OPTIONS & options.keys()}
    return _spec_with_group("scheduled", settings, options, SCHEDULED_OPTIONS)


def _spec_with_group(
    group: str, settings: dict[str, Any], options: dict[str, Any], group_options: frozenset[str]
) -> FieldSpec:
    spec = _spec(options, FIELD_OPTIONS | group_options)
    spec.options[group] = settings
    return spec


# What `scheduled(...)` says, once it has been checked: which time changes what of a record.


class ScheduledAction(StrEnum):
    """What happens to a record when its time has come."""

    SET_FIELD = "set_field"
    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"


FieldValues = tuple[tuple[str, tuple[Any, ...]], ...]  # fields, and the values they must have


@dataclass(frozen=True, slots=True)
class FieldSchedule:
    """One time of a model and its action; names are attributes."""

    time: str
    action: ScheduledAction
    target: str = ""
    to: Any = None
    from_: Any = None
    conditional: bool = False  # `from_` was given: None is a value like any other
    where: FieldValues = ()

    @property
    def where_beside_target(self) -> FieldValues:
        """The conditions that being served does not end: what the target was says nothing afterwards."""
        return tuple((name, values) for name, values in self.where if name != self.target)


def schedules(meta: ModelMeta) -> tuple[FieldSchedule, ...]:
    """Every schedule of a model, in declaration order."""
    return tuple(_schedule(f.name, f.extra["scheduled"]) for f in meta.fields if "scheduled" in f.extra)


def _schedule(name: str, settings: Mapping[str, Any]) -> FieldSchedule:
    [action] = [action for action in ScheduledAction if settings.get(action)]
    where = tuple(settings.get("where", {}).items())
    if action is not ScheduledAction.SET_FIELD:
        return FieldSchedule(name, action, where=where)
    conditional, from_ = "from_" in settings, settings.get("from_")
    return FieldSchedule(name, action, settings["set_field"], settings["to"], from_, conditional, where)


def target_problems(owner: str, target: FieldMeta, marker: SoftDelete | None) -> Iterator[str]:
    """Why a schedule cannot set this field."""
    if target.name in (owner, "id", "created_at", "updated_at") or target.encrypted is not None:
        yield f"{target.name} cannot be set by a schedule"
    elif target.kind is Kind.JSON:
        yield f"{target.name} is a JSON column and cannot be set by a schedule"
    elif marker is not None and target.name == marker.field:
        yield f"{target.name} marks deleted records; use soft_delete=True"
