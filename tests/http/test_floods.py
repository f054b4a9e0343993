"""A body that is wrong in very many places is refused with the first hundred of them, and soon."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from maniflex import Context, Model, Server, field
from maniflex.errors import MOST_DETAILS as MOST
from maniflex.errors import ValidationFailed
from maniflex.model.validate import BoundedValidator
from maniflex.testing import client


class Part(BaseModel, extra="forbid"):
    number: int
    text: str


class Order(Model):
    name: str = "a"
    numbers: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)


class Basket(BaseModel):
    orders: list[Order] = []
    either: list[list[int] | list[str]] = []
    pair: tuple[int, str] = (0, "")


@asynccontextmanager
async def _serving(database: str) -> AsyncIterator[httpx.AsyncClient]:
    server = Server()
    server.register(Order)

    @server.action("POST", "/baskets", request=Basket)
    async def fill(ctx: Context) -> None: ...

    async with client(server, database=database) as http:
        yield http


def _refused(answer: httpx.Response) -> tuple[str, list[str]]:
    """What the refusal says, and the fields it names."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "VALIDATION_FAILED")
    return error["message"], [detail["field"] for detail in error["details"]]


FEW: list[tuple[dict[str, Any], list[str]]] = [
    ({"numbers": [1, "a", 2, None], "named": {"x": "y", "z": 1, "w": []}, "name": 1},
     ["name", "numbers.1", "numbers.3", "named.x", "named.w"]),
    ({"parts": [{}, {"number": 1, "text": "a"}, {"number": "b", "text": "a", "more": 1}]},
     ["parts.0.number", "parts.0.text", "parts.2.number", "parts.2.more"]),
    ({"numbers": [1] * 5000 + ["a"] + [1] * 5000 + ["b"], "name": None},
     ["name", "numbers.5000", "numbers.10001"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fields"), FEW, ids=["items and values", "entries", "among many"])
async def test_each_of_a_few_mistakes_is_told(body: Any, fields: list[str], database_url: str) -> None:
    async with _serving(database_url) as http:
        kept = (await http.post("/api/orders", json={})).json()["data"]["id"]
        for answer in (
            await http.post("/api/orders", json=body),
            await http.patch(f"/api/orders/{kept}", json=body),
        ):
            message, told = _refused(answer)
            assert message == "one or more fields failed validation"
            assert told == fields
        message, told = _refused(await http.post("/api/baskets", json={"orders": [{}, body]}))
        assert told == [f"orders.1.{name}" for name in fields]


FLOODS: dict[str, Any] = {
    "numbers": {"numbers": ["a"] * 90_000},
    "entries": {"parts": [{}] * 40_000},
    "values": {"named": {f"k{i}": "x" for i in range(90_000)}},
    "unknown names": {"parts": [{f"k{i}": 1 for i in range(90_000)}]},
    "unknown names of many": {"parts": [{f"k{i}": 1 for i in range(900)}] * 90},
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_of_a_flood_of_mistakes_a_hundred_are_told(flood: str, database_url: str) -> None:
    async with _serving(database_url) as http:
        answers = [
            await http.post("/api/orders", json=FLOODS[flood]),
            await http.post("/api/baskets", json={"orders": [FLOODS[flood]]}),
        ]

    for answer in answers:
        message, told = _refused(answer)
        assert message == f"one or more fields failed validation; the first {MOST} are listed"
        assert len(told) == len(set(told)) == MOST
        assert len(answer.content) < 50_000


async def test_records_that_are_all_wrong_are_told_up_to_a_hundred(database_url: str) -> None:
    async with _serving(database_url) as http:
        answer = await http.post("/api/baskets", json={"orders": [{"name": 1}] * 40_000})

    _, told = _refused(answer)
    assert told == [f"orders.{i}.name" for i in range(MOST)]


@pytest.mark.parametrize("size", [500, 5000])
async def test_alternatives_that_do_not_fit_hide_no_mistake(size: int, database_url: str) -> None:
    texts = [["a"] * size]
    async with _serving(database_url) as http:
        fits = await http.post("/api/baskets", json={"either": texts})
        wrong = await http.post("/api/baskets", json={"either": texts, "pair": ["x", "y"]})
        all_wrong = await http.post("/api/baskets", json={"either": [[1, "a"]] * size})

    assert fits.status_code == 204
    _refused(wrong)
    assert len(_refused(all_wrong)[1]) == MOST


async def test_code_is_told_of_each_mistake(database_url: str) -> None:
    server = Server(database_url)
    server.register(Order)
    async with server.lifespan():
        with pytest.raises(ValidationFailed) as refused:
            await server.db(Order).create(numbers=[1, "a", "b"])

    details: Any = refused.value.details
    assert [detail["field"] for detail in details] == ["numbers.1", "numbers.2"]


# -- the validator


class Tree(BaseModel):
    value: int
    below: list[Tree] = []


class Cat(TypedDict):
    name: str
    lives: int


class Dog(TypedDict):
    name: str
    bones: int


def _cases() -> Iterator[tuple[Any, Any]]:
    yield list[int], ["a", 1, None]
    yield tuple[int, str], ["a", 1]
    yield tuple[int, ...], ["a", 1, "b"]
    yield set[int], ["a", 1, "b"]
    yield dict[int, int], {"a": "b", "1": "c"}
    yield dict[str, list[int]], {"a": ["b", 1], "c": [None]}
    yield Tree, {"value": "a", "below": [{"value": 1}, {"value": "b", "below": [{}]}]}
    yield list[int | list[str]], [1, "a", ["b", 1]]
    yield dict[str, list[Tree | list[Tree]]], {"a": [{"value": "b"}, [{"value": 1}, {}]]}
    yield list[dict[str, int] | dict[str, list[int]] | str], [{"a": "b"}, {"a": ["b"]}, 1]
    yield Cat | Dog, {"name": 1, "lives": "a"}
    yield list[Part | None], [None, {}, {"number": 1, "text": "a", "more": 2}]
    yield Basket, {"orders": 1, "either": [[1, "a"]], "pair": [1]}


@pytest.mark.parametrize(("kind", "value"), [*_cases()])
def test_few_errors_are_those_pydantic_finds(kind: Any, value: Any) -> None:
    adapter = TypeAdapter(kind)
    adapter.rebuild()
    with pytest.raises(ValidationError) as expected:
        adapter.validate_python(value)

    bounded = BoundedValidator(adapter.core_schema)
    with pytest.raises(ValidationError) as first:
        bounded.validate(value)

    assert bounded.errors(value, first.value) == expected.value.errors(include_url=False)


@pytest.mark.parametrize("kind", [list[int], set[int], tuple[int, ...], dict[str, int], list[Part]])
def test_a_flood_costs_less_than_to_look_at_all_of_it(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    value: Any = {f"k{i}": "x" for i in range(50_000)} if kind == dict[str, int] else ["x"] * 50_000
    bounded = BoundedValidator(adapter.core_schema)

    def seconds(find: Any) -> float:
        before = time.process_time()
        assert find()
        return time.process_time() - before

    def all_errors() -> Any:
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            return error.errors(include_url=False)

    def first_errors() -> Any:
        try:
            bounded.validate(value)
        except ValidationError as error:
            return bounded.errors(value, error)

    first_errors()  # builds what finds them
    # A fifth of it on a quiet machine.
    assert min(seconds(first_errors) for _ in range(5)) < min(seconds(all_errors) for _ in range(5)) / 1.5
