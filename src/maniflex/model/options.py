"""What can be wrong with model options on their own, before any field is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from maniflex._names import MAX_IDENTIFIER, is_identifier
from maniflex.model.checks import LOCALE_MODES, is_locale_code
from maniflex.model.declared import Index, ModelOptions, SoftDelete
from maniflex.model.query_model import query_value_problems

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
    if options.default_locale is not None and not is_locale_code(options.default_locale):
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
