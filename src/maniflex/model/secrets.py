"""The names under which stored JSON may have the values of secret fields."""

from __future__ import annotations

from maniflex.model.meta import ModelMeta


def secret_names(meta: ModelMeta) -> frozenset[str]:
    """Every name that a secret field has, or had before it got another alias; not one that is shown."""
    names = {name for f in meta.fields if f.secret for name in (f.api, f.name, f.column)}
    return frozenset(names - {f.api for f in meta.fields if not f.secret})
