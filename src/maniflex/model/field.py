"""`field(...)`, `file(...)`, `scheduled(...)`: what a class body says about a column.

The only home of the option names. Each call gives back a `FieldSpec`, as a class attribute or
inside `Annotated`; nothing is judged here, because every mistake of an application is reported at
once, when it starts (`scan`).

>>> field(max_length=20, read_only=True).unknown
('unknown option 'read_only'; did you mean 'readonly'?',)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, get_args, get_origin, overload

from maniflex._locales import LocaleMode
from maniflex._names import did_you_mean
from maniflex._settings import parse_size
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, SoftDelete

if TYPE_CHECKING:
    from maniflex.model.annotations import Shape

T = TypeVar("T")
RELATION_KEYWORD = "x-relation"  # in the schema of a request: the model of the record that a part refers to

OnDeleteName = Literal["cascade", "set_null", "restrict"]
Acl = Literal["private", "signed", "public"]
Upload = Literal["form", "stream", "presigned"]


class LocaleString(dict[str, str]):
    """A text in several languages: locale code → translation."""


class LocaleEdit(LocaleString):
    """Single translations that an update sets, and those it removes; the others stay."""

    def __init__(
        self, texts: Mapping[str, str], removed: Iterable[str] = (), *, bare: bool = False, asked: str = ""
    ) -> None:
        super().__init__(texts)
        self.removed = frozenset(removed)
        self.bare = bare  # one text without a locale: sent back as it was shown, it changes nothing
        self.asked = asked  # the locale of the request

    def with_texts(self, texts: Mapping[str, str]) -> LocaleEdit:
        """The same edit of these texts."""
        return LocaleEdit(texts, self.removed, bare=self.bare, asked=self.asked)


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
    personal: bool
    erased: Any
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
    blind_index: bool | Literal["casefold"]
    encrypted_as: str
    column: str
    renamed_from: str
    alias: str
    locale: bool | LocaleMode | Mapping[str, str]


class FileOptions(FieldOptions, total=False):
    """Every option of `file(...)` beside its default."""

    max_size: int | str
    accept: Sequence[str]
    acl: Acl
    auto_delete: bool
    upload: Upload
    max_count: int
    sniff: bool
    inline: bool


class ScheduledOptions(FieldOptions, total=False):
    """Every option of `scheduled(...)` beside its default."""

    set_field: str
    from_: Any
    to: Any
    where: Mapping[str, Any]
    soft_delete: bool
    hard_delete: bool


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
    "personal",
)
FIELD_OPTIONS = frozenset(FieldOptions.__annotations__) | {"default", "default_factory"}
FILE_OPTIONS = frozenset(FileOptions.__annotations__.keys() - FieldOptions.__annotations__.keys())
SCHEDULED_OPTIONS = frozenset(ScheduledOptions.__annotations__.keys() - FieldOptions.__annotations__.keys())

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
def file(*, default: T, **options: Unpack[FileOptions]) -> T: ...
@overload
def file(*, default_factory: Callable[[], T], **options: Unpack[FileOptions]) -> T: ...
@overload
def file(**options: Unpack[FileOptions]) -> Any: ...
def file(**options: Any) -> Any:
    """Declare a column that holds the storage key of an uploaded file, or the keys of several."""
    settings = {name: options.pop(name) for name in FILE_OPTIONS & options.keys()}
    return _spec_with_group("file", settings, options, FILE_OPTIONS)


@overload
def scheduled(*, default: T, **options: Unpack[ScheduledOptions]) -> T: ...
@overload
def scheduled(**options: Unpack[ScheduledOptions]) -> Any: ...
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
    ERASE = "erase"  # of rules of retention alone


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
    after: timedelta = timedelta(0)  # how long behind its time a record is due, by `retention=`
    unless: str = ""  # a bool field that keeps a record, by `retention_hold=`
    # Personal fields and what an erasure makes of them: a record with all of that has nothing left to erase.
    erased_values: tuple[tuple[str, Any], ...] = ()

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


# `file(...)`: the rules of a field that holds the storage key of a file, or the keys of several.


ACLS = ("private", "signed", "public")  # the strictest first
UPLOADS = ("form", "stream", "presigned")
DEFAULT_COUNT = 100
# The last components of other routes of a record, which a route of the field would hide or be hidden by.
TAKEN_NAMES = frozenset({"history", "restore", "export"})
_UNFIT = ("sortable", "searchable", "unique", "encrypted", "pattern", "min_length", "max_length")
_MIME = re.compile(r"(\*|[\w.+-]+)/(\*|[\w.+-]+)\Z")


@dataclass(frozen=True, slots=True)
class FileRules:
    """The options of one file field; those of a file that belongs to none are the defaults."""

    max_size: int | None = None  # bytes of each file
    accept: tuple[str, ...] = ()  # lower case; none: every type
    acl: str = "private"
    auto_delete: bool = True
    upload: str = "form"
    max_count: int = DEFAULT_COUNT
    sniff: bool = False
    inline: bool | None = None  # None: as the type of the file has it
    is_list: bool = False

    def accepts(self, content_type: str) -> bool:
        """Whether files of this type are taken; parameters and case do not count."""
        if not self.accept:
            return True
        bare = content_type.partition(";")[0].strip().lower()
        return any(_matches(pattern, bare) for pattern in self.accept)


def _matches(pattern: str, content_type: str) -> bool:
    main, _, sub = content_type.partition("/")
    pattern_main, _, pattern_sub = pattern.partition("/")
    return bool(main and sub) and pattern_main in ("*", main) and pattern_sub in ("*", sub)


def file_rules(options: Mapping[str, Any], *, is_list: bool) -> FileRules:
    """The rules that the options of `file(...)` make; what cannot be read is left out, and reported."""
    accept = options.get("accept") or ()
    patterns = (accept,) if isinstance(accept, str) else tuple(accept)
    count = options.get("max_count", DEFAULT_COUNT)
    return FileRules(
        max_size=size_in_bytes(options.get("max_size")),
        accept=tuple(pattern.lower() for pattern in patterns if isinstance(pattern, str)),
        acl=options.get("acl", "private"),
        auto_delete=options.get("auto_delete", True),
        upload=options.get("upload", "form"),
        max_count=count if type(count) is int else DEFAULT_COUNT,
        sniff=options.get("sniff", False),
        inline=options.get("inline"),
        is_list=is_list,
    )


def rules_of_field(field: FieldMeta) -> FileRules | None:
    """The rules of a field, if it holds files."""
    rules: FileRules | None = field.extra.get("file")
    return rules


def file_fields(model: ModelMeta) -> list[tuple[FieldMeta, FileRules]]:
    """The fields of a model that hold files."""
    return [(f, rules) for f in model.fields if (rules := rules_of_field(f)) is not None]


def file_problems(shape: Shape, options: Mapping[str, Any]) -> Iterator[str]:
    """Everything wrong with a file field as far as the field alone can tell."""
    file: Mapping[str, Any] = options["file"]
    is_list = get_origin(shape.type) is list and get_args(shape.type) == (str,)
    if not (shape.is_plain_text or is_list):
        yield "file() needs a text field, or a list[str] for several files"
    for name in _UNFIT:
        if options.get(name):
            yield f"{name} cannot be set on a file field, whose value is a storage key"
    for name, choices in (("acl", ACLS), ("upload", UPLOADS)):
        value = file.get(name, choices[0])
        if value not in choices:
            yield f"unknown {name} {value!r}; use {', '.join(choices)}{did_you_mean(str(value), choices)}"
    for name in ("auto_delete", "sniff", "inline"):
        if not isinstance(file.get(name, True), bool):
            yield f"{name} must be True or False"
    if "max_size" in file and size_in_bytes(file["max_size"]) is None:
        yield f"max_size {file['max_size']!r} is not a size; write bytes or a text like '2MB'"
    yield from _accept_problems(file.get("accept", ()))
    yield from _count_problems(file, is_list)


def _accept_problems(accept: Any) -> Iterator[str]:
    if isinstance(accept, str) or not isinstance(accept, Sequence):
        yield "accept must be a list of media types"
        return
    for pattern in accept:
        if not isinstance(pattern, str) or not _MIME.match(pattern):
            yield f"accept: {pattern!r} is not a media type like 'image/*'"


def _count_problems(file: Mapping[str, Any], is_list: bool) -> Iterator[str]:
    if "max_count" not in file:
        return
    if type(file["max_count"]) is not int or file["max_count"] < 1:
        yield f"max_count must be a whole number of files, not {file['max_count']!r}"
    elif not is_list:
        yield "max_count needs a list[str]"


def file_name_problem(field: FieldMeta) -> str | None:
    """A name whose route another one of the record has."""
    if "file" in field.extra and field.api in TAKEN_NAMES:
        return f"a file field cannot be called {field.api!r}, because the route of that name is taken"
    return None


def size_in_bytes(size: Any) -> int | None:
    """`"2MB"` → 2097152; None when it is not a positive size."""
    if isinstance(size, str):
        try:
            size = parse_size(size)
        except ValueError:
            return None
    return size if type(size) is int and size > 0 else None
