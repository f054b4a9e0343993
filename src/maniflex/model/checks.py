"""What can be wrong with one declared field: option values, contradictions, files, schedules, locales.

The only home of the rules between options. Every check yields sentences without the field's name;
`scan` puts the name in front and gathers them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any

from maniflex._json import INT_MAX, INT_MIN
from maniflex._locales import LOCALE_MODES, locale_code
from maniflex._names import MAX_IDENTIFIER, did_you_mean, is_api_name, is_identifier
from maniflex.model.annotations import Shape
from maniflex.model.declared import NUMBERS, Index, Kind, ModelOptions, OnDelete, SoftDelete
from maniflex.model.field import FLAGS, LocaleString, file_problems
from maniflex.model.meta import FieldMeta, Lock
from maniflex.model.relation import reference_name
from maniflex.model.value_rules import exact, number

Options = Mapping[str, Any]

# Pairs no request could satisfy, or that would reveal what the other one hides.
_CONTRADICTIONS = (
    ("readonly", "writeonly", "a client could neither read nor write it"),
    ("readonly", "immutable", "readonly already refuses every write of a client"),
    ("hidden", "writeonly", "hidden fields cannot be written by a client"),
    ("hidden", "immutable", "hidden fields cannot be written by a client"),
    ("hidden", "filterable", "filtering would reveal it"),
    ("hidden", "sortable", "sorting would reveal it"),
    ("hidden", "searchable", "searching would reveal it"),
    ("writeonly", "filterable", "filtering would reveal it"),
    ("writeonly", "sortable", "sorting would reveal it"),
    ("writeonly", "searchable", "searching would reveal it"),
    ("encrypted", "filterable", "only ciphertext is stored"),
    ("encrypted", "sortable", "only ciphertext is stored"),
    ("encrypted", "searchable", "only ciphertext is stored"),
    ("encrypted", "index", "only ciphertext is stored"),
    ("hidden", "blind_index", "matching would reveal it"),
    ("writeonly", "blind_index", "matching would reveal it"),
)
_BY_EQUALITY = "; blind_index=True lets clients filter by equality"
# What needs the value in the database, where only its envelope is.
_NOT_ENCRYPTED = ("relation", "on_delete", "lock_scope", "lock_when", "scheduled", "locale", "file")


def option_problems(name: str, shape: Shape, options: Options) -> Iterator[str]:
    """Everything wrong with a field as far as the field alone can tell."""
    yield from _flag_problems(options)
    yield from _contradictions(options)
    yield from _bound_problems(shape, options)
    yield from _length_problems(shape, options)
    yield from _pattern_problems(shape, options)
    yield from _query_problems(shape, options)
    yield from _case_problems(shape, options)
    yield from _name_problems(name, options)
    yield from _reference_problems(shape, options)
    yield from _encryption_problems(shape, options)
    yield from _default_problems(options)
    if "file" in options:
        yield from file_problems(shape, options)
    if "scheduled" in options:
        yield from _schedule_problems(shape, options["scheduled"])
    yield from _locale_problems(shape, options)


def _flag_problems(options: Options) -> Iterator[str]:
    for flag in FLAGS:
        if flag != "unique" and not isinstance(options.get(flag, False), bool):
            yield f"{flag} must be True or False"
    unique = options.get("unique", False)
    if not isinstance(unique, bool) and not unique_within(unique):
        yield "unique must be True, False, or the fields it is unique within"


def unique_within(unique: Any) -> tuple[str, ...]:
    """The names in `unique="tenant_id"` or `unique=("tenant_id", "year")`; none of them otherwise."""
    names = (unique,) if isinstance(unique, str) else unique
    if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) and n for n in names):
        return ()
    return tuple(names)


def _contradictions(options: Options) -> Iterator[str]:
    for one, other, because in _CONTRADICTIONS:
        if options.get(one) and options.get(other):
            hint = _BY_EQUALITY if (one, other) == ("encrypted", "filterable") else ""
            yield f"{one} and {other} contradict each other: {because}{hint}"


def _bound_problems(shape: Shape, options: Options) -> Iterator[str]:
    bounds = [name for name in ("min", "max") if name in options]
    if not bounds:
        return
    if shape.kind not in NUMBERS or shape.enum is not None:
        meant = {"min": "min_length", "max": "max_length"}
        hint = f"; use {' and '.join(meant[name] for name in bounds)}" if shape.is_plain_text else ""
        yield f"{' and '.join(bounds)} can only bound numbers{hint}"
        return
    values = {name: number(options[name]) for name in bounds}
    for name, value in values.items():
        if value is None:
            yield f"{name} must be a number, not {options[name]!r}"
        elif shape.kind is Kind.INT and (value != int(value) or not INT_MIN <= value <= INT_MAX):
            yield f"{name} must be a 64-bit integer, not {options[name]!r}"
    low, high = values.get("min"), values.get("max")
    if low is not None and high is not None and exact(low) > exact(high):
        yield f"min {low} is above max {high}"


def _length_problems(shape: Shape, options: Options) -> Iterator[str]:
    lengths = [name for name in ("min_length", "max_length") if name in options]
    if not lengths:
        return
    if not (shape.is_plain_text or shape.kind is Kind.BYTES or shape.type is LocaleString):
        hint = "; use min and max" if shape.kind in NUMBERS else ""
        yield f"{' and '.join(lengths)} can only limit text and bytes{hint}"
        return
    wrong = [name for name in lengths if type(options[name]) is not int or options[name] < 0]
    for name in wrong:
        yield f"{name} must be a whole number of characters, not {options[name]!r}"
    if len(lengths) == 2 and not wrong and options["min_length"] > options["max_length"]:
        yield f"min_length {options['min_length']} is above max_length {options['max_length']}"


def _pattern_problems(shape: Shape, options: Options) -> Iterator[str]:
    if "pattern" not in options:
        return
    if not shape.is_plain_text and shape.type is not LocaleString:
        yield "pattern can only be set on text"
    try:
        re.compile(options["pattern"])
    except (re.error, TypeError) as error:
        yield f"pattern is not a regular expression: {error}"


def _query_problems(shape: Shape, options: Options) -> Iterator[str]:
    is_locale = shape.type is LocaleString
    if options.get("searchable") and not shape.is_plain_text:
        yield "searchable can only be set on text"
    if shape.kind in (Kind.JSON, Kind.BYTES) and not is_locale:
        for option in ("filterable", "sortable"):
            if options.get(option):
                yield f"{option} cannot be set on {_kind_phrase(shape)}"
    if shape.kind is Kind.JSON:
        for option in ("unique", "index"):
            if options.get(option):
                yield f"{option} cannot be set on {_kind_phrase(shape)}"


def _case_problems(shape: Shape, options: Options) -> Iterator[str]:
    if options.get("ignore_case") and not shape.is_plain_text:
        yield "ignore_case can only be set on text"


def _kind_phrase(shape: Shape) -> str:
    return "bytes" if shape.kind is Kind.BYTES else "a JSON column"


def _name_problems(name: str, options: Options) -> Iterator[str]:
    column = options.get("column", name)
    if not isinstance(column, str) or not is_identifier(column):
        yield (
            f"{column!r} cannot name a column; use letters, digits and underscores, at most {MAX_IDENTIFIER}"
        )
    old_column = options.get("renamed_from")
    is_name = isinstance(old_column, str) and is_identifier(old_column) and old_column != column
    if "renamed_from" in options and not is_name:
        yield f"renamed_from {old_column!r} is not the name that the column had before"
    alias = options.get("alias", name)
    if not isinstance(alias, str) or not is_api_name(alias):
        yield f"alias {alias!r} cannot name a field; use letters, digits, underscores and hyphens"
    if name == "id":
        for option in ("alias", "column", "renamed_from", "hidden", "writeonly", "encrypted"):
            if options.get(option):
                yield f"the id cannot take {option}"


def _reference_problems(shape: Shape, options: Options) -> Iterator[str]:
    if options.get("relation") is not None and reference_name(options["relation"]) is None:
        yield "relation must be a model, its name, or None"
    if "lock_scope" in options:
        if reference_name(options["lock_scope"]) is None:
            yield "lock_scope must be a model or its name"
        elif not shape.is_plain_text:
            yield "lock_scope needs a text field that holds an id"
    if "on_delete" in options:
        yield from on_delete_problems(options["on_delete"], shape.nullable)
    if options.get("relation") is not None and not shape.is_plain_text:
        yield "a relation needs a text field that holds an id"


def on_delete_problems(action: Any, nullable: bool) -> Iterator[str]:
    names = [member.value for member in OnDelete]
    if action not in names:
        yield f"unknown on_delete {action!r}{did_you_mean(str(action), names)}"
    elif action == OnDelete.SET_NULL and not nullable:
        yield "on_delete='set_null' needs a nullable field"


def _encryption_problems(shape: Shape, options: Options) -> Iterator[str]:
    key_name = options.get("encrypted", False)
    if not isinstance(key_name, (bool, str)) or key_name == "":
        yield "encrypted must be True or the name of a key"
    elif key_name:
        if not (shape.is_plain_text and "file" not in options):
            yield "encrypted can only be set on text"
        for option in _NOT_ENCRYPTED:
            if options.get(option) is not None and not (option == "locale" and not options[option]):
                yield f"{option} cannot be set on an encrypted field, whose value the database does not know"
    else:
        for option in ("blind_index", "encrypted_as"):
            if options.get(option):
                yield f"{option} needs encrypted"
    if options.get("blind_index", False) not in (False, True, "casefold"):
        yield "blind_index must be True, False or 'casefold'"
    label = options.get("encrypted_as")
    if label is not None and not (
        isinstance(label, str) and len(parts := label.split(".")) == 2 and all(map(is_identifier, parts))
    ):
        yield f"encrypted_as {label!r} is not written 'table.column'"


def _default_problems(options: Options) -> Iterator[str]:
    if "default" in options and "default_factory" in options:
        yield "default and default_factory cannot both be given"
    if "default_factory" in options and not callable(options["default_factory"]):
        yield "default_factory must be callable"


def _schedule_problems(shape: Shape, schedule: Options) -> Iterator[str]:
    if shape.kind is not Kind.DATETIME or not shape.nullable:
        yield "scheduled() needs a `datetime | None` field"
    for flag in ("soft_delete", "hard_delete"):
        if not isinstance(schedule.get(flag, False), bool):
            yield f"{flag} must be True or False"
    actions = [name for name in ("set_field", "soft_delete", "hard_delete") if schedule.get(name)]
    if len(actions) != 1:
        yield "scheduled() needs exactly one of set_field, soft_delete and hard_delete"
    elif actions == ["set_field"] and "to" not in schedule:
        yield "scheduled(set_field=...) needs to="
    elif actions != ["set_field"] and ("to" in schedule or "from_" in schedule):
        yield "from_ and to only go with set_field"
    where = schedule.get("where")
    if "where" in schedule and not (isinstance(where, Mapping) and where):
        yield "where must map a field to the value, or the values, at which the time counts"


def _locale_problems(shape: Shape, options: Options) -> Iterator[str]:
    locale = options.get("locale", False)
    if not locale and locale is not False:
        yield "locale must be True, a mode, or a mapping of mode and default"
    if not locale:
        return
    if shape.type is not LocaleString:
        yield "locale needs a LocaleString field"
    settings = locale_settings(locale)
    for key in settings.keys() - {"mode", "default"}:
        yield f"locale: unknown setting {key!r}{did_you_mean(str(key), ('mode', 'default'))}"
    mode, default = settings.get("mode"), settings.get("default")
    if mode is not None and mode not in LOCALE_MODES:
        yield f"unknown locale mode {mode!r}; use {', '.join(LOCALE_MODES)}"
    if default is not None and locale_code(default) is None:
        yield f"{default!r} is not a locale code"


def locale_settings(locale: Any) -> dict[str, Any]:
    """The option in its long form."""
    if isinstance(locale, Mapping):
        return dict(locale)
    return {} if locale is True else {"mode": locale}


def as_bound(shape: Shape, value: Any) -> int | float | Decimal | None:
    """A bound in the field's own kind."""
    limit, convert = number(value), _BOUNDS[shape.kind]
    return None if limit is None or convert is None else convert(limit)


# What turns a bound into the kind of its field; None where nothing is bounded by `min` and `max`.
_BOUNDS: dict[Kind, Callable[[Any], int | float | Decimal] | None] = {
    Kind.TEXT: None,
    Kind.INT: int,
    Kind.FLOAT: float,
    Kind.BOOL: None,
    Kind.DECIMAL: exact,
    Kind.DATETIME: None,
    Kind.DATE: None,
    Kind.TIME: None,
    Kind.UUID: None,
    Kind.BYTES: None,
    Kind.JSON: None,
}


# What can be wrong with model options on their own, before any field is looked at.


_FLAGS = tuple(option.name for option in fields(ModelOptions) if option.type == "bool | None")
_LANGUAGE = re.compile(r"[a-z][a-z_]*\Z")


def option_value_problems(declared_options: ModelOptions) -> Iterator[str]:
    """Options whose value is not one they take; their types are only promises until here."""
    options: Any = declared_options
    for flag in _FLAGS:
        if not isinstance(getattr(options, flag), bool | None):
            yield f"{flag} must be True or False"
    for table in (options.table, options.history_table, options.renamed_from):
        if table is not None and not (isinstance(table, str) and is_identifier(table)):
            yield (
                f"{table!r} cannot name a table; use letters, digits and underscores, "
                f"at most {MAX_IDENTIFIER}"
            )
    if not isinstance(options.soft_delete, bool | str | SoftDelete | None):
        yield "soft_delete must be True, False or the name of a field"
    rows = options.max_export_rows
    if rows is not None and (type(rows) is not int or rows < 1):
        yield "max_export_rows must be a positive whole number"
    if not isinstance(options.cursor_field, str | None):
        yield "cursor_field must be the name of a field"
    language = options.search_language
    if language is not None and not (isinstance(language, str) and _LANGUAGE.match(language)):
        yield f"search_language {language!r} is not the name of a language, like 'english'"
    if options.default_locale is not None and locale_code(options.default_locale) is None:
        yield f"default_locale {options.default_locale!r} is not a locale code"
    operations = options.operations
    if operations is not None and not isinstance(operations, str | list | tuple | set | frozenset):
        yield "operations must be a list of operations"
    yield from query_value_problems(options.query)
    if options.locale_mode is not None and options.locale_mode not in LOCALE_MODES:
        yield f"unknown locale_mode {options.locale_mode!r}; use {', '.join(LOCALE_MODES)}"


def index_list(indices: Any) -> tuple[list[Index], list[str]]:
    """The declared indices in one form, and what could not be read as one."""
    valid: list[Index] = []
    wrong: list[str] = []
    if indices is not None and (isinstance(indices, str) or not isinstance(indices, Sequence)):
        return valid, ["indices must be a list of Index(...) or of field names"]
    for item in indices or ():
        index = item if isinstance(item, Index) else _index_of(item)
        if index is None or not _is_sound(index):
            wrong.append(f"indices: {item!r} is not a list of field names")
        else:
            valid.append(Index(tuple(index.columns), index.unique, index.name))
    return valid, wrong


def _index_of(item: Any) -> Index | None:
    return Index(tuple(item)) if isinstance(item, (list, tuple)) else None


def _is_sound(index: Any) -> bool:
    names, name = index.columns, index.name
    if name is not None and not (isinstance(name, str) and is_identifier(name)):
        return False
    return isinstance(names, (list, tuple)) and bool(names) and all(isinstance(n, str) for n in names)


# What a query model may not declare, because it owns no table and no rows.


DIALECTS = ("sqlite", "postgresql")
# What only a table of its own can have, of a model and of its fields.
TABLE_OPTIONS = (
    "renamed_from",
    "versioned",
    "versioned_diff_only",
    "history_table",
    "history_list",
    "history_restore",
    "history_scope",
    "history_retention",
    "retention",
    "deleted_retention",
    "retention_hold",
    "subject",
    "on_erase",
    "keep_reason",
    "indices",
    "optimistic_lock",
    "singleton",
    "restore",
)
TABLE_FLAGS = ("unique", "index", "searchable")
TABLE_EXTRAS = ("file", "scheduled", "on_delete")


def query_value_problems(query: Any) -> Iterator[str]:
    """The mistakes in the value of `query=` itself."""
    if isinstance(query, Mapping):
        unknown = [key for key in query if key not in DIALECTS]
        if unknown:
            yield f"query: there is no database {unknown[0]!r}; use {' and '.join(DIALECTS)}"
        texts = list(query.values())
    else:
        texts = [] if query is None else [query]
    if (query is not None and not texts) or not all(isinstance(t, str) and t.strip() for t in texts):
        yield "query must be a SELECT, or a mapping from database to SELECT"


def query_model_problems(
    options: ModelOptions,
    fields: Iterable[FieldMeta],
    soft_delete: SoftDelete | None,
    locks: Iterable[Lock],
) -> Iterator[tuple[str | None, str]]:
    """Problems with the field they are about, or None for the model."""
    for option in TABLE_OPTIONS:
        if getattr(options, option):
            yield None, f"{option} cannot be set on a query model, whose rows are made by its query"
    if soft_delete is not None:
        yield None, "soft_delete cannot be set on a query model; leave deleted rows out in its query"
    if any(True for _ in locks):
        yield None, "lock_when cannot be set on a query model, which is never written"
    names = []
    for field in fields:
        names.append(field.name)
        wrong = [flag for flag in TABLE_FLAGS if getattr(field, flag)]
        wrong += [name for name in TABLE_EXTRAS if name in field.extra]
        wrong += ["encrypted"] * (field.encrypted is not None) + ["lock_scope"] * bool(field.lock_scope)
        for option in wrong:
            yield field.name, f"{option} cannot be set on a query model, which is never written"
    if not names:
        yield None, "a query model declares the columns its query gives"
    if options.cursor_field and "id" not in names:
        yield None, "cursor_field needs an id; declare `id: str` and give it in the query"


# Fields of one model whose `renamed_from` contradict each other.


def rename_problems(fields: Sequence[FieldMeta]) -> Iterator[tuple[str, str]]:
    """(field, problem) of columns that two fields claim, and of circles."""
    owners: dict[str, FieldMeta] = {}  # by old column
    for field in fields:
        if field.renamed_from is None:
            continue
        owner = owners.setdefault(field.renamed_from, field)
        if owner is not field:
            text = (
                f"shares renamed_from={field.renamed_from!r} with {owner.name}; one column becomes one field"
            )
            yield field.name, text
    yield from _circles(owners)


def _circles(owners: dict[str, FieldMeta]) -> Iterator[tuple[str, str]]:
    """Renames in a circle leave a table that looks alike before and after; no start can tell which it is."""
    visited_columns: set[str] = set()
    for start in owners:
        path: list[FieldMeta] = []
        column = start
        while column in owners and column not in visited_columns:
            visited_columns.add(column)
            path.append(owners[column])
            column = owners[column].column
        if path and column == start:
            renames = ", ".join(f"{field.name} from {field.renamed_from!r}" for field in path)
            yield (
                path[0].name,
                f"renamed_from goes round in a circle ({renames}), and the database does not show whether"
                " that is done; remove it, and rename the columns with op.rename_column, by way of a third"
                " name, in a file of `migrate make --empty`",
            )
