"""C24 on the surfaces that came later: files and history of a record that another person owns."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, file
from maniflex.middleware import auth
from maniflex.testing import client
from tests.kit.http import data_of

PDF = b"%PDF-1.7\n" + b"x" * 50
ANN, BOB = {"x-user": "ann"}, {"x-user": "bob"}


class Contract(Model, versioned=True, soft_delete=True, restore=True):
    title: str
    owner_id: str = ""
    scan: str | None = file(default=None)


async def by_header(ctx: Context, next: Next) -> None:
    user = ctx.header("x-user")
    ctx.auth = AuthInfo(user_id=user) if user else None
    await next()


def a_server() -> Server:
    server = Server(storage="memory:")
    server.register(Contract)
    server.pipeline.auth.register(by_header)
    server.pipeline.auth.register(auth.require_owner("owner_id"), models=[Contract])
    return server


async def a_contract(http: httpx.AsyncClient) -> str:
    form: Any = {"data": {"title": "ours"}, "files": {"scan": ("scan.pdf", PDF, "application/pdf")}}
    made = data_of(await http.post("/api/contracts", headers=ANN, **form), 201)
    data_of(await http.patch(f"/api/contracts/{made['id']}", headers=ANN, json={"title": "still ours"}))
    contract_id: str = made["id"]
    return contract_id


SURFACES = [
    ("GET", ""),
    ("HEAD", ""),
    ("GET", "/scan"),
    ("HEAD", "/scan"),
    ("GET", "/history"),
    ("GET", "/history/1"),
    ("PATCH", ""),
    ("DELETE", ""),
    ("POST", "/restore"),
]


@pytest.mark.parametrize(("method", "tail"), SURFACES)
async def test_what_another_person_owns_is_as_absent_as_a_random_id(
    database_url: str, method: str, tail: str
) -> None:
    body = {"title": "mine now"} if method == "PATCH" else None
    async with client(a_server(), database=database_url) as http:
        contract_id = await a_contract(http)
        if tail == "/restore":
            assert (await http.delete(f"/api/contracts/{contract_id}", headers=ANN)).status_code == 204

        async def ask(record_id: str, headers: dict[str, str]) -> httpx.Response:
            return await http.request(method, f"/api/contracts/{record_id}{tail}", headers=headers, json=body)

        foreign, absent = await ask(contract_id, BOB), await ask("01890000-0000-7000-8000-000000000000", BOB)
        assert (foreign.status_code, foreign.content) == (404, absent.content)
        assert (await ask(contract_id, {})).status_code == 401
        own = await ask(contract_id, ANN)
        assert own.status_code in (200, 204), own.text
        if tail == "/scan" and method == "GET":
            assert own.content == PDF
