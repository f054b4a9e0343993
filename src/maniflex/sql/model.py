"""One model in one dialect: its table, its columns and the statements written for it so far."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, assert_never, cast

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause, Subquery

from maniflex.encryption.keyring import Keyring
from maniflex.encryption.sealed_json import row_openers
from maniflex.errors import DeclarationError, InvalidQuery, UnusableQuery
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, TypedSelect
from maniflex.model.texts import TEXT, TextOf
from maniflex.sql.bindings import BindingPlace
from maniflex.sql.cipher import NO_KEYS, RowCipher, digest_of
from maniflex.sql.codec import Codec, encoder, row_decoder, rows_decoder
from maniflex.sql.decimal_order import has_order_key, order_column, order_expression, order_key
from maniflex.sql.history_layouts import Layouts
from maniflex.sql.statement import (
    Dialect,
    Sql,
    StatementCache,
    by_dialect,
    compile_statement,
    locale_parameter,
)
from maniflex.sql.tables import build_table, column_type, quote

# Parameters that are not fields; no attribute can be called like this.
ID = "$id"
LOCK = "$lock"
VERSION = "$version"

BoundLookup = tuple[str, tuple[Any, ...], tuple[Any, ...]]  # text, and the values before and after the id


class ModelSql:
    """What the statement writers (`select`, `write`) need to know of a model."""

    def __init__(
        self, meta: ModelMeta, dialect: Dialect, metadata: sa.MetaData, keys: Keyring = NO_KEYS
    ) -> None:
        self.meta = meta
        self.dialect = dialect
        self.readonly = meta.options.query is not None
        if self.readonly:  # a reader cannot tell the difference, and there are no writers
            self.table = cast(sa.Table, build_view(meta, dialect))
        else:
            self.table = build_table(meta, dialect, metadata)
        # Whether rows tell their versions; a table that turns out to be a view does not.
        self.versioned = by_dialect(dialect, sqlite=False, postgres=not self.readonly)
        self.schema: str | None = None  # where PostgreSQL found the table; None before it was looked for
        self.version = self.version_in(self.table)
        self.guards_json: bool = getattr(meta.cls, "__shows_unreadable__", False)
        # Columns of durable work that may be sealed, by the names of what they are bound to.
        self._sealed: Mapping[str, tuple[str, ...]] = getattr(meta.cls, "__sealed__", {})
        self.columns = [self.read_column(f) for f in meta.fields]
        self.names = tuple(f.name for f in meta.fields)
        # A query model may have none; then nothing that needs one can be asked of it.
        self.id: Any = self.table.c[meta.by_name["id"].column] if "id" in meta.by_name else None
        # Searchable fields that some searches leave out, or no excerpt may quote; set before tables are made.
        self.apart_in_search: tuple[FieldMeta, ...] = ()
        self.never_quoted: tuple[FieldMeta, ...] = ()
        # Of a history: what its rows are stamped with, to be bound by it; set before rows are written.
        self.binding_places: tuple[BindingPlace, ...] = ()
        self.layouts: Layouts | None = None  # of a history: how its versions were written
        self.shapes = StatementCache()
        self.lookups: dict[Any, BoundLookup] = {}  # by scope and kind of lookup
        self.uses_order_keys = by_dialect(dialect, sqlite=True, postgres=False)
        self.keys = keys
        is_encrypted = any(f.encrypted is not None for f in meta.fields)
        self.cipher = RowCipher(meta, keys) if is_encrypted else None
        self.asks_elsewhere = is_encrypted and keys.waits  # for what its rows hold
        self.encoders = {f.name: encoder(f.kind, dialect) for f in meta.fields}
        # The usual write has few values that must be encoded, so they are looked for among these.
        self.conversions = {name: convert for name, convert in self.encoders.items() if convert is not None}
        self.all_plain = not is_encrypted and not self.conversions
        self.lock_values = self._lock_values()
        self.decode = self.decoder(meta.fields)
        self.decode_rows = self.rows_decoder(meta.fields)
        self._peers: Mapping[str, ModelSql] = {}
        self._by_table: dict[str, ModelSql] = {}

    def link(self, peers: Mapping[str, ModelSql]) -> None:
        """The models of the same database, which statements may join."""
        self._peers = peers
        self._by_table = {peer.meta.table: peer for peer in peers.values()}

    def peer(self, name: str) -> ModelSql:
        """Another model of the same database."""
        peer = self._peers.get(name)
        if peer is None:
            raise InvalidQuery(
                f"{name} lives in another database; it can be included, not filtered or sorted by"
            )
        return peer

    def has_peer(self, name: str) -> bool:
        """Whether a model is in the same database."""
        return name in self._peers

    def peer_by_table(self, table: str) -> ModelSql:
        return self._by_table[table] if table != self.meta.table else self

    def layouts_of(self, parent: ModelSql) -> Layouts:
        """How the versions of this history of `parent` were written; before the start, as they are now."""
        if self.layouts is None:
            self.layouts = Layouts(parent.meta)
        return self.layouts

    def column(self, field: FieldMeta) -> sa.Column[Any]:
        return self.table.c[field.column]

    def read_column(self, field: FieldMeta) -> Any:
        """What a row is read by: the column, or where SQLite may hold no text in it, its bytes."""
        column = self.column(field)
        if self.guards_json and field.kind is Kind.JSON:
            content = sa.cast(column, sa.LargeBinary()).label(field.column)
            return by_dialect(self.dialect, sqlite=content, postgres=column)
        return column

    def decoder(
        self, fields: Sequence[FieldMeta], replaced: Container[str] = ()
    ) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """What turns a stored row of these fields into values; None when the driver already gives them.

        An encrypted value of a field that is about to be replaced is None where it does not open.
        """
        openers = () if self.cipher is None else self.cipher.openers(fields, replaced)
        sealed = row_openers(self.keys, self.meta.table, self._sealed, fields, (Kind.JSON,))
        return row_decoder(fields, self.dialect, guards_json=self.guards_json, openers=openers, sealed=sealed)

    def rows_decoder(
        self, fields: Sequence[FieldMeta]
    ) -> Callable[[Sequence[Sequence[Any]]], Sequence[Sequence[Any]]] | None:
        """As `decoder`, of all stored rows of a page at once."""
        if self.cipher is None:
            return rows_decoder(fields, self.decoder(fields))
        decode = row_decoder(fields, self.dialect, guards_json=self.guards_json)
        return rows_decoder(fields, decode, self.cipher.page_openers(fields))

    def comparison_column(self, field: FieldMeta, table: FromClause | None = None) -> Any:
        """What conditions, sorts and groups look at: the column, or the order key beside it."""
        if field.encrypted is not None:
            raise UnusableQuery(f"{field.name} is encrypted, so it can only be compared for equality")
        columns = (self.table if table is None else table).c
        text: TextOf | None = field.extra.get(TEXT)
        if text is not None:
            return text_expression(columns[field.column], text.codes, self.dialect)
        by_order_key = self.uses_order_keys and has_order_key(field, self.dialect)
        return columns[order_column(field.column) if by_order_key else field.column]

    def digest_column(self, field: FieldMeta, table: FromClause | None = None) -> Any:
        """What equality with an encrypted field is decided by."""
        columns = (self.table if table is None else table).c
        column = columns.get(field.digest_column) if field.has_digest else None
        if column is None and field.has_digest:
            raise InvalidQuery(f"filter: {field.api!r} is not told by the past")
        if column is None:
            raise UnusableQuery(f"{field.name} is encrypted and has no digest to compare")
        return column

    def compare_stored_texts(self) -> None:
        """Do without order keys: the tables of this database were made by others and have none."""
        self.uses_order_keys = False
        self.shapes = StatementCache()
        self.lookups = {}
        self.lock_values = self._lock_values()

    def at(self, table: FromClause, attribute: str) -> Any:
        """The column of an attribute in this table or an alias of it."""
        return table.c[self.meta.by_name[attribute].column]

    def version_in(self, table: FromClause) -> sa.ColumnElement[Any]:
        """The version of the row in this table or an alias of it."""
        return sa.literal_column(f"{quote(getattr(table, 'name', ''), self.dialect)}.xmin")

    def encode(self, field: FieldMeta, value: Any) -> Any:
        """The value as a parameter."""
        convert = self.encoders[field.name]
        return value if convert is None or value is None else convert(value)

    def comparison_encoder(self, field: FieldMeta) -> Codec | None:
        """What turns a value into a parameter for `comparison_column`; None when it goes as it is.

        The field may belong to a related model.
        """
        if self.uses_order_keys and has_order_key(field, self.dialect):
            return order_key
        if field.encrypted is not None:
            return lambda value: digest_of(field, value, self.keys)
        return encoder(field.kind, self.dialect)

    def encode_comparable(self, field: FieldMeta, value: Any) -> Any:
        """The value as a parameter for `comparison_column`."""
        convert = self.comparison_encoder(field)
        return value if convert is None or value is None else convert(value)

    def _lock_values(self) -> dict[str, Any]:
        return {
            f"{LOCK}{i}": self.encode_comparable(self.meta.by_name[lock.field], lock.value)
            for i, lock in enumerate(self.meta.locks)
        }

    def live(self, table: FromClause | None = None) -> list[sa.ColumnElement[bool]]:
        """The condition that leaves soft-deleted rows out."""
        marker = self.meta.soft_delete
        if marker is None:
            return []
        column = (self.table if table is None else table).c[self.meta.by_name[marker.field].column]
        return [column.is_(None) if marker.timestamp else column.is_(sa.false())]


# Texts in several languages: the text that is shown, as an expression. Locales travel as parameters.


def text_expression(column: Any, codes: Sequence[str], dialect: Dialect) -> Any:
    """The first text that is not empty among those of these locales, compared by code point; or null."""
    texts = [sa.func.nullif(_text_of_locale(column, code, dialect), _NO_TEXT) for code in codes]
    first = texts[0] if len(texts) == 1 else sa.func.coalesce(*texts)
    return by_dialect(dialect, sqlite=first, postgres=sa.collate(first, "C"))


def _text_of_locale(column: Any, code: str, dialect: Dialect) -> Any:
    locale = sa.cast(sa.bindparam(locale_parameter(code), type_=sa.Text()), sa.Text())
    if dialect is Dialect.POSTGRES:
        return column.op("->>")(locale)
    if dialect is not Dialect.SQLITE:
        assert_never(dialect)
    # What is no JSON at all ends a statement that looks into it.
    return sa.case((sa.func.json_valid(column), sa.func.json_extract(column, locale)))


_NO_TEXT: Any = sa.literal_column("''")


# A query model's SELECT in the place of a table: a subquery whose columns have the declared types.
#
# The casts make a column behave as the same field of a table would: text sorts by code point, decimals
# compare by value, no matter how the SELECT makes them.


_NAME = "given_by_query"  # no column is likely to be called like this
_TYPED = "typed_by_fields"


def build_view(meta: ModelMeta, dialect: Dialect) -> Subquery:
    """What statements read from instead of a table."""
    inner = _inner(meta, dialect)
    # A cast hides a column from the indexes of its table.
    of_type: Any = sa.type_coerce if isinstance(_select_text(meta, dialect), TypedSelect) else sa.cast
    typed_columns = [
        of_type(inner.c[f.column], column_type(f.kind, dialect)).label(f.column) for f in meta.fields
    ]
    whole = sa.select(*typed_columns)
    decimal_fields = [f for f in meta.fields if has_order_key(f, dialect)]
    if not decimal_fields:
        return whole.subquery(meta.table)
    # A subquery of its own, so that the SELECT's value stands in the expression by a short name.
    source = whole.subquery(_TYPED)
    keys: list[Any] = [
        sa.literal_column(order_expression(f"{_TYPED}.{quote(f.column, dialect)}")).label(
            order_column(f.column)
        )
        for f in decimal_fields
    ]
    return sa.select(*source.c, *keys).subquery(meta.table)


def text_of(meta: ModelMeta, dialect: Dialect) -> str:
    """The SELECT for this database."""
    text = _select_text(meta, dialect)
    if not text:
        raise DeclarationError(f"{meta.name}: query= has no SELECT for {dialect}")
    return text.strip().rstrip(";").rstrip()


def runs(meta: ModelMeta, dialect: Dialect) -> Sql:
    """A statement that succeeds when the SELECT itself does."""
    inner = _inner(meta, dialect)
    one: sa.ColumnElement[object] = sa.literal_column("1")
    statement = sa.select(one).select_from(inner).limit(sa.literal_column("0")).offset(sa.literal_column("0"))
    return Sql(compile_statement(statement, dialect).text)


def gives(meta: ModelMeta, dialect: Dialect, field: FieldMeta, *, typed: bool) -> Sql:
    """A statement that succeeds when the SELECT has the column (`typed`: and it can be of its kind)."""
    inner = _inner(meta, dialect)
    column: sa.ColumnElement[object] = inner.c[field.column]
    if typed:
        column = sa.cast(column, column_type(field.kind, dialect))
    else:
        # On Postgres `q.count` may also be the function, called on the row; on SQLite a quoted name that
        # no column has, and no table goes before, is a text.
        column = by_dialect(dialect, sqlite=column, postgres=sa.column(field.column))
    statement = (
        sa.select(column).select_from(inner).limit(sa.literal_column("0")).offset(sa.literal_column("0"))
    )
    return Sql(compile_statement(statement, dialect).text)


def _select_text(meta: ModelMeta, dialect: Dialect) -> str | None:
    query = meta.options.query
    return query.get(dialect.value) if isinstance(query, Mapping) else query


def _inner(meta: ModelMeta, dialect: Dialect) -> Subquery:
    # A colon would start a parameter of SQLAlchemy's; the line break ends a comment at the end.
    text = sa.text(text_of(meta, dialect).replace(":", "\\:") + "\n")
    return text.columns(*(sa.column(f.column) for f in meta.fields)).subquery(_NAME)
