"""What a model is, once its class has been read: frozen values everything else works from.

`scan` makes them, the registry keeps them; nothing below `pipeline` ever looks at a class body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

# What class bodies say is part of what a model is; the modules that `Model` is made of import it from there.
from maniflex.model.declared import NUMBERS as NUMBERS
from maniflex.model.declared import Index as Index
from maniflex.model.declared import Kind as Kind
from maniflex.model.declared import ModelOptions as ModelOptions
from maniflex.model.declared import OnDelete as OnDelete
from maniflex.model.declared import RelationKind as RelationKind
from maniflex.model.declared import Retention as Retention
from maniflex.model.declared import SoftDelete as SoftDelete
from maniflex.model.declared import TypedSelect as TypedSelect

if TYPE_CHECKING:
    from maniflex.model.base import Model
    from maniflex.model.field import FieldSchedule
    from maniflex.model.validate import Validator


DIGEST_SUFFIX = "_hmac"


@dataclass(frozen=True, slots=True, eq=False)  # one object for one field; found by identity
class FieldMeta:
    """One column: its three names, its kind and its rules."""

    name: str  # the attribute
    api: str  # the name in request and response bodies
    column: str  # the name in the database
    kind: Kind
    type: Any  # the annotation, without `| None` and without `Annotated` metadata
    nullable: bool = False
    required: bool = False  # must be sent on create
    has_default: bool = False
    default: Any = None
    default_factory: Callable[[], Any] | None = None
    enum: tuple[Any, ...] | None = None
    min: Any = None
    max: Any = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    filterable: bool = False
    sortable: bool = False
    searchable: bool = False
    unique: bool = False
    unique_within: tuple[str, ...] = ()  # attributes: unique among the rows that share their values
    ignore_case: bool = False  # kept in small letters, and looked for like that
    index: bool = False
    readonly: bool = False
    immutable: bool = False
    writeonly: bool = False
    hidden: bool = False
    personal: bool = False  # the data of the person that the record is about
    lock_scope: str | None = None
    encrypted: str | None = None  # the id of its key
    blind_index: str = ""  # of an encrypted field that clients match by equality: "exact" or "casefold"
    labels: tuple[str, ...] = ()  # what its envelopes are bound to; the first one is written
    load_json: Callable[[str | bytes], Any] | None = None  # stored JSON text → the declared type
    renamed_from: str | None = None  # the column it had before, whose values it keeps
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_text_like(self) -> bool:
        """Whether a type of pydantic, such as `EmailStr`, checks its text."""
        return self.kind is Kind.TEXT and self.enum is None and self.type is not str

    @property
    def visible(self) -> bool:
        """Whether a response may carry it."""
        return not (self.hidden or self.writeonly)

    @property
    def exported(self) -> bool:
        """Whether an export may have it as a column; a reader has no use for the key of a stored file."""
        return not self.secret and "file" not in self.extra

    @property
    def secret(self) -> bool:
        """Whether it has no order, no search and no copies: at most answers to its readers show it."""
        return self.hidden or self.writeonly or self.encrypted is not None

    @property
    def is_matched(self) -> bool:
        """Whether a client may filter by it; by a blind index only for equality."""
        return self.visible if self.blind_index else self.filterable and not self.secret

    @property
    def has_digest(self) -> bool:
        """Whether a digest stands beside its envelope."""
        return self.encrypted is not None and (self.unique or bool(self.blind_index))

    @property
    def digest_column(self) -> str:
        """The column that equality is decided by: that of its digest, or its own."""
        return f"{self.column}{DIGEST_SUFFIX}" if self.has_digest else self.column


@dataclass(frozen=True, slots=True, eq=False)
class RelationMeta:
    """One relation, by the name it is included under."""

    name: str
    kind: RelationKind
    target: str  # model name
    key: str | None = None  # belongs_to: our attribute; has_many: theirs; many_to_many: the junction's, to us
    through: str | None = None  # many_to_many: the junction model's name
    far_key: str | None = None  # many_to_many: the junction's attribute that refers to the target
    on_delete: OnDelete = OnDelete.NO_ACTION
    explicit: bool = True  # False: found by the `_id` naming convention
    nested: bool = False  # whether bodies may write the records that it leads to


@dataclass(frozen=True, slots=True)
class Lock:
    """`lock_when`: the record is frozen while `field` equals `value`."""

    field: str
    value: Any


@dataclass(frozen=True, slots=True)
class TableRules:
    """What the database itself sees to in a table of the framework, for rows that other programs write.

    A model class carries them as `__table_rules__`; the names in `defaults` are attributes.
    """

    defaults: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # name → condition
    old_indexes: tuple[str, ...] = ()  # of earlier versions, which statements of the framework drop


def is_one_of(column: str, values: Sequence[str]) -> str:
    """The condition of a check; not written with IN, whose list SQLite indexes anew at every write."""
    return " OR ".join(f"{column} = '{value}'" for value in values)


@dataclass(frozen=True, slots=True, eq=False)
class ModelMeta:
    """One model, ready to be served."""

    cls: type[Model]
    name: str
    table: str
    fields: tuple[FieldMeta, ...]  # in declaration order; id first, created_at and updated_at last
    relations: Mapping[str, RelationMeta]
    options: ModelOptions
    soft_delete: SoftDelete | None
    locks: tuple[Lock, ...]
    indices: tuple[Index, ...]
    validator: Validator
    by_name: Mapping[str, FieldMeta]
    by_api: Mapping[str, FieldMeta]
    retention: tuple[FieldSchedule, ...] = ()  # when its records go by themselves, and how
    hold: str | None = None  # the bool attribute that keeps a record from retention
    # Columns beside those of fields that no code names: the digests of encrypted fields.
    companions: tuple[FieldMeta, ...] = ()
    # Attributes that catalogue entries fill in new records; known once the entries are placed.
    filled_by_entries: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return f"<ModelMeta {self.name} table={self.table!r}>"

    @property
    def stored(self) -> tuple[FieldMeta, ...]:
        """All columns of its table: the fields, and their companions behind them."""
        return self.fields + self.companions if self.companions else self.fields

    @property
    def is_internal(self) -> bool:
        """Whether it is a table of the framework, such as runs, which has guards and ways of its own."""
        return self.cls.__module__.startswith("maniflex.")

    @property
    def closed(self) -> frozenset[str]:
        """Attributes a client can never set."""
        return frozenset(f.name for f in self.fields if f.readonly or f.hidden or f.name == "id")

    @property
    def names_to_fill(self) -> frozenset[str]:
        """Required attributes that the server fills before a record is stored, so that no client is asked."""
        names = self.closed | self.filled_by_entries
        return frozenset(f.name for f in self.fields if f.required and f.name in names)

    @property
    def create_record(self) -> Callable[[Mapping[str, Any]], Model]:
        """What makes the record of a create body; what the server fills later may be None in it."""
        return (
            self.validator.create_without(self.names_to_fill) if self.names_to_fill else self.validator.create
        )

    def asks_for(self, field: FieldMeta) -> bool:
        """Whether a client has to send the field of a new record."""
        return field.required and field.name not in self.names_to_fill

    @property
    def exact(self) -> bool:
        """Whether fractions must keep all their digits on the way in."""
        return any(f.kind is Kind.DECIMAL for f in self.fields)

    def field(self, name: str) -> FieldMeta | None:
        """The field of that attribute or API name."""
        return self.by_name.get(name) or self.by_api.get(name)
