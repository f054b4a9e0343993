"""A middleware that neither answers nor goes on is a failure on every surface, never an empty success."""

from __future__ import annotations

import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.testing import client


class Sale(Model, export=True, aggregate=True):
    total: int = field(filterable=True)


@pytest.mark.parametrize(
    "path",
    [
        "/api/sales",
        "/api/sales/export?format=csv",
        '/api/sales/aggregate?aggregate={"select":[{"op":"count"}]}',
    ],
)
async def test_a_request_that_nothing_came_of_is_500(path: str, database_url: str) -> None:
    server = Server()
    server.register(Sale)

    @server.pipeline.auth.middleware()
    async def forgets_to_go_on(ctx: Context, next: Next) -> None:
        """Neither answers nor calls next()."""

    async with client(server, database=database_url) as http:
        answer = await http.get(path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "PANIC")
