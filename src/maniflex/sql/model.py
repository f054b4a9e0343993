"""One model in one dialect: its table, its columns and the statements written for it so far."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.sql.codec import encoder, row_decoder
from maniflex.sql.shapes import Shapes
from maniflex.sql.statement import Dialect
from maniflex.sql.tables import build_table

# Parameters that are not fields; no attribute can be called like this.
ID = "$id"
LOCK = "$lock"


class ModelSql:
    """What the statement writers (`select`, `write`) need to know of a model."""

    def __init__(self, meta: ModelMeta, dialect: Dialect, metadata: sa.MetaData) -> None:
        self.meta = meta
        self.dialect = dialect
        self.table = build_table(meta, dialect, metadata)
        self.columns = [self.table.c[f.column] for f in meta.fields]
        self.names = tuple(f.name for f in meta.fields)
        self.id = self.table.c[meta.by_name["id"].column]
        self.shapes = Shapes()
        self.encoders = {f.name: encoder(f.kind, dialect) for f in meta.fields}
        self.all_plain = not any(self.encoders.values())
        self.lock_values = {
            f"{LOCK}{i}": self.encode(meta.by_name[lock.field], lock.value)
            for i, lock in enumerate(meta.locks)
        }
        self.decode = row_decoder(meta.fields, dialect)

    def column(self, field: FieldMeta) -> sa.Column[Any]:
        return self.table.c[field.column]

    def encode(self, field: FieldMeta, value: Any) -> Any:
        """The value as a parameter."""
        convert = self.encoders[field.name]
        return value if convert is None or value is None else convert(value)

    def live(self) -> list[sa.ColumnElement[bool]]:
        """The condition that leaves soft-deleted rows out."""
        marker = self.meta.soft_delete
        if marker is None:
            return []
        column = self.column(self.meta.by_name[marker.field])
        return [column.is_(None) if marker.timestamp else column.is_(sa.false())]
