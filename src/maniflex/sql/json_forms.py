"""Rows as JSON objects that the database writes itself, with the values in the form that answers have.

For what is copied inside the database, where a row would only travel to the server to come back as text.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import quote

MOST_FIELDS = 90  # PostgreSQL takes a hundred arguments of a function

_UTC = "to_char({c} AT TIME ZONE 'UTC', '%s')"
_SECONDS = _UTC % 'YYYY-MM-DD"T"HH24:MI:SS'
_FRACTION = (
    "CASE WHEN extract(microseconds FROM {c})::bigint % 1000000 = 0 THEN '' ELSE to_char({c}, '.US') END"
)

# The JSON text of a value that is not null.
_FORMS: dict[Dialect, dict[Kind, str]] = {
    Dialect.SQLITE: {
        Kind.TEXT: "json_quote({c})",
        Kind.INT: "{c}",
        Kind.FLOAT: "float_json({c})",
        Kind.BOOL: "CASE WHEN {c} THEN 'true' ELSE 'false' END",
        Kind.DECIMAL: "decimal_json({c})",
        Kind.DATETIME: "json_quote(replace({c}, '.000000Z', 'Z'))",
        Kind.DATE: "json_quote({c})",
        Kind.TIME: "json_quote(replace({c}, '.000000', ''))",
        Kind.UUID: "json_quote({c})",
        Kind.BYTES: "bytes_json({c})",
        Kind.JSON: "{c}",
    },
    Dialect.POSTGRES: {
        Kind.TEXT: "to_json({c})::text",
        Kind.INT: "{c}::text",
        Kind.FLOAT: "CASE WHEN {c}::text ~ '^-?[0-9]+$' THEN {c}::text || '.0'"
        " WHEN {c}::text ~ '[fN]' THEN 'null' ELSE {c}::text END",
        Kind.BOOL: "{c}::text",
        Kind.DECIMAL: "'\"' || {c}::text || '\"'",
        Kind.DATETIME: f"'\"' || {_SECONDS} || {_FRACTION} || 'Z\"'",
        # What asyncpg makes of the first and the last day of Python, and back.
        Kind.DATE: "CASE {c} WHEN 'infinity' THEN '\"9999-12-31\"' WHEN '-infinity' THEN '\"0001-01-01\"'"
        " ELSE to_json({c})::text END",
        Kind.TIME: f"'\"' || to_char({{c}}, 'HH24:MI:SS') || {_FRACTION} || '\"'",
        Kind.UUID: "to_json({c})::text",
        Kind.BYTES: "to_json(replace(encode({c}, 'base64'), chr(10), ''))::text",
        Kind.JSON: "{c}::text",
    },
}
# Python writes decimals of more digits with an exponent.
_SHORT_DECIMAL = "({c} IS NULL OR scale({c}) <= 6)"
_ALL_DIGITS = "current_setting('extra_float_digits')::int > 0"  # of floats; whoever runs the database may say


def object_text(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> str:
    """An object of these fields of the rows of `source`."""
    members = []
    for field in fields:
        form = _form(field, dialect, source)
        can_be_null = by_dialect(dialect, sqlite=field.nullable, postgres=True)
        text = f"coalesce({form}, 'null')" if can_be_null else form
        members.append((f"{_literal(f'{_key(field)}:')} || {text}", False))
    return _object(members, dialect)


def old_values_text(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> str:
    """An object of old and new values of rows that are gone, by field, without fields that are null."""
    members = []
    for field in fields:
        before, after = _literal(f'{_key(field)}:{{"old":'), _literal(',"new":null}')
        members.append((f"{before} || {_form(field, dialect, source)} || {after}", field.nullable))
    return _object(members, dialect)


def exact_conditions(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> list[str]:
    """What has to hold of a row for its values to be written as Python writes them."""
    decimals = [field for field in fields if field.kind is Kind.DECIMAL]
    texts = [_SHORT_DECIMAL.format(c=_column(field, dialect, source)) for field in decimals]
    if any(field.kind is Kind.FLOAT for field in fields):
        texts.append(_ALL_DIGITS)
    return by_dialect(dialect, sqlite=[], postgres=texts)


def _form(field: FieldMeta, dialect: Dialect, source: str) -> str:
    column = _column(field, dialect, source)
    form = f"({_FORMS[dialect][field.kind].format(c=column)})"
    if not field.nullable:  # a null that is there all the same makes the whole text null
        return form
    # SQLite's functions make text of null.
    return by_dialect(dialect, sqlite=f"CASE WHEN {column} IS NOT NULL THEN {form} END", postgres=form)


def _object(members: Sequence[tuple[str, bool]], dialect: Dialect) -> str:
    """An object of these members; those that are said to be left out are so where they are null."""
    after_comma = (
        " || ".join(
            f"coalesce(',' || {member}, '')" if is_left_out else f"',' || {member}"
            for member, is_left_out in members
        )
        or "''"
    )
    all_members = ", ".join(member for member, _ in members)
    return by_dialect(
        dialect,
        sqlite=f"'{{' || substr({after_comma}, 2) || '}}'",
        postgres=f"'{{' || concat_ws(',', {all_members or 'NULL'}) || '}}'",
    )


def _column(field: FieldMeta, dialect: Dialect, source: str) -> str:
    return f"{quote(source, dialect)}.{quote(field.column, dialect)}"


def _key(field: FieldMeta) -> str:
    return msgspec.json.encode(field.api).decode()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
