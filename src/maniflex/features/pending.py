"""Declarations this version understands but does not act on yet.

What would mislead about safety or meaning (a secret stored in the clear, a history never written)
stops the start; what only adds a way to ask is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from maniflex.model.meta import ModelMeta, OnDelete

_REFUSED_OPTIONS = ("versioned", "versioned_diff_only", "query", "default_locale", "locale_mode")
_INERT_OPTIONS = (
    "export",
    "max_export_rows",
    "aggregate",
    "restore",
    "cursor_field",
    "search_language",
    "global_searchable",
)
_REFUSED_FIELDS = ("file", "scheduled", "locale")


def refused(meta: ModelMeta) -> Iterator[str]:
    """Problems: what must not be declared as long as nothing acts on it."""
    for name in _REFUSED_OPTIONS:
        if getattr(meta.options, name):
            yield f"{meta.name}: {name}= is not available in this version"
    for field in meta.fields:
        wanted = [name for name in _REFUSED_FIELDS if name in field.extra]
        if field.encrypted is not None:
            wanted.append("encrypted")
        for name in wanted:
            yield f"{meta.name}.{field.name}: {name} is not available in this version"


def inert(meta: ModelMeta) -> Iterator[str]:
    """Warnings: what may be declared already but has no effect yet."""
    for name in _INERT_OPTIONS:
        if getattr(meta.options, name):
            yield f"{meta.name}: {name}= has no effect in this version"
    for field in meta.fields:
        if field.searchable:
            yield f"{meta.name}.{field.name}: searchable has no effect in this version"
    for relation in meta.relations.values():
        if relation.on_delete is not OnDelete.NO_ACTION:
            yield f"{meta.name}.{relation.name}: on_delete is not enforced in this version"
