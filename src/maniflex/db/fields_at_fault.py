"""Which fields of a model a constraint is about, as far as a client knows them."""

from __future__ import annotations

from maniflex.errors import ConstraintViolation
from maniflex.model.meta import ModelMeta


class FieldsAtFault:
    """Names the fields of one model in errors about its constraints."""

    def __init__(self, meta: ModelMeta) -> None:
        self._visible_fields = {f.column: f for f in meta.fields if not f.hidden}
        # What a value is unique within is the caller's own scope; only the value is at fault.
        self._within = {
            (*(meta.by_name[name].column for name in f.unique_within), f.column): (f.column,)
            for f in meta.fields
        }

    def name_in(self, error: ConstraintViolation) -> None:
        """Say which fields are meant, unless the error says so already or no client knows them."""
        if error.details is None and error.columns:
            columns = self._within.get(error.columns, error.columns)
            names = [self._visible_fields[c].api for c in columns if c in self._visible_fields]
            error.details = [{"field": name, "message": error.message} for name in names] or None
