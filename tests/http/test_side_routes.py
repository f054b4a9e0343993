"""HEAD and OPTIONS on the routes beside a model's own: aggregate, export, search and restore."""

from __future__ import annotations

import httpx
import pytest

from maniflex import Context, Model, Next, Operation, Server, WithDeletedAt, field
from maniflex.testing import client
from tests.kit.http import error_of

READ = "GET, HEAD, OPTIONS"
COUNT = '/api/things/aggregate?aggregate={"select":[{"op":"count"}]}'


class Thing(Model, WithDeletedAt, aggregate=True, export=True, restore=True, global_searchable=True):
    name: str = field(filterable=True, searchable=True)


def serving_things() -> Server:
    server = Server()
    server.register(Thing)
    server.enable_global_search()
    return server


def told(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "x-request-id"}


@pytest.mark.parametrize("path", [COUNT, "/api/search?q=lamp"])
async def test_head_is_get_without_its_body(database_url: str, path: str) -> None:
    server = serving_things()
    async with client(server, database=database_url) as http:
        await server.db(Thing).create(name="a lamp")
        got, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert told(head) == told(got)
        wrong = await http.head(path.partition("?")[0])
        assert (wrong.status_code, wrong.content) == (400, b"")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/api/things/aggregate", READ),
        ("/api/things/export", READ),
        ("/api/search", READ),
        ("/api/things/any/restore", "OPTIONS, POST"),
    ],
)
async def test_options_lists_what_can_be_done(database_url: str, path: str, allow: str) -> None:
    async with client(serving_things(), database=database_url) as http:
        answer = await http.options(path)
        assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", allow)
        refused = await http.put(path)
        error_of(refused, 405, "METHOD_NOT_ALLOWED")
        assert refused.headers["allow"] == allow


@pytest.mark.parametrize(
    ("path", "operation"), [(COUNT, Operation.LIST), ("/api/search?q=lamp", Operation.SEARCH)]
)
async def test_a_rule_for_the_route_covers_head(database_url: str, path: str, operation: Operation) -> None:
    async def closed(ctx: Context, next: Next) -> None:
        ctx.abort(403, "FORBIDDEN", "no")

    server = serving_things()
    server.pipeline.auth.register(closed, operations=[operation])
    async with client(server, database=database_url) as http:
        assert [(await http.request(m, path)).status_code for m in ("GET", "HEAD")] == [403, 403]
        assert (await http.options(path.partition("?")[0])).status_code == 204
