"""Random data, random aggregates: SQLite and PostgreSQL answer with the same bytes, and as Python would."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maniflex import Model, Server, field
from maniflex.testing import client

BIG = 2**63 - 1


class Sample(Model, aggregate=True):
    batch: int = field(filterable=True)
    text: str | None = field(default=None, filterable=True, sortable=True)
    whole: int | None = field(default=None, filterable=True, sortable=True)
    real: float | None = field(default=None, filterable=True, sortable=True)
    exact: Decimal | None = field(default=None, filterable=True, sortable=True)
    flag: bool | None = field(default=None, filterable=True, sortable=True)
    at: datetime | None = field(default=None, filterable=True, sortable=True)
    day: date | None = field(default=None, filterable=True, sortable=True)
    clock: time | None = field(default=None, filterable=True, sortable=True)
    key: UUID | None = field(default=None, filterable=True, sortable=True)
    secret: int = field(default=0, hidden=True)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["", "a", "A", "b", "ä", "Z", "𝄞", "a%", "_"]),
    "whole": st.sampled_from([0, 1, -1, 2, 3, BIG, -BIG - 1]) | st.integers(-5, 5),
    "real": st.sampled_from([0.0, -0.0, 0.1, 0.2, 1e16, -1e16, 1.5, 1e-300, 1e300]) | st.floats(-10, 10),
    "exact": st.sampled_from([Decimal(t) for t in ("0", "0.00", "1", "1.0", "-0.1", "0.30", "1e-20", "1e20")])
    | st.decimals(-100, 100, places=4),
    "flag": st.booleans(),
    "at": st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),
    "day": st.dates(date(2020, 1, 1), date(2020, 1, 4)),
    "clock": st.sampled_from([time(0), time(12, 30), time(12, 30, 0, 1)]),
    "key": st.sampled_from([UUID(int=n) for n in (0, 1, 2**127)]),
}
FIELDS = (*VALUES, "secret", "nothing")
ROWS = st.lists(st.fixed_dictionaries({n: st.none() | v for n, v in VALUES.items()}), max_size=6)
OPERATORS = ("eq", "neq", "gt", "gte", "lt", "lte", "in", "not_in", "between", "is_null", "not_null", "like")
NUMBERS = st.sampled_from([0, 1, -1, "0.30", 0.3, 1.5, "1e20", BIG, "x", None, True])


def plain(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal | UUID) else getattr(value, "isoformat", lambda: value)()


def conditions(name: str, names: st.SearchStrategy[str], values: st.SearchStrategy[Any]) -> Any:
    value = values | st.lists(values, min_size=1, max_size=3) | st.lists(values, min_size=2, max_size=2)
    entry = {name: names, "operator": st.sampled_from(OPERATORS), "value": value}
    return st.fixed_dictionaries(entry).map(
        lambda e: {k: v for k, v in e.items() if k != "value" or "null" not in str(e["operator"])}
    )


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    ops = st.sampled_from(["count", "count_distinct", "sum", "sum", "avg", "avg", "min", "max"])
    fields = st.sampled_from(FIELDS + ("whole", "real", "exact") * 6)
    select = [
        {"op": op, **({"field": name} if op != "count" or draw(st.booleans()) else {}), "as": f"m{i}"}
        for i, (op, name) in enumerate(draw(st.lists(st.tuples(ops, fields), min_size=1, max_size=3)))
    ]
    group_by = draw(st.lists(st.sampled_from([*VALUES]), max_size=2, unique=True))
    aliases = st.sampled_from([m["as"] for m in select])
    everything = st.one_of(*VALUES.values()).map(plain)
    spec: dict[str, Any] = {"select": select, "group_by": group_by}
    spec["where"] = draw(st.lists(conditions("field", st.sampled_from([*VALUES]), everything), max_size=1))
    spec["having"] = draw(st.lists(conditions("alias", aliases, NUMBERS | everything), max_size=1))
    orders = st.tuples(
        st.sampled_from([*group_by, *(m["as"] for m in select)]), st.sampled_from(["asc", "desc"])
    )
    order_by = draw(st.lists(orders, max_size=2))
    spec["order_by"] = [{"field": name, "direction": direction} for name, direction in order_by]
    spec["limit"] = draw(st.sampled_from([1, 2, 100]))
    return spec


class Pair:
    """The same server on both databases."""

    def __init__(self, *urls: str) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.servers: list[Server] = []
        self.clients: list[httpx.AsyncClient] = []
        self.batches = itertools.count()
        for url in urls:
            server = Server()
            server.register(Sample)
            http = self.runner.run(self.stack.enter_async_context(client(server, database=url)))
            self.servers.append(server)
            self.clients.append(http)

    def close(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def ask(self, rows: list[dict[str, Any]], spec: dict[str, Any]) -> tuple[int, Any]:
        """What both answer over exactly these rows."""
        batch = next(self.batches)
        here, there = [self.runner.run(self._ask(place, batch, rows, spec)) for place in range(2)]
        assert here == there, (spec, rows)
        return here

    async def _ask(self, place: int, batch: int, rows: list[dict[str, Any]], spec: Any) -> tuple[int, str]:
        server = self.servers[place]
        async with server.transaction():
            for row in rows:
                await server.db(Sample).create(batch=batch, **row)
        query = urlencode({"aggregate": json.dumps(spec), "filter": f"batch:eq:{batch}"})
        answer = await self.clients[place].get(f"/api/samples/aggregate?{query}")
        return answer.status_code, answer.text


@pytest.fixture
def pair(sqlite_url: str, postgres_url: str) -> Iterator[Pair]:
    pair = Pair(sqlite_url, postgres_url)
    yield pair
    pair.close()


def test_random_aggregates_are_answered_alike(pair: Pair, fuzz_cases: int, long_mode: bool) -> None:
    answered: set[int] = set()

    @settings(max_examples=max(fuzz_cases // 2, 300), derandomize=not long_mode, database=None)
    @given(ROWS, specs())
    def case(rows: list[dict[str, Any]], spec: dict[str, Any]) -> None:
        answered.add(pair.ask(rows, spec)[0])

    case()
    assert answered == {200, 400}


def test_sums_and_averages_are_what_exact_arithmetic_gives(pair: Pair) -> None:
    @settings(max_examples=100, derandomize=True, database=None)
    @given(st.lists(st.decimals(-(10**12), 10**12, places=6), min_size=1, max_size=8))
    def case(numbers: list[Decimal]) -> None:
        select = [{"op": "sum", "field": "exact"}, {"op": "avg", "field": "exact"}]
        status, text = pair.ask([{"exact": number} for number in numbers], {"select": select})
        [row] = json.loads(text)["data"]
        assert status == 200
        assert Decimal(row["sum_exact"]) == sum(numbers)
        assert abs(Decimal(row["avg_exact"]) - sum(numbers, Decimal(0)) / len(numbers)) <= Decimal("5.1e-16")

    case()
