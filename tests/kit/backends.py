"""A model whose records a backend in memory keeps, and backends that do less than they should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from maniflex import Conflict, Model, field
from maniflex.db.backend import BackendQuery


class Memory:
    """Records in a dictionary."""

    operators = frozenset({"eq", "in", "gt"})

    def __init__(self, *records: Mapping[str, Any]) -> None:
        self.records = {record["id"]: dict(record) for record in records}
        self.queries: list[BackendQuery] = []

    async def list(self, query: BackendQuery) -> Sequence[Mapping[str, Any]]:
        self.queries.append(query)
        rows = [record for record in self.records.values() if query.matches(record)]
        for sort in reversed(query.sorts):
            rows.sort(key=lambda row: row[sort.field], reverse=sort.descending)
        end = None if query.limit is None else query.offset + query.limit
        return rows[query.offset : end]

    async def count(self, query: BackendQuery) -> int:
        return sum(query.matches(record) for record in self.records.values())

    async def read(self, record_id: str) -> Mapping[str, Any] | None:
        return self.records.get(record_id)

    async def create(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        if any(record["symbol"] == values["symbol"] for record in self.records.values()):
            raise Conflict("there is a quote of this symbol")
        self.records[values["id"]] = dict(values)
        return values

    async def update(self, record_id: str, changes: Mapping[str, Any]) -> None:
        self.records[record_id].update(changes)

    async def delete(self, record_id: str) -> None:
        del self.records[record_id]


class Careless(Memory):
    """A backend that overlooks every condition."""

    async def list(self, query: BackendQuery) -> Sequence[Mapping[str, Any]]:
        return list(self.records.values())

    async def count(self, query: BackendQuery) -> int:
        return len(self.records)


class Side(StrEnum):
    BUY = "buy"
    SELL = "sell"


def quote_model(backend: Any, **options: Any) -> type[Model]:
    class Quote(Model, backend=backend, **options):
        symbol: str = field(filterable=True, sortable=True)
        price: Decimal = field(filterable=True)
        side: Side = field(default=Side.BUY, filterable=True)
        tags: list[str] = field(default_factory=list)
        tenant: str = "a"
        secret: str = field(default="s", hidden=True)
        seen_at: datetime | None = None

    return Quote


def quote(record_id: str = "q1", **values: Any) -> dict[str, Any]:
    usual = {"symbol": "ACME", "price": "12.50", "side": "buy", "tags": ["x"], "tenant": "a", "secret": "s"}
    return {"id": record_id, **usual, **values}
