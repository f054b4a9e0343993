"""What a column holds when an INSERT leaves it out, where the `__table_rules__` of a model ask for it.

Code always writes every column, so this is for programs that write SQL of their own.
"""

from __future__ import annotations

from maniflex.model.meta import FieldMeta
from maniflex.sql.literal import literal
from maniflex.sql.statement import Dialect

# The text form in which each database keeps instants, and ids that rise with time like ours.
_NOW = {
    Dialect.SQLITE: "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')",
    Dialect.POSTGRES: "now()",
}
_SQLITE_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_MS = "lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0')"
_NEW_ID = {
    Dialect.SQLITE: (
        f"(printf('%08x-%04x-7%03x-%04x-%012x', {_SQLITE_MS} >> 16, {_SQLITE_MS} & 65535, random() & 4095,"
        " 32768 | (random() & 16383), random() & 281474976710655))"
    ),
    Dialect.POSTGRES: (
        f"(substr({_POSTGRES_MS}, 1, 8) || '-' || substr({_POSTGRES_MS}, 9) || '-7'"
        " || substr(gen_random_uuid()::text, 16))"
    ),
}


def column_default(field: FieldMeta, dialect: Dialect) -> str:
    """The default of a column: that of its field, or a new id, or the time."""
    if field.name == "id":
        return _NEW_ID[dialect]
    if field.name in ("created_at", "updated_at"):
        return _NOW[dialect]
    return literal(field.default, field.kind, dialect)
