"""Rows and records → JSON bytes. One way out for every record, so no secret finds another.

A row straight from the database and a record made from it give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from maniflex.db.port import Row
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.sql.codec import encode_json

_plain_encoder = msgspec.json.Encoder()
_MOST_SELECTIONS = 256


class Wire:
    """How the records of one model look to a client."""

    def __init__(
        self,
        meta: ModelMeta,
        fields: Sequence[FieldMeta] | None = None,
        selected: Sequence[FieldMeta] | None = None,
    ) -> None:
        self.meta = meta
        self._row_fields = meta.fields if fields is None else tuple(fields)
        shown = [
            (i, f)
            for i, f in enumerate(self._row_fields)
            if f.visible and (selected is None or f in selected)
        ]
        # Names go by position: `Shape(*values)` is the fastest way msgspec has to make an object.
        self._shape: Any = msgspec.defstruct(
            meta.name, [(f"f{i}", Any) for i, _ in shown], rename={f"f{i}": f.api for i, f in shown}
        )
        self._json = tuple(n for n, (_, f) in enumerate(shown) if f.kind is Kind.JSON)
        self._pick: Callable[[Row], Sequence[Any]] | None = (
            None if len(shown) == len(self._row_fields) and not self._json else _picker([i for i, _ in shown])
        )
        self._width = len(self._row_fields)
        self._selections: dict[tuple[str, ...], Wire] = {}
        self.api = tuple(f.api for _, f in shown)

    def of(self, fields: Sequence[FieldMeta], selected: Sequence[FieldMeta]) -> Wire:
        """The same for rows that have only `fields`, of which `selected` are shown."""
        key = (*(f.name for f in fields), "", *(f.name for f in selected))
        found = self._selections.get(key)
        if found is None:
            if len(self._selections) >= _MOST_SELECTIONS:
                self._selections.clear()
            found = self._selections[key] = Wire(self.meta, fields, selected)
        return found

    def shaped(self, row: Row) -> Any:
        """The row as an object msgspec writes without looking anything up."""
        if self._pick is None:
            return self._shape(*row) if len(row) == self._width else self._shape(*row[: self._width])
        values = self._pick(row)
        if self._json:
            values = list(values)
            for i in self._json:
                text = values[i]
                if text is not None:
                    values[i] = msgspec.Raw(text if isinstance(text, bytes) else text.encode())
        return self._shape(*values)

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
        shaped = self.shaped(row)
        return {
            api: getattr(shaped, name) for api, name in zip(self.api, shaped.__struct_fields__, strict=True)
        }

    def one(self, row: Row) -> bytes:
        return b'{"data":' + _plain_encoder.encode(self.shaped(row)) + b"}"

    def many(self, rows: Sequence[Row], total: int, page: int, limit: int) -> bytes:
        if self._pick is None:  # `shaped` for the common case, without a call for every row
            shape, width = self._shape, self._width
            data = _plain_encoder.encode([shape(*row[:width]) for row in rows])
        else:
            data = _plain_encoder.encode([self.shaped(row) for row in rows])
        return b'{"data":%b,"meta":{"total":%d,"page":%d,"limit":%d,"pages":%d}}' % (
            data, total, page, limit, -(-total // limit),
        )  # fmt: skip

    def etag(self, row: Row) -> str:
        """A version of the stored row that does not depend on what of it is shown."""
        digest = hashlib.blake2b(_plain_encoder.encode(self.shaped(row)), digest_size=16)
        return f'"{digest.hexdigest()}"'


def _picker(indexes: list[int]) -> Callable[[Row], Sequence[Any]]:
    if len(indexes) == 1:
        only = indexes[0]
        return lambda row: (row[only],)
    return itemgetter(*indexes)


def encoder(wires: Mapping[type, Wire]) -> Callable[[Any], bytes]:
    """An encoder for anything an application may answer with."""

    def plain(value: Any) -> Any:
        if isinstance(value, Model):
            wire = wires.get(type(value))
            if wire is None:
                raise TypeError(f"{type(value).__name__} is not registered with this server")
            return wire.shaped(wire.row(value))
        if isinstance(value, BaseModel):
            return _dumped(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, set | frozenset | Sequence):
            return list(value)
        return to_jsonable_python(value)

    return msgspec.json.Encoder(enc_hook=plain).encode


def _dumped(value: BaseModel) -> dict[str, Any]:
    """A pydantic model as it says itself; records inside it stay records, for their own way out."""
    holding = {name for name, item in value if _holds_record(item)}
    dumped = value.model_dump(by_alias=True, exclude=holding or None)
    for name, info in type(value).model_fields.items():
        if name in holding and not info.exclude:
            dumped[info.serialization_alias or name] = getattr(value, name)
    return dumped


def _holds_record(item: Any) -> bool:
    if isinstance(item, Model):
        return True
    if isinstance(item, BaseModel):
        return any(_holds_record(inner) for _, inner in item)
    if isinstance(item, Mapping):
        return any(map(_holds_record, item.values()))
    return isinstance(item, list | tuple | set | frozenset) and any(map(_holds_record, item))
