"""Comparing two fields: both are of one record, both are open, and nothing else is ever compared.

Every operator that takes a field, every place a condition can stand, every wrong second field: the
answer is a refusal, the same as for a field that does not exist, and never a failure.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import Model, Server, field, has_many
from maniflex.errors import InvalidQuery
from maniflex.query.operators import OPERATORS, Takes
from maniflex.testing import client
from tests.kit.http import data_of, error_of

OPS = [name for name, operator in OPERATORS.items() if operator.takes is Takes.FIELD]


class Owner(Model):
    code: str = field(filterable=True, sortable=True)
    label: str = field(default="", filterable=True)
    secret: str = field(default="", hidden=True)
    parcels: list[Parcel] = has_many()


class Parcel(Model, aggregate=True):
    guess: str = field(filterable=True, sortable=True)
    title: str = field(filterable=True, sortable=True)
    weight: int = field(default=1, filterable=True)
    code: str = field(default="m", hidden=True)  # open in Owner
    label: str = field(default="m", writeonly=True)
    shut: str = "m"
    data: dict[str, Any] = field(default_factory=dict)
    owner_id: str | None = field(default=None, filterable=True)


# What stands for the second field where the first is the parcel's `guess`, and what it is.
WRONG = {
    "owner.code": "of another record, whose name is a hidden field here",
    "owner.label": "of another record, whose name is a write-only field here",
    "owner.owner_id": "a path to nothing",
    "owner.parcels.guess": "there and back",
    "owner": "a relation",
    "code": "hidden",
    "label": "write-only",
    "shut": "not open",
    "data": "of a kind that is not compared",
    "weight": "of another kind",
    "nothing": "unknown",
    "": "empty",
    ".": "a path of nothing",
    "guess.": "a path from a field",
    ".guess": "a path from nothing",
}
OTHER_TYPES: list[Any] = [None, 5, True, ["title"], {"field": "title"}]


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    server = Server()
    server.register(Owner, Parcel)
    async with client(server, database=database_url):
        owner = await server.db(Owner).create(code="m", label="m", secret="m")
        for guess in ("a", "m", "z"):
            await server.db(Parcel).create(guess=guess, title="m", owner_id=owner.id)
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


def aggregate(**parts: Any) -> str:
    return "/api/parcels/aggregate?aggregate=" + quote(json.dumps({"select": [{"op": "count"}], **parts}))


def places(field_name: str, op: str, value: Any) -> Iterator[str]:
    """The requests in which a client can compare two fields."""
    yield aggregate(where=[{"field": field_name, "operator": op, "value": value}])
    if isinstance(value, str):
        condition = quote(f"{field_name}:{op}:{value}")
        yield f"/api/parcels?filter={condition}"
        yield f"/api/parcels?filter[0]=title:eq:x&filter[0]={condition}"
        yield aggregate() + f"&filter={condition}"


@pytest.mark.parametrize("op", OPS)
async def test_no_place_compares_what_is_not_an_open_field_of_the_record(
    http: httpx.AsyncClient, op: str
) -> None:
    for name in (*WRONG, *OTHER_TYPES):
        for request in places("guess", op, name):
            answer = await http.get(request)
            error = error_of(answer, 400, "INVALID_QUERY")
            if name != "weight":  # an open field may be told apart by its kind
                assert error["message"].endswith(f"{name!r} is not a field that can be filtered"), request
    for name in ("owner.code", "owner.secret", "secret", "parcels.guess", "guess", ""):
        for request in places("owner.code", op, name):
            error_of(await http.get(request), 400, "INVALID_QUERY")


@pytest.mark.parametrize("op", OPS)
async def test_an_aggregate_compares_no_fields_of_its_groups(http: httpx.AsyncClient, op: str) -> None:
    for name in (*WRONG, *OTHER_TYPES, "count", "guess"):
        request = aggregate(having=[{"alias": "count", "operator": op, "value": name}])
        error_of(await http.get(request), 400, "INVALID_QUERY")


async def test_two_open_fields_are_compared_alike_everywhere(http: httpx.AsyncClient) -> None:
    expected = {"eq_field": 1, "neq_field": 2, "gt_field": 1, "gte_field": 2, "lt_field": 1, "lte_field": 2}
    assert sorted(expected) == sorted(OPS)
    for op, count in expected.items():
        for request in places("guess", op, "title"):
            answer = await http.get(request)
            data = data_of(answer)
            assert (len(data) if "guess" in str(data) else data[0]["count"]) == count, request
    for request in places("owner.code", "eq_field", "label"):  # both of the owner
        assert data_of(await http.get(request)) not in ([], [{"count": 0}])


@pytest.mark.parametrize("op", OPS)
async def test_code_compares_two_fields_of_one_record_and_no_others(server: Server, op: str) -> None:
    store = server.db(Parcel)
    for name in ("owner.code", "owner.secret", "owner", "weight", "nothing", "", ".", *OTHER_TYPES):
        with pytest.raises(InvalidQuery):
            await store.list([("guess", op, name)])
    assert len(await store.list([("guess", op, "code")])) in (1, 2)  # code may use any field
    assert len(await store.list([("owner.code", op, "secret")])) in (0, 3)
