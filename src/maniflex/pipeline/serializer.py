"""Rows and records → JSON bytes.

Here a record is written by its `Serializer`; inside a pydantic model by its own pydantic schema. Neither
knows a secret field. A row straight from the database and a record made from it give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from maniflex._json import encode_json
from maniflex._locales import NO_LOCALE, LocaleView
from maniflex.db.budget import Budget
from maniflex.db.includes import IncludedRow, Related
from maniflex.db.port import Row
from maniflex.model.base import HiddenFields, Model
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.texts import COMPANION, decode_texts, locale_rules
from maniflex.query import cursor
from maniflex.query.query import Query

if TYPE_CHECKING:
    from maniflex.pipeline.rules.model_rules import ModelRules

_plain_encoder = msgspec.json.Encoder()
_MOST_SELECTIONS = 256
_PAGE = b'{"data":%b,"meta":{"total":%d,"page":%d,"limit":%d,"pages":%d}}'
_PAGE_RIGHT_TO_LEFT = _PAGE[:-2] + b',"_dir":"rtl"}}'
_RIGHT_TO_LEFT = {"_dir": "rtl"}


class Serializer:
    """How the records of one model look to a client, who may have asked for a language.

    Without a `view` it is how they are stored: the tags of rows are made so, whatever is shown of them.
    `as_cells` is for files: of a text the one that is shown, and its translations where they are selected.
    """

    def __init__(
        self,
        meta: ModelMeta,
        fields: Sequence[FieldMeta] | None = None,
        selected: Sequence[FieldMeta] | None = None,
        hidden: frozenset[str] = frozenset(),
        view: LocaleView | None = NO_LOCALE,
        *,
        as_cells: bool = False,
    ) -> None:
        self.meta = meta
        self._hidden = hidden
        self.view = view
        self._row_fields = meta.fields if fields is None else tuple(fields)
        values = [
            (i, name, f.kind, read)
            for i, f in enumerate(self._row_fields)
            if f.visible and f.api not in hidden
            for name, read in _shown_values(f, selected, view, as_cells)
            if name == f.api or name not in meta.by_api  # otherwise the start stops, once all is looked at
        ]
        # Names go by position: `Shape(*values)` is the fastest way msgspec has to make an object.
        names = [(f"f{n}", name) for n, (_, name, _, _) in enumerate(values)]
        self._shape: Any = msgspec.defstruct(meta.name, [(f, Any) for f, _ in names], rename=dict(names))
        self._json = tuple(n for n, (_, _, k, read) in enumerate(values) if k is Kind.JSON and read is None)
        self._texts = tuple((n, read) for n, (_, _, _, read) in enumerate(values) if read is not None)
        self._pairs: tuple[tuple[int, str, Callable[[Any], tuple[Any, Any]]], ...] = ()
        if view is not None:
            self._pair_texts(values, view)
        self._pick: Callable[[Row], Sequence[Any]] | None = (
            None
            if [i for i, *_ in values] == [*range(len(self._row_fields))] and not (self._json or self._texts)
            else _picker([i for i, *_ in values])
        )
        self._width = len(self._row_fields)
        self._selections: dict[tuple[str, ...], Serializer] = {}
        self._redacted: dict[frozenset[str], Serializer] = {}
        self._views: dict[LocaleView, Serializer] = {}
        self._is_localized = any(locale_rules(f) is not None for f in self._row_fields)
        self._stored: Serializer | None = None  # how the rows are stored, where they are values otherwise
        self.api = tuple(name for _, name, _, _ in values)
        # What `meta` says of the direction of the texts.
        self.direction: Mapping[str, str] = {} if view is None or view.direction == "ltr" else _RIGHT_TO_LEFT
        self._end_of_one = b',"meta":{"_dir":"rtl"}}' if self.direction else b"}"
        self._page = _PAGE_RIGHT_TO_LEFT if self.direction else _PAGE

    def _pair_texts(self, values: Sequence[tuple[int, str, Kind, Any]], view: LocaleView) -> None:
        """Read a text and its companion at once, where both are shown: they stand beside each other."""
        for n, (place, name, _, _) in enumerate(values[:-1]):
            rules = locale_rules(self._row_fields[place])
            if rules is None or name != rules.name or rules.shows_all(view):
                continue
            if values[n + 1][:2] == (place, rules.companion):
                first = rules.chain(view.locale)[0]
                self._pairs = (*self._pairs, (n, first, rules.reader_with_all(view.locale)))
                self._texts = tuple(item for item in self._texts if item[0] not in (n, n + 1))

    def of(self, fields: Sequence[FieldMeta], selected: Sequence[FieldMeta]) -> Serializer:
        """The same for rows that have only `fields`, of which `selected` are shown."""
        key = (*(f.name for f in fields), "", *(f.name for f in selected))
        serializer = self._selections.get(key)
        if serializer is None:
            if len(self._selections) >= _MOST_SELECTIONS:
                self._selections.clear()
            serializer = Serializer(self.meta, fields, selected, self._hidden, self.view)
            self._selections[key] = serializer
        return serializer

    def without(self, hidden: frozenset[str]) -> Serializer:
        """The same for a caller who may not see the fields of these API names."""
        if not hidden:
            return self
        serializer = self._redacted.get(hidden)
        if serializer is None:
            if len(self._redacted) >= _MOST_SELECTIONS:
                self._redacted.clear()
            serializer = Serializer(self.meta, self._row_fields, None, hidden, self.view)
            self._redacted[hidden] = serializer
        return serializer

    def in_view(self, view: LocaleView) -> Serializer:
        """The same for a caller who asked for a language."""
        if view == self.view:
            return self
        serializer = self._views.get(view)
        if serializer is None:
            if len(self._views) >= _MOST_SELECTIONS:
                self._views.clear()
            serializer = Serializer(self.meta, self._row_fields, None, self._hidden, view)
            self._views[view] = serializer
        return serializer

    def struct_of(self, row: Row) -> Any:
        """The row as an object msgspec writes without looking anything up."""
        if self._pick is None:
            return self._shape(*row) if len(row) == self._width else self._shape(*row[: self._width])
        return self._shape(*self._visible_values(row, self._pick))

    def _visible_values(self, row: Row, pick: Callable[[Row], Sequence[Any]]) -> Sequence[Any]:
        """The visible values of a row; stored JSON is written as it is."""
        if not (self._json or self._texts or self._pairs):
            return pick(row)
        values = list(pick(row))
        for i, _, read_both in self._pairs:
            if values[i] is not None:
                values[i], values[i + 1] = read_both(values[i])
        for i, read in self._texts:
            if values[i] is not None:
                values[i] = read(values[i])
        for i in self._json:
            text = values[i]
            if text is not None:
                values[i] = msgspec.Raw(text if isinstance(text, bytes) else text.encode())
        return values

    def fits(self, record: Any) -> bool:
        """Whether the record may be shown as one of this model: it is one, and keeps no more secret."""
        if type(record) is self.meta.cls:
            return True
        fields = getattr(type(record), "__pydantic_fields__", {})
        return isinstance(record, self.meta.cls) and not any(
            f.visible and fields[f.name].exclude for f in self.meta.fields
        )

    def row(self, record: Model) -> Row:
        """A record as the row it would be."""
        values = record.__dict__
        return [
            encode_json(value)
            if f.kind is Kind.JSON and (value := values.get(f.name)) is not None
            else values.get(f.name)
            for f in self._row_fields
        ]

    def fields(self, row: Row) -> dict[str, Any]:
        """The visible fields by API name, for responses that carry more than the row."""
        values = row if self._pick is None else self._visible_values(row, self._pick)
        return dict(zip(self.api, values, strict=False))  # a row may have more behind its fields

    def encode_one(self, row: Row) -> bytes:
        return b'{"data":' + _plain_encoder.encode(self.struct_of(row)) + self._end_of_one

    def encode_many_in_parts(
        self, rows: Sequence[Row], total: int, page: int, limit: int, budget: Budget
    ) -> bytes:
        """As `encode_many`, for rows that are large: other threads get their turn between two of them."""
        data = encode_in_parts(_plain_encoder.encode, [self.struct_of(row) for row in rows], budget)
        return self._page % (data, total, page, limit, -(-total // limit))

    def encode_many(self, rows: Sequence[Row], total: int, page: int, limit: int) -> bytes:
        if self._pick is None:  # `struct_of` for the common case, without a call for every row
            shape, width = self._shape, self._width
            data = _plain_encoder.encode([shape(*row[:width]) for row in rows])
        elif self._pairs and not (self._json or self._texts):
            data = _plain_encoder.encode(self._structs_of_pairs(rows, self._pick))
        else:
            data = _plain_encoder.encode([self.struct_of(row) for row in rows])
        return self._page % (data, total, page, limit, -(-total // limit))

    def _structs_of_pairs(self, rows: Sequence[Row], pick: Callable[[Row], Sequence[Any]]) -> list[Any]:
        """`struct_of` for rows whose only unusual values are texts with their companions."""
        shape, pairs, structs, decode, raw = self._shape, self._pairs, [], decode_texts, msgspec.Raw
        for row in rows:
            values = list(pick(row))
            for i, first, read_both in pairs:
                stored = values[i]
                if stored is None:
                    continue
                try:
                    text = decode(stored).get(first)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    text = None
                if text:  # what most rows have: no call for it
                    values[i], values[i + 1] = text, raw(stored)
                else:
                    values[i], values[i + 1] = read_both(stored)
            structs.append(shape(*values))
        return structs

    def etag(self, row: Row) -> str:
        """A version of the stored row that does not depend on what of it is shown."""
        own = self
        if self._is_localized and self.view is not None:
            if self._stored is None:
                self._stored = Serializer(self.meta, self._row_fields, None, self._hidden, view=None)
            own = self._stored
        digest = hashlib.blake2b(_plain_encoder.encode(own.struct_of(row)), digest_size=16)
        return f'"{digest.hexdigest()}"'


def _shown_values(
    field: FieldMeta, selected: Sequence[FieldMeta] | None, view: LocaleView | None, as_cells: bool
) -> Iterator[tuple[str, Callable[[Any], Any] | None]]:
    """The keys that show a stored value, each with what makes the value shown of it where that is another."""
    is_selected = selected is None or field in selected
    rules = None if view is None else locale_rules(field)
    if rules is None or view is None:
        if is_selected:
            yield field.api, None
        return
    if is_selected:
        yield (
            field.api,
            rules.read_json if rules.shows_all(view) and not as_cells else rules.reader(view.locale),
        )
    is_companion_selected = any(f.extra.get(COMPANION) is field for f in selected or ())
    if (is_selected and rules.mode == "split" and not as_cells) or is_companion_selected:
        yield rules.companion, rules.read_json


class SerializersInView(dict[type[Model], Serializer]):
    """How the records of all models look to a caller who asked for a language."""

    def __init__(self, serializers: Mapping[type[Model], Serializer], view: LocaleView | None) -> None:
        super().__init__()
        self._serializers = serializers
        self._view = view

    def __missing__(self, model: type[Model]) -> Serializer:
        serializer = self._serializers[model]
        self[model] = serializer = serializer if self._view is None else serializer.in_view(self._view)
        return serializer

    def get(self, model: Any, default: Any = None) -> Any:
        """The serializer of a model; that of no model is the default."""
        return self[model] if model in self._serializers else default


def _picker(indexes: list[int]) -> Callable[[Row], Sequence[Any]]:
    if len(indexes) == 1:
        only = indexes[0]
        return lambda row: (row[only],)
    return itemgetter(*indexes)


def encode_in_parts(
    encode: Callable[[Any], bytes], items: Sequence[Any], budget: Budget, at_once: int = 1
) -> bytes:
    """A JSON list of the items; `AnswerTooLarge` at the items that make it so."""
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(items), at_once):
        part = encode(items[start : start + at_once])
        size += len(part)
        budget.check(size)
        parts.append(part[1:-1])
    return b"[" + b",".join(parts) + b"]"


def encoder(simplify: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """An encoder for anything an application may answer with."""
    return msgspec.json.Encoder(enc_hook=simplify).encode


def simplifier(
    serializers: Mapping[type, Serializer], hidden: HiddenFields | None = None
) -> Callable[[Any], Any]:
    """Makes of what JSON has no word for something that is closer to it.

    `hidden` takes fields out of the records that pydantic meets inside the application's own objects.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Model):
            serializer = serializers.get(type(value))
            return _dump(value, hidden) if serializer is None else serializer.struct_of(serializer.row(value))
        if isinstance(value, BaseModel):
            return _dump(value, hidden)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Set | Sequence | Iterator | ValuesView):
            return list(value)
        if isinstance(value, AsyncIterable):
            raise TypeError("an answer holds an async iterator; collect it before you return")
        try:
            return to_jsonable_python(value, context=hidden)
        except PydanticSerializationError:
            if isinstance(value, Iterable):
                return list(value)
            raise

    return plain


def _dump(value: Any, context: Any) -> Any:
    """A pydantic model as it says itself; the schema of a record inside it leaves out the secrets."""
    try:
        return value.model_dump(by_alias=True, warnings=False, context=context)
    except TypeError:  # a set whose items become dicts, which no set can hold
        return value.model_dump(mode="json", by_alias=True, warnings=False, context=context)


# Related records as they go into an answer.


Changing = list[tuple[type[Model], list[dict[str, Any]]]]


def serialize_related(
    serializers: Mapping[type[Model], Serializer],
    rules: Mapping[type[Model], ModelRules],
    related: Related,
    changing: Changing,
) -> dict[str, Any]:
    """By relation name, each record in the shape its own model's answers have.

    Records of models with transforms are appended to `changing`, to be changed before they are written.
    """
    return {
        name: _serialize_entries(serializers, rules, entry, changing)
        if isinstance(entry, list)
        else _serialize_entries(serializers, rules, [entry], changing)[0]
        for name, entry in related.items()
    }


def _serialize_entries(
    serializers: Mapping[type[Model], Serializer],
    rules: Mapping[type[Model], ModelRules],
    entries: Sequence[IncludedRow],
    changing: Changing,
) -> list[Any]:
    """Records of one model."""
    if not entries:
        return []
    model = entries[0].store.meta.cls
    serializer = serializers[model]
    if rules[model].transforms:
        records = [serializer.fields(entry.row) for entry in entries]
        changing.append((model, records))
        for record, entry in zip(records, entries, strict=True):
            record.update(serialize_related(serializers, rules, entry.related, changing))
        return records
    struct_of = serializer.struct_of
    return [
        {
            **serializer.fields(entry.row),
            **serialize_related(serializers, rules, entry.related, changing),
        }
        if entry.related
        else struct_of(entry.row)
        for entry in entries
    ]


# The rows and the `meta` block of a keyset page.


def trim_page(rows: Sequence[Row], query: Query) -> tuple[Sequence[Row], bool]:
    """The page without the row that was read only to know whether there are more."""
    limit = query.limit or 0
    more = len(rows) > limit
    rows = rows[:limit]
    backwards = query.cursor is not None and query.cursor.backwards
    return (list(reversed(rows)) if backwards else rows), more


def cursor_meta(
    query: Query, ends: tuple[Row, Row] | None, fields: Sequence[FieldMeta], more: bool
) -> dict[str, Any]:
    """Where the walk goes on from the first and last row of a page, as far as there is anything."""
    at = query.cursor
    assert at is not None
    places = {f.name: i for i, f in enumerate(fields)}

    def token(row: Row, *, backwards: bool) -> str:
        return cursor.write(query, row[places[at.field.name]], row[places["id"]], backwards=backwards)

    meta: dict[str, Any] = {"limit": query.limit}
    if ends is None:  # no row that a token could go on from: everything there was is gone
        return {**meta, "has_more": False}
    onwards = more if not at.backwards else at.after is not None
    if onwards:
        meta["next_cursor"] = token(ends[1], backwards=False)
    meta["has_more"] = onwards
    before = more if at.backwards else at.after is not None
    if before:
        meta["prev_cursor"] = token(ends[0], backwards=True)
    return meta
