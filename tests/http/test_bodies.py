"""Bodies that cannot be used: always a 4xx with a code, never a row."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from maniflex import Model, Server
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving, total


class Memo(Model):
    title: str
    count: int = 0
    ratio: float = 0.0
    extra: dict[str, object] = {}  # noqa: RUF012 - a declaration, copied for every record


MALFORMED = [
    b"{",
    b"}",
    b"nothing",
    b'{"title": "a",}',
    b"{'title': 'a'}",
    b'{"title": "a"} trailing',
    b'{"title": "a"}{"title": "b"}',
    b"\xef\xbb\xbf" + b'{"title": "a"}',
    b'{"title": "\xff"}',
    b'{"title": "a\x00b"}',
    b'{"title": "a\nb"}',
    b'{"title": "a", "count": 01}',
    b'{"title": "a", "ratio": NaN}',
    b'{"title": "a", "ratio": Infinity}',
    b'{"title": "a", "ratio": -Infinity}',
    b'{"title": "a", "ratio": 1e999}',
    b'{"title": "\\ud800"}',
    b'{"title": "\\udc00\\ud800"}',
    b'{"\\ud800": 1, "title": "a"}',
    b'{"title": "\\u0000"}',
    b'{"title": "a", "extra": {"x": ["\\u0000"]}}',
    b'{"title": "a", "extra": {"\\u0000": 1}}',
    b'{"title": "a", "title": "b"}',
    b'{"title": "a", "t\\u0069tle": "b"}',
    b'{"title": "a", "extra": {"x": 1, "x": 2}}',
    b'{"title": "a", "extra": {"x": [{"y": 1, "y": 1}]}}',
    b"[" * 200_000,
    b'{"title": "a", "extra": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
    b"[]",
    b'[{"title": "a"}]',
    b'"title"',
    b"1",
    b"true",
    b"null",
]


async def test_text_that_is_no_json_object_is_refused(database_url: str) -> None:
    async with serving(database_url, Memo) as http:
        record = await created(http, "/api/memos", title="kept")
        for body in MALFORMED:
            error_of(await http.post("/api/memos", content=body), 400, "INVALID_JSON")
            error_of(await http.patch(f"/api/memos/{record['id']}", content=body), 400, "INVALID_JSON")
        assert data_of(await http.get("/api/memos")) == [record]


async def test_a_write_without_a_body_says_so(database_url: str) -> None:
    async with serving(database_url, Memo) as http:
        record = await created(http, "/api/memos", title="kept")
        error_of(await http.post("/api/memos"), 400, "EMPTY_BODY")
        error_of(await http.patch(f"/api/memos/{record['id']}"), 400, "EMPTY_BODY")


async def test_text_that_only_looks_dangerous_is_taken_as_it_is(database_url: str) -> None:
    title = 'a:b, {"x": 1, "x": 2} \\u0000 NaN \U0001f600 \u2028'
    async with serving(database_url, Memo) as http:
        assert (await created(http, "/api/memos", title=title))["title"] == title


@pytest.mark.parametrize("digits", [19, 20, 100, 400, 4000])
async def test_an_integer_beyond_64_bits_is_a_4xx_and_stores_nothing(database_url: str, digits: int) -> None:
    async with serving(database_url, Memo) as http:
        for sign in (b"", b"-"):
            body = b'{"title": "a", "count": %b%b}' % (sign, b"9" * digits)
            response = await http.post("/api/memos", content=body)
            assert response.status_code in (400, 422)
            assert response.json()["error"]["code"] in ("INVALID_JSON", "VALIDATION_FAILED")
            body = b'{"title": "a", "ratio": %b%b}' % (sign, b"9" * digits)
            response = await http.post("/api/memos", content=body)
            assert response.status_code in (201, 400, 422)
            if response.status_code == 201:
                assert data_of(response, 201)["ratio"] == float(sign + b"9" * digits)


LIMIT = 1000


def sized(size: int) -> bytes:
    frame = len(b'{"title": ""}')
    return b'{"title": "%b"}' % (b"x" * (size - frame))


async def in_chunks(body: bytes, size: int = 100) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


Send = Callable[[httpx.AsyncClient, str, bytes], httpx.Request]


def with_length(http: httpx.AsyncClient, method: str, body: bytes) -> httpx.Request:
    return http.build_request(method, "/api/memos", content=body)


def chunked(http: httpx.AsyncClient, method: str, body: bytes) -> httpx.Request:
    request = http.build_request(method, "/api/memos", content=in_chunks(body))
    assert "content-length" not in request.headers
    return request


def understated(http: httpx.AsyncClient, method: str, body: bytes) -> httpx.Request:
    return http.build_request(method, "/api/memos", content=body, headers={"content-length": "10"})


@pytest.mark.parametrize("build", [with_length, chunked, understated])
async def test_a_body_over_the_limit_is_413_and_creates_nothing(database_url: str, build: Send) -> None:
    async with serving(database_url, Memo, max_body_size=LIMIT) as http:
        refused = await http.send(build(http, "POST", sized(LIMIT + 1)))
        error_of(refused, 413, "BODY_READ_ERROR")
        assert await total(http, "/api/memos") == 0
        data_of(await http.send(build(http, "POST", sized(LIMIT))), 201)


async def test_the_limit_is_four_megabytes_unless_told(sqlite_url: str) -> None:
    async with serving(sqlite_url, Memo) as http:
        data_of(await http.post("/api/memos", content=sized(4 * 1024 * 1024)), 201)
        error_of(await http.post("/api/memos", content=sized(4 * 1024 * 1024 + 1)), 413, "BODY_READ_ERROR")


async def test_the_limit_binds_actions_too(sqlite_url: str) -> None:
    server = Server(max_body_size=LIMIT)

    @server.action("POST", "/echo", request=dict)
    async def echo(ctx: object) -> dict[str, bool]:
        return {"ok": True}

    async with client(server, database=sqlite_url) as http:
        error_of(await http.post("/api/echo", content=sized(LIMIT + 1)), 413, "BODY_READ_ERROR")
        assert data_of(await http.post("/api/echo", content=sized(LIMIT))) == {"ok": True}


@pytest.mark.parametrize("length", ["-1", "1.5", "abc", "9" * 30])
async def test_a_content_length_that_makes_no_sense_is_refused(sqlite_url: str, length: str) -> None:
    async with serving(sqlite_url, Memo) as http:
        response = await http.post("/api/memos", content=b"{}", headers={"content-length": length})
        assert response.status_code in (400, 413)
        assert response.json()["error"]["code"] == "BODY_READ_ERROR"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense"]
)
async def test_another_content_type_is_415(database_url: str, kind: str) -> None:
    async with serving(database_url, Memo) as http:
        sent = await http.post("/api/memos", content=b'{"title": "a"}', headers={"content-type": kind})
        error_of(sent, 415, "UNSUPPORTED_MEDIA_TYPE")
        assert await total(http, "/api/memos") == 0


@pytest.mark.parametrize(
    "kind",
    ["application/json", "APPLICATION/JSON; charset=utf-8", "application/merge-patch+json", ""],
)
async def test_every_spelling_of_json_is_read(sqlite_url: str, kind: str) -> None:
    async with serving(sqlite_url, Memo) as http:
        sent = await http.post("/api/memos", content=b'{"title": "a"}', headers={"content-type": kind})
        assert data_of(sent, 201)["title"] == "a"


async def test_a_compressed_body_is_415_rather_than_guessed(sqlite_url: str) -> None:
    async with serving(sqlite_url, Memo) as http:
        body = gzip.compress(b'{"title": "a"}')
        sent = await http.post("/api/memos", content=body, headers={"content-encoding": "gzip"})
        error_of(sent, 415, "UNSUPPORTED_MEDIA_TYPE")
        plain = {"content-encoding": "identity"}
        data_of(await http.post("/api/memos", content=b'{"title": "a"}', headers=plain), 201)


async def test_a_body_on_a_read_or_delete_is_left_alone(sqlite_url: str) -> None:
    async with serving(sqlite_url, Memo) as http:
        record = await created(http, "/api/memos", title="a")
        one = f"/api/memos/{record['id']}"
        assert data_of(await http.request("GET", one, content=b"{broken")) == record
        assert (await http.request("DELETE", one, content=b"{broken")).status_code == 204
