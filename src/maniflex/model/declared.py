"""What a class body can say of a model, as plain values: kinds of columns and relations, options, indexes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from maniflex._callables import explain_class
from maniflex.config import Limits


class Kind(StrEnum):
    """The sort of value a column holds."""

    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    DECIMAL = "decimal"
    DATETIME = "datetime"
    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    BYTES = "bytes"
    JSON = "json"


NUMBERS = frozenset({Kind.INT, Kind.FLOAT, Kind.DECIMAL})


class RelationKind(StrEnum):
    """How two models are joined."""

    BELONGS_TO = "belongs_to"
    HAS_MANY = "has_many"
    MANY_TO_MANY = "many_to_many"


class OnDelete(StrEnum):
    """What happens to referencing rows when the referenced one goes."""

    CASCADE = "cascade"
    SET_NULL = "set_null"
    RESTRICT = "restrict"
    NO_ACTION = "no_action"


@explain_class
@dataclass(frozen=True, slots=True)
class SoftDelete:
    """Which field marks a row as deleted, and how."""

    field: str
    timestamp: bool  # True: null or a time; False: a flag


@explain_class
@dataclass(frozen=True, slots=True)
class Index:
    """A further index of the table; `columns` are attribute names."""

    columns: tuple[str, ...]
    unique: bool = False
    name: str | None = None


class TypedSelect(str):
    """A `query=` whose columns are of the types of their fields already, so that indexes serve them."""

    __slots__ = ()


OnErase = Literal["anonymise", "delete", "keep"]
RetentionAction = Literal["delete", "soft_delete", "erase"]


@explain_class
@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept: `after` this time `since` a moment of theirs, `action` is done to them.

    Of records whose fields do not have the values of `where`, the rule says nothing.
    """

    after: str | timedelta
    since: str = "created_at"
    action: RetentionAction = "delete"
    where: Mapping[str, Any] | None = None


@explain_class
@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Per-model options; the same names are class keywords, and these win over them."""

    table: str | None = None
    renamed_from: str | None = None
    soft_delete: bool | str | SoftDelete | None = None
    versioned: bool | None = None
    versioned_diff_only: bool | None = None
    history_table: str | None = None
    history_list: bool | None = None
    history_restore: bool | None = None
    history_scope: str | Sequence[str] | None = None
    history_retention: str | timedelta | None = None
    retention: str | timedelta | Retention | Sequence[Retention] | None = None
    deleted_retention: str | timedelta | None = None
    retention_hold: str | None = None
    subject: str | None = None
    on_erase: OnErase | None = None
    keep_reason: str | None = None
    events: Any = None  # True, or an Emit: its writes make events
    indices: Sequence[Index | Sequence[str]] | None = None
    export: bool | None = None
    max_export_rows: int | None = None
    aggregate: bool | None = None
    optimistic_lock: bool | None = None
    singleton: bool | None = None
    headless: bool | None = None
    cursor_field: str | None = None
    search_language: str | None = None
    global_searchable: bool | None = None
    default_locale: str | None = None
    locale_mode: str | None = None
    database: Any = None
    backend: Any = None
    middleware: Any = None
    query: str | Mapping[str, str] | None = None
    restore: bool | None = None
    limits: Limits | None = None
    operations: str | Collection[str] | None = None  # the routes there are; None: all
