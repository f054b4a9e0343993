"""A hidden or write-only field gives the same answer as one that does not exist, on every surface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import DeclarationError, LocaleString, Model, Server, field, has_many
from maniflex.encryption import MemoryKeyProvider
from maniflex.query.operators import ALIASES, OPERATORS
from maniflex.testing import client
from tests.kit.http import data_of, error_of

any_field: Any = field  # options come from a dictionary there
SECRET = "the value nobody may see"
DIGESTS = ("pin_hmac", "pin$hmac", "mail_hmac", "mail$hmac")
NAMES = ("nothing", "pincode", "passwd", "friend_id", "hush", "mute", *DIGESTS)
# Texts in several languages have further names, which are as unknown.
ALL_NAMES = (NAMES, ("nothing.de", "hush.de", "mute.de"), ("nothing_i18n", "hush_i18n", "mute_i18n"))
VALUES = ("", "x", SECRET, "null", "true", "1", "2026-01-01", "a,b", '"', "name", "pincode")


class Account(Model, aggregate=True, export=True, cursor_field="name"):
    name: str = field(filterable=True, sortable=True, searchable=True)
    open: int = field(default=1, filterable=True, sortable=True)
    pincode: str = field(default=SECRET, hidden=True)
    passwd: str = field(default=SECRET, writeonly=True)
    hush: LocaleString = field(default_factory=lambda: LocaleString(de=SECRET), hidden=True)
    mute: LocaleString = field(default_factory=lambda: LocaleString(de=SECRET), writeonly=True)
    friend_id: str | None = field(default=None, hidden=True, relation="Account")
    account_id: str | None = field(default=None, filterable=True)
    pin: str | None = field(default=None, encrypted=True, unique=True)
    mail: str = field(default=SECRET, encrypted=True, blind_index=True)
    friends: list[Account] = has_many(key="friend_id")
    accounts: list[Account] = has_many(key="account_id")


def unnamed(answer: httpx.Response, name: str) -> str:
    """An answer without the name that was asked for, of which includes name the first part."""
    return answer.text.replace(name, "…").replace(f"'{name.partition('.')[0]}'", "'…'")


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    server = Server()
    server.register(Account)
    server.set_key_provider(MemoryKeyProvider())
    async with client(server, database=database_url) as http:
        ids: list[str] = []
        for number in range(3):
            parent = ids[0] if ids else None
            record = await server.db(Account).create(
                name=f"n{number}", pincode=f"{SECRET} {number}", account_id=parent, friend_id=parent
            )
            ids.append(record.id)
        yield http


def questions() -> Iterator[str]:
    """Every place of the grammar a field can be named at; {} stands for it."""
    for op in (*OPERATORS, *ALIASES, "nope", ""):
        for value in VALUES:
            for parameter in ("filter", "filter[0]"):
                yield f"{parameter}={{}}:{op}:{quote(value)}"
        yield f"filter={{}}:{op}"
        if op.endswith("_field"):
            yield f"filter=name:{op}:{{}}"
        yield f"filter=account.{{}}:{op}:x"
        yield f"filter=accounts.{{}}:{op}:x"
        yield f"filter=account.accounts.{{}}:{op}:x"
    yield from (
        "filter={}",
        "filter={}:",
        "filter={}.name:eq:x",
        "filter={}.{}:eq:x",
        "filter=account.{}.name:eq:x",
    )
    for direction in ("", ":asc", ":desc", ":up"):
        for path in ("{}", "account.{}", "account.account.{}", "name,{}", "{}.name"):
            yield f"sort={path}{direction}"
            yield f"cursor=&sort={path}{direction}"
    yield from ("select={}", "select=name,{}", "include={}", "include=account.{}", "include={}.account")
    yield from ("select={}&include=account", "cursor={}")


@pytest.mark.parametrize("names", ALL_NAMES)
async def test_every_question_about_a_secret_is_answered_like_one_about_nothing(
    http: httpx.AsyncClient, names: tuple[str, ...]
) -> None:
    asked = 0
    for question in questions():
        answers = set()
        for name in names:
            answer = await http.get("/api/accounts?" + question.format(name, name))
            # What stands where the field stood is the only difference there may be.
            answers.add((answer.status_code, unnamed(answer, name)))
            assert SECRET not in answer.text
            asked += 1
        assert len(answers) == 1, f"{question}: {answers}"
        assert {status for status, _ in answers} == {400}, question
    assert asked > 1_000


async def test_an_encrypted_field_is_matched_sorted_and_grouped_like_nothing(http: httpx.AsyncClient) -> None:
    """One without a blind index; that it is shown is the only difference."""
    for question in questions():
        if question.startswith(("select", "include=account.", "include={}", "cursor={}")):
            continue
        answers = set()
        for name in ("any", "pin"):
            answer = await http.get("/api/accounts?" + question.format(name, name))
            answers.add((answer.status_code, unnamed(answer, name)))
        assert len(answers) == 1, f"{question}: {answers}"
        assert {status for status, _ in answers} == {400}, question


async def test_a_blind_index_answers_equality_alone(http: httpx.AsyncClient) -> None:
    equal = ("eq", "neq", "in", "not_in", "is_null", "not_null")
    for op in (*OPERATORS, "gt_field", "eq_field"):
        for place in ("mail", "account.mail"):
            value = "" if op.endswith("_null") else f":{quote(SECRET)}"
            answer = await http.get(f"/api/accounts?filter={place}:{op}{value}")
            assert answer.status_code == (200 if op in equal else 400), (place, op, answer.text)
    for question in ("sort=mail", "sort=account.mail", "cursor=&sort=mail", f"q={quote(SECRET)}"):
        answer = await http.get(f"/api/accounts?{question}")
        assert answer.status_code == 400 or data_of(answer) == [], question


async def test_a_relation_over_a_secret_key_is_answered_like_nothing(http: httpx.AsyncClient) -> None:
    for question in (
        "include={}",
        "include=account.{}",
        "include={}.account",
        "filter={}.name:eq:n0",
        "sort={}.name",
        "filter=account.{}.open:gt:0",
    ):
        answers = set()
        for name in ("friend", "friends", "nothing"):
            answer = await http.get("/api/accounts?" + question.format(name))
            answers.add((answer.status_code, unnamed(answer, name)))
        assert len(answers) == 1, f"{question}: {answers}"
        assert {status for status, _ in answers} == {400}


async def test_no_answer_carries_a_secret(http: httpx.AsyncClient) -> None:
    [first, *_] = data_of(await http.get("/api/accounts"))
    posted = {"name": "x", "passwd": SECRET, "pincode": SECRET, "friend_id": SECRET}
    answers = [
        await http.get("/api/accounts?include=account,accounts.account&sort=name"),
        await http.get("/api/accounts?cursor=&limit=1"),
        await http.get(f"/api/accounts/{first['id']}?include=accounts"),
        await http.get("/api/accounts?q=n0"),
        await http.get("/api/accounts/export?format=csv"),
        await http.post("/api/accounts", json=posted),
        await http.patch(
            f"/api/accounts/{first['id']}", json={"passwd": SECRET, "pincode": SECRET, "open": "x"}
        ),
        await http.patch(f"/api/accounts/{first['id']}", json={"passwd": SECRET, "open": 3}),
        await http.post("/api/accounts", json={"passwd": 5}),
    ]
    for answer in answers:
        assert answer.status_code < 500
        assert SECRET not in answer.text.replace(f'"mail":"{SECRET}"', "")
        assert "pincode" not in answer.text
        assert "hmac" not in answer.text
    assert data_of(await http.get("/api/accounts?q=nobody")) == []
    assert data_of(await http.get(f"/api/accounts?q={quote(SECRET)}")) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"select": [{"op": "count", "as": "n"}], "group_by": ["{}"]},
        {"select": [{"op": "max", "field": "{}", "as": "n"}]},
        {"select": [{"op": "min", "field": "account.{}", "as": "n"}]},
        {"select": [{"op": "count_distinct", "field": "{}", "as": "n"}]},
        {"select": [{"op": "count", "as": "n"}], "where": [{"field": "{}", "op": "eq", "value": "x"}]},
        {"select": [{"op": "count", "as": "n"}], "group_by": ["account.{}"]},
        {"select": [{"op": "count", "as": "n"}], "order_by": [{"field": "{}"}]},
        {"select": [{"op": "count", "as": "n"}], "having": [{"field": "{}", "op": "gt", "value": 1}]},
    ],
)
@pytest.mark.parametrize("names", ALL_NAMES)
async def test_no_aggregate_groups_counts_or_compares_a_secret(
    http: httpx.AsyncClient, spec: object, names: tuple[str, ...]
) -> None:
    answers = set()
    for name in names:
        text = quote(json.dumps(spec).replace("{}", name))
        answer = await http.get(f"/api/accounts/aggregate?aggregate={text}")
        answers.add((answer.status_code, unnamed(answer, name)))
    assert len(answers) == 1, answers
    assert {status for status, _ in answers} == {400}


@pytest.mark.parametrize("names", ALL_NAMES)
async def test_an_export_does_not_know_a_secret_either(
    http: httpx.AsyncClient, names: tuple[str, ...]
) -> None:
    for question in ("select={}", "sort={}", "filter={}:eq:x", "include={}"):
        answers = set()
        for name in names:
            answer = await http.get("/api/accounts/export?format=csv&" + question.format(name))
            answers.add((answer.status_code, unnamed(answer, name)))
        assert len(answers) == 1, answers
        error_of(answer, 400, "INVALID_QUERY")


@pytest.mark.parametrize("option", ["filterable", "sortable", "searchable"])
@pytest.mark.parametrize("secret", ["hidden", "writeonly", "encrypted"])
def test_a_secret_cannot_be_declared_open(option: str, secret: str) -> None:
    class Wrong(Model):
        text: str = any_field(default="x", **{option: True, secret: True})

    server = Server(database=":memory:")
    server.register(Wrong)
    with pytest.raises(DeclarationError, match=option):
        server.seal()


@pytest.mark.parametrize("secret", ["hidden", "writeonly", "encrypted"])
def test_a_secret_cannot_be_the_cursor_field(secret: str) -> None:
    class Wrong(Model, cursor_field="text"):
        text: str = any_field(default="x", **{secret: True})

    server = Server(database=":memory:")
    server.register(Wrong)
    with pytest.raises(DeclarationError, match="sortable"):
        server.seal()
