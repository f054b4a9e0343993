"""One model as the panel shows it: its `ModelAdmin` with every default filled in from the model."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from maniflex._names import did_you_mean
from maniflex.admin.declare import AdminAction, ModelAdmin
from maniflex.db.backend import operators_of
from maniflex.middleware.service.service_entry import OwnerEntry
from maniflex.middleware.workflow import StateRules
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.model.texts import control_field
from maniflex.pipeline.entry import require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.routes import serves
from maniflex.pipeline.rules.transforms import Computed

_LABELS = ("title", "name", "label", "subject", "email", "username", "number", "code", "slug", "key")
_MOST_COLUMNS = 6
LONG_NAMES = frozenset(
    (
        "body",
        "text",
        "content",
        "description",
        "notes",
        "note",
        "summary",
        "bio",
        "message",
        "comment",
        "blurb",
    )
)
WIDGET_NAMES = ("text", "textarea", "markdown")  # for fields with text
LONG_TEXT = 200  # a text that may be longer gets several lines in forms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelSite:
    """A model of the panel."""

    meta: ModelMeta
    admin: ModelAdmin
    api_path: str
    computed: tuple[str, ...]
    models: Mapping[str, ModelMeta]
    actions: tuple[AdminAction, ...]
    read_only: bool
    state_rules: Mapping[str, StateRules] = field(default_factory=dict)  # of fields with a state machine
    owner_entries: Sequence[OwnerEntry] = ()  # they write the caller into new records

    # -- texts

    @property
    def title(self) -> str:
        """One record of it."""
        return title_of(self.meta.name)

    @property
    def plural(self) -> str:
        """Many of them."""
        return title_of(self.meta.table)

    @property
    def table(self) -> str:
        return self.meta.table

    def label_of(self, record: Mapping[str, Any]) -> str:
        """What a record is called."""
        label = self.admin.label
        if label:
            values = {
                name: _text(record.get(name)) for _, name, _, _ in string.Formatter().parse(label) if name
            }
            text = label.format_map(values).strip()
        else:
            text = next((_text(record.get(f.api)) for f in self.label_fields if record.get(f.api)), "")
        return text[:200] or str(record.get("id") or self.title)

    @property
    def label_fields(self) -> list[FieldMeta]:
        """The fields that name a record, the best first."""
        if self.admin.label:
            names = [name for _, name, _, _ in string.Formatter().parse(self.admin.label) if name]
            return [f for f in map(self.meta.field, names) if f is not None]
        visible_fields = [
            f
            for f in map(control_field, self.fields)
            if f.kind is Kind.TEXT and f.enum is None and "file" not in f.extra
        ]
        keys = {relation.key for relation in self.parents.values()}
        visible_fields = [f for f in visible_fields if f.name not in (*keys, "id")]
        return sorted(
            visible_fields, key=lambda f: _LABELS.index(f.name) if f.name in _LABELS else len(_LABELS)
        )[:2]

    # -- fields

    @property
    def fields(self) -> list[FieldMeta]:
        """The fields that a list or a page may show."""
        return [f for f in self.meta.fields if not f.secret]

    @property
    def columns(self) -> list[FieldMeta]:
        """The columns of its list unless somebody chooses others."""
        if self.admin.columns:
            return [f for f in map(self.meta.field, self.admin.columns) if f is not None]
        first = self.label_fields[:1]
        narrow = [
            f
            for f in self.fields
            if control_field(f).kind not in (Kind.JSON, Kind.BYTES)
            and f.name not in LONG_NAMES
            and f.name not in ("id", "created_at", "updated_at")
            and control_field(f) not in first
            and not (self.meta.soft_delete and f.name == self.meta.soft_delete.field)
        ]
        creation_time = [f for f in self.fields if f.name == "created_at"]
        return [*first, *narrow[: _MOST_COLUMNS - 1], *creation_time] or self.fields[:_MOST_COLUMNS]

    @property
    def filters(self) -> list[FieldMeta]:
        """The fields with a control above the list."""
        open_fields = [f for f in self.fields if f.filterable]
        if self.admin.filters is None:
            marker = self.meta.soft_delete
            usual = ("id", "updated_at", *([marker.field] if marker else []))
            return [f for f in open_fields if f.name not in usual]
        return [f for f in open_fields if f.name in self.admin.filters or f.api in self.admin.filters]

    def choices(self, field_meta: FieldMeta, source: Any, *, is_new: bool) -> list[Any]:
        """The members of an enum that can be chosen: of a state machine those that can follow."""
        members, rules = list(field_meta.enum or ()), self.state_rules.get(field_meta.name)
        return members if rules is None else rules.possible(members, source, is_new=is_new)

    def owner_fields(self, roles: Collection[str]) -> frozenset[str]:
        """The fields that name whoever makes a record, for somebody with these roles."""
        entries = [one for one in self.owner_entries if one.exempt_roles.isdisjoint(roles)]
        return frozenset(require_field(self.meta, one.sets).name for one in entries)

    @property
    def parents(self) -> dict[str, RelationMeta]:
        """Relations to the record that it belongs to, by the attribute that holds the id."""
        return {
            relation.key: relation
            for relation in self.meta.relations.values()
            if relation.kind is RelationKind.BELONGS_TO and relation.key and relation.target in self.models
        }

    @property
    def children(self) -> list[RelationMeta]:
        """Relations to records that belong to it."""
        return [r for r in self.meta.relations.values() if r.kind is RelationKind.HAS_MANY]

    @property
    def links(self) -> list[RelationMeta]:
        """Relations through a junction."""
        return [r for r in self.meta.relations.values() if r.kind is RelationKind.MANY_TO_MANY]

    @property
    def search_fields(self) -> list[FieldMeta]:
        """The fields that `?q=` looks into where there is no full text search."""
        names = self.admin.search or [f.name for f in self.filters if f.kind is Kind.TEXT and not f.enum]
        fields = [f for f in map(self.meta.field, names) if f is not None]
        keys = set(self.parents)
        fields = [f for f in fields if f.filterable and f.name not in keys and "file" not in f.extra]
        if not self.takes("contains"):
            return []
        backend = self.meta.options.backend
        return fields if backend is None or getattr(backend, "any_of", False) else fields[:1]

    def takes(self, *operators: str) -> bool:
        """Whether its filters take all of these operators; a backend may have few."""
        backend = self.meta.options.backend
        return backend is None or operators_of(backend).issuperset(operators)

    @property
    def is_searchable(self) -> bool:
        """Whether full text search finds its records."""
        return any(f.searchable and not f.secret for f in self.meta.fields)

    @property
    def has_id(self) -> bool:
        return "id" in self.meta.by_name

    @property
    def is_walked(self) -> bool:
        """Whether its pages follow each other by the place of a row; a backend counts pages."""
        return self.has_id and self.meta.options.backend is None

    @property
    def is_query(self) -> bool:
        """Whether its rows are made by a query, so that nothing can be written."""
        return self.meta.options.query is not None

    @property
    def is_singleton(self) -> bool:
        return bool(self.meta.options.singleton)

    @property
    def can_write(self) -> bool:
        return not self.read_only and not self.is_query

    @property
    def can_create(self) -> bool:
        return (
            self.can_write
            and self.admin.can_create
            and not self.is_singleton
            and serves(self.meta, Operation.CREATE, item=False)
        )

    @property
    def can_edit(self) -> bool:
        if not (self.can_write and serves(self.meta, Operation.UPDATE, item=True)):
            return False
        return self.admin.can_edit and (self.has_id or self.is_singleton)

    @property
    def can_delete(self) -> bool:
        if not (self.can_write and serves(self.meta, Operation.DELETE, item=True)):
            return False
        return self.admin.can_delete and self.has_id and not self.is_singleton


@dataclass(frozen=True, slots=True, eq=False)
class Computeds:
    """The names of computed fields by model."""

    by_model: Mapping[Any, Sequence[Computed]]

    def of(self, meta: ModelMeta) -> tuple[str, ...]:
        return tuple(one.name for one in self.by_model.get(meta.cls, ()))


class Sites:
    """All models of a panel."""

    def __init__(self, sites: Sequence[ModelSite], others: Sequence[ModelSite] = ()) -> None:
        self.all = tuple(sites)
        self.with_routes = {
            site.meta.name: site for site in (*sites, *others)
        }  # also those that no page lists
        self.by_table = {site.table: site for site in sites}
        self.by_name = {site.meta.name: site for site in sites}

    @cached_property
    def groups(self) -> list[tuple[str, list[ModelSite]]]:
        """The models in the order of the navigation, by group."""
        groups: dict[str, list[ModelSite]] = {}
        for site in sorted(self.all, key=lambda one: one.plural):
            groups.setdefault(site.admin.group, []).append(site)
        return sorted(groups.items(), key=lambda item: (item[0] != "", item[0]))


def site_problems(admin: ModelAdmin, meta: ModelMeta) -> Iterator[str]:
    """The names in a `ModelAdmin` that are no fields, or fields it may not show."""
    where = f"ModelAdmin({meta.name})"
    label_names = [name for _, name, _, _ in string.Formatter().parse(admin.label) if name]
    names_by_option = {
        "label": label_names,
        "columns": admin.columns,
        "filters": admin.filters or (),
        "search": admin.search,
        "sort": [admin.sort.partition(":")[0]] if admin.sort else (),
        "readonly": admin.readonly,
        "reveal": admin.reveal,
        "widgets": admin.widgets,
        "help": admin.help,
        "form": [name for section in admin.form for name in section.fields],
    }
    known_names = {name for f in meta.fields for name in (f.name, f.api)} | set(meta.relations)
    for option, names in names_by_option.items():
        for name in names:
            field = meta.field(name)
            if field is None and not (name in meta.relations and option == "form"):
                yield f"{where}: {option}: {meta.name} has no field {name!r}{did_you_mean(name, known_names)}"
            elif field is not None:
                yield from (f"{where}: {text}" for text in _field_problems(option, field, name))
    if admin.private and not meta.options.headless:
        yield f"{where}: private= is for headless models; {meta.name} has routes of its own"
    for name, widget in admin.widgets.items():
        if widget not in WIDGET_NAMES:
            yield f"{where}: widgets: {widget!r} of {name!r} is none of {', '.join(WIDGET_NAMES)}"
    if admin.page_size < 1 or admin.page_size > 200:
        yield f"{where}: page_size is a number from 1 to 200"


def _field_problems(option: str, field: FieldMeta, name: str) -> Iterator[str]:
    if option == "reveal":
        if field.encrypted is None or field.hidden or field.writeonly:
            yield f"reveal: {name!r} is no encrypted field that answers could show"
    elif option in ("label", "columns", "filters", "search", "sort") and field.secret:
        yield f"{option}: {name!r} is a secret field, which the panel never shows"
    elif option in ("filters", "search") and not field.filterable:
        yield f"{option}: {name!r} is not filterable"
    elif option == "sort" and not field.sortable and field.name != "id":
        yield f"sort: {name!r} is not sortable"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


# Names of models, tables and fields as people read them.


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def title_of_part(name: str) -> str:
    """What a field is called, or a part of it.

    >>> title_of_part("first_name"), title_of_part("name.de"), title_of_part("address.zip_code")
    ('First name', 'Name (de)', 'Address (zip_code)')
    """
    field_name, dot, part = name.partition(".")
    return f"{title_of(field_name)} ({part})" if dot else title_of(name)


def title_of(name: str) -> str:
    """`OrderLine` and `order_line` → `Order line`.

    >>> title_of("HTTPRequest"), title_of("publish_at")
    ('HTTP request', 'Publish at')
    """
    words = [word for word in _CAMEL.sub(" ", name).replace("_", " ").split() if word]
    if len(words) > 1 and words[-1].lower() == "id":
        words.pop()
    text = " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in words)
    return text[:1].upper() + text[1:] or name
