"""What a query model may not declare, because it owns no table and no rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from maniflex.model.meta import FieldMeta, Lock, ModelOptions, SoftDelete

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
