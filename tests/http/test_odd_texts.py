"""Texts no database can hold, huge texts and digits of other alphabets, wherever a text can stand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from maniflex import Model, Server, field
from maniflex.errors import RequestError
from maniflex.testing import client
from tests.kit.asgi import Call, send

ODD = {
    "NUL": "a\x00b",
    "half a pair": "a\ud800",
    "other half": "\udfffb",
    "huge": "x" * 200_000,
    "full-width digit": "１",
    "Arabic digits": "٣٤",
    "empty": "",
}
UNSTORABLE = ("NUL", "half a pair", "other half")


class Letter(Model, aggregate=True, export=True, cursor_field="created_at", restore=True, soft_delete=True):
    text: str = field(default="", filterable=True, sortable=True, searchable=True)
    number: int = field(default=1, filterable=True)
    code: UUID | None = field(default=None, filterable=True)
    letter_id: str | None = field(default=None, filterable=True)


PLACES: list[str] = [
    "/api/letters/{}",
    "/api/letters/{}/restore",
    "/api/letters/{}?select=text",
    *(
        f"/api/letters?{parameter}"
        for parameter in (
            "page={}",
            "limit={}",
            "cursor={}",
            "sort={}",
            "sort=text:{}",
            "select={}",
            "include={}",
            "q={}",
            "filter={}",
            "filter={}:eq:x",
            "filter=text:{}:x",
            "filter=text:eq:{}",
            "filter=text:in:a,{}",
            "filter=text:contains:{}",
            "filter=number:eq:{}",
            "filter=number:between:{},{}",
            "filter=code:eq:{}",
            "filter=letter.text:eq:{}",
            "filter=text:eq_field:{}",
            "filter[{}]=text:eq:x",
            "{}=x",
        )
    ),
    "/api/letters/aggregate?aggregate={}",
    '/api/letters/aggregate?aggregate={{"select":[{{"op":"count","as":"{}"}}]}}',
    "/api/letters/export?format={}",
]


def percent_encoded(text: str) -> str:
    return quote(text.encode(errors="surrogatepass"))


@pytest.mark.parametrize("odd", ODD)
async def test_every_place_of_a_request_answers_an_odd_text_with_success_or_refusal(
    database_url: str, odd: str
) -> None:
    server = Server()
    server.register(Letter)
    async with client(server, database=database_url) as http:
        await server.db(Letter).create(text="x")
        for place in PLACES:
            for method in (
                ("GET", "PATCH", "DELETE", "POST") if place.startswith("/api/letters/{}") else ("GET",)
            ):
                text = percent_encoded(ODD[odd])
                url = place.format(*[text] * place.count("{}"))
                if len(url) > 60_000:  # httpx refuses to send more
                    url = url[:60_000]
                answer = await http.request(method, url, json=None if method == "GET" else {"text": "y"})
                assert answer.status_code < 500, (method, place, answer.text[:200])
                if odd in UNSTORABLE and "{}=x" not in place:
                    assert answer.status_code >= 400, (method, place)


async def test_digits_of_other_alphabets_are_no_digits(database_url: str) -> None:
    server = Server()
    server.register(Letter)
    wide = "".join(chr(0xFF10 + int(digit)) for digit in "0" * 32)
    async with client(server, database=database_url) as http:
        for query in (
            "page=１",
            "limit=２",
            "filter[１]=text:eq:x",
            "filter[٣]=text:eq:x",
            "filter=number:eq:１",
            "filter=created_at:gt:２０２６-01-01",
            "filter=created_at:gt:2026-01-01T00:00:00 ０１:00",
            f"filter=code:eq:{wide}",
            "filter=code:eq:0_190b3a87c2e7d118f3a0123456789a",
            "filter=code:eq:%2B190b3a87c2e7d118f3a0123456789ab",
        ):
            answer = await http.get(f"/api/letters?{query}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_QUERY"), query
        for code in ("0190b3a8-7c2e-7d11-8f3a-0123456789ab", "0190B3A87C2E7D118F3A0123456789AB"):
            assert (await http.get(f"/api/letters?filter=code:eq:{code}")).status_code == 200


@pytest.mark.parametrize("odd", ODD)
async def test_an_operation_in_process_answers_an_odd_text_too(database_url: str, odd: str) -> None:
    server = Server()
    server.register(Letter)
    text = ODD[odd]
    async with client(server, database=database_url):
        await server.db(Letter).create(text="x")
        for operation in ("read", "head", "update", "delete"):
            if text:
                body = {"text": "y"} if operation == "update" else None
                assert (await server.execute(operation, Letter, text, body=body)).status == 404, operation
        for query in ({"filter": f"text:eq:{text}"}, {"sort": text}, {text: "x"}, f"filter=text:eq:{text}"):
            answer = await server.execute("list", Letter, query=query)
            assert answer.status in (200, 400, 414)
            assert answer.status != 200 or odd not in UNSTORABLE
        for sent in ({"text": text}, {text: "x"}):
            status = (await server.execute("create", Letter, body=sent)).status
            assert status in ((400,) if odd in UNSTORABLE else (201, 422)), sent
        assert (await server.execute("list", Letter, headers={"x-odd": text})).status == 200


@pytest.mark.parametrize("odd", ODD)
async def test_code_that_asks_with_an_odd_text_gets_an_answer_or_a_refusal(
    database_url: str, odd: str
) -> None:
    server = Server()
    server.register(Letter)
    text = ODD[odd]
    async with client(server, database=database_url):
        letters = server.db(Letter)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: letters.read(text),
            lambda: letters.update(text, text="x"),
            lambda: letters.delete(text),
            lambda: letters.create(text=text),
            lambda: letters.create(letter_id=text),
            lambda: letters.list({"text": text}),
            lambda: letters.list([("text", "contains", text)]),
            lambda: letters.list([("number", "in", [text])]),
            lambda: letters.exists({"id": text}),
            lambda: server.raw_query("SELECT id FROM letters WHERE text = ?", text),
            lambda: server.raw_exec("DELETE FROM letters WHERE text = ?", text),
        ]
        for number, call in enumerate(calls):
            status = 200
            try:
                await call()
            except RequestError as error:
                status = error.status
            assert status < 500, number


async def test_a_path_that_is_no_unicode_is_not_found(database_url: str) -> None:
    server = Server()
    server.register(Letter)
    async with client(server, database=database_url):
        answer = await send(server, Call("GET", b"/"), path="/api/letters/a\ud800")
    assert answer.status == 404
