"""Values as SQL text: for DDL, and for conditions an index must recognise."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any

from maniflex.model.meta import Kind
from maniflex.sql.codec import encoder
from maniflex.sql.statement import Dialect, by_dialect


def literal(value: Any, kind: Kind, dialect: Dialect) -> str:
    """A declared value as SQL; it was checked against the field's type when the model was read."""
    if value is None:
        return "NULL"
    convert = encoder(kind, dialect)
    stored_value = convert(value) if convert else value
    match stored_value.value if isinstance(stored_value, Enum) else stored_value:
        case bool() as flag:
            return by_dialect(dialect, sqlite=str(int(flag)), postgres=str(flag).upper())
        case Decimal() as number:
            return format(number, "f")
        case int() | float() as number:
            return repr(number)
        case bytes() as content:
            digits = content.hex()
            return by_dialect(dialect, sqlite=f"x'{digits}'", postgres=f"'\\x{digits}'")
        case other:
            text = other.isoformat() if isinstance(other, date | time) else str(other)
            return "'" + text.replace("'", "''") + "'"
