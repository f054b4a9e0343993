"""One model in one dialect: its table, its columns and the statements written for it so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.query.operators import Op
from maniflex.sql.codec import encoder, row_decoder
from maniflex.sql.shapes import Shapes
from maniflex.sql.statement import Dialect
from maniflex.sql.tables import build_table
from maniflex.sql.view import build_view
from maniflex.sql.where import list_value, pattern_value

# Parameters that are not fields; no attribute can be called like this.
ID = "$id"
LOCK = "$lock"

_PATTERNS = (Op.LIKE, Op.ILIKE, Op.CONTAINS, Op.STARTS_WITH, Op.ENDS_WITH)


class ModelSql:
    """What the statement writers (`select`, `write`) need to know of a model."""

    def __init__(self, meta: ModelMeta, dialect: Dialect, metadata: sa.MetaData) -> None:
        self.meta = meta
        self.dialect = dialect
        self.readonly = meta.options.query is not None
        if self.readonly:  # whoever reads cannot tell the difference, and nobody writes
            self.table = cast(sa.Table, build_view(meta, dialect))
        else:
            self.table = build_table(meta, dialect, metadata)
        self.columns = [self.table.c[f.column] for f in meta.fields]
        self.names = tuple(f.name for f in meta.fields)
        # A query model may have none; then nothing that needs one can be asked of it.
        self.id: Any = self.table.c[meta.by_name["id"].column] if "id" in meta.by_name else None
        self.shapes = Shapes()
        self.encoders = {f.name: encoder(f.kind, dialect) for f in meta.fields}
        self.all_plain = not any(self.encoders.values())
        self.lock_values = {
            f"{LOCK}{i}": self.encode(meta.by_name[lock.field], lock.value)
            for i, lock in enumerate(meta.locks)
        }
        self.decode = row_decoder(meta.fields, dialect)
        self._peers: Mapping[str, ModelSql] = {}
        self._by_table: dict[str, ModelSql] = {}

    def meet(self, peers: Mapping[str, ModelSql]) -> None:
        """The models of the same database, which statements may join."""
        self._peers = peers
        self._by_table = {peer.meta.table: peer for peer in peers.values()}

    def peer(self, name: str) -> ModelSql:
        """Another model of the same database."""
        found = self._peers.get(name)
        if found is None:
            raise InvalidQuery(
                f"{name} lives in another database; it can be included, not filtered or sorted by"
            )
        return found

    def peer_by_table(self, table: str) -> ModelSql:
        return self._by_table[table] if table != self.meta.table else self

    def column(self, field: FieldMeta) -> sa.Column[Any]:
        return self.table.c[field.column]

    def at(self, table: FromClause, attribute: str) -> Any:
        """The column of an attribute in this table or an alias of it."""
        return table.c[self.meta.by_name[attribute].column]

    def encode(self, field: FieldMeta, value: Any) -> Any:
        """The value as a parameter."""
        convert = self.encoders[field.name]
        return value if convert is None or value is None else convert(value)

    def encode_as(self, field: FieldMeta, op: Op, value: Any) -> Any:
        """The value of a filter as a parameter; the field may belong to a related model."""
        if op in _PATTERNS:
            return pattern_value(self.dialect, op, value)
        convert = encoder(field.kind, self.dialect)
        if op in (Op.IN, Op.NOT_IN):
            items = [item if convert is None else convert(item) for item in value]
            if self.dialect is Dialect.SQLITE and field.kind is Kind.BOOL:
                items = [int(item) for item in items]
            return list_value(self.dialect, items)
        return value if convert is None or value is None else convert(value)

    def live(self, table: FromClause | None = None) -> list[sa.ColumnElement[bool]]:
        """The condition that leaves soft-deleted rows out."""
        marker = self.meta.soft_delete
        if marker is None:
            return []
        column = (self.table if table is None else table).c[self.meta.by_name[marker.field].column]
        return [column.is_(None) if marker.timestamp else column.is_(sa.false())]
