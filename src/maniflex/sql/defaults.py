"""What a column holds when an INSERT leaves it out.

Code always writes every column, so this is for programs that write SQL of their own, and for the previous
release of an application, which does not know a column that the next one has added. A constant default is
in the table; ids and times only where the `__table_rules__` of a model ask for them.
"""

from __future__ import annotations

from maniflex.model.meta import FieldMeta, TableRules
from maniflex.sql.literal import literal
from maniflex.sql.statement import Dialect

# The text form in which each database keeps instants, and ids that rise with time like ours.
NOW = {
    Dialect.SQLITE: "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')",
    Dialect.POSTGRES: "now()",
}
_SQLITE_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_MS = "lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0')"
NEW_ID = {
    Dialect.SQLITE: (
        f"(printf('%08x-%04x-7%03x-%04x-%012x', {_SQLITE_MS} >> 16, {_SQLITE_MS} & 65535, random() & 4095,"
        " 32768 | (random() & 16383), random() & 281474976710655))"
    ),
    Dialect.POSTGRES: (
        f"(substr({_POSTGRES_MS}, 1, 8) || '-' || substr({_POSTGRES_MS}, 9) || '-7'"
        " || substr(gen_random_uuid()::text, 16))"
    ),
}


ALWAYS_EQUAL = (list, dict)  # factories whose values never differ


def column_default(field: FieldMeta, dialect: Dialect, rules: TableRules) -> str | None:
    """The default of a column as SQL: that of its field, or a new id, or the time; None: it has none."""
    if field.name in rules.defaults and field.name == "id":
        return NEW_ID[dialect]
    if field.name in rules.defaults and field.name in ("created_at", "updated_at"):
        return NOW[dialect]
    return constant_default(field, dialect)


def constant_default(field: FieldMeta, dialect: Dialect) -> str | None:
    """The default of the field as SQL, where it is the same for every row and stored as it is."""
    if field.encrypted is not None:
        return None
    if field.default_factory in ALWAYS_EQUAL:
        return literal(field.default_factory(), field.kind, dialect)
    if field.default_factory is not None or not field.has_default or field.default is None:
        return None
    return literal(field.default, field.kind, dialect)
