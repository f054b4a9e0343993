"""Declarations this version understands but does not act on yet.

They stop the start, because to ignore them would mislead: a secret stored in the clear, a file
never kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from maniflex.model.meta import ModelMeta

_REFUSED_OPTIONS = ("default_locale", "locale_mode")
_REFUSED_FIELDS = ("locale",)


def unavailable_options(meta: ModelMeta) -> Iterator[str]:
    """The problems of a model that declares options no feature implements yet."""
    for name in _REFUSED_OPTIONS:
        if getattr(meta.options, name):
            yield f"{meta.name}: {name}= is not available in this version"
    for field in meta.fields:
        names = [name for name in _REFUSED_FIELDS if name in field.extra]
        if field.encrypted is not None:
            names.append("encrypted")
        for name in names:
            yield f"{meta.name}.{field.name}: {name} is not available in this version"
