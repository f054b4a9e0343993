"""A record that middleware filters out is not there for a write either."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from maniflex import Context, Model, Next, Server, WithDeletedAt, field
from maniflex.testing import client


class Shop(Model):
    tenant: str = field(filterable=True)


class Order(Model, WithDeletedAt, restore=True):
    shop_id: str = field(filterable=True)
    note: str = ""


RED, BLUE = {"x-tenant": "red"}, {"x-tenant": "blue"}


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    server = Server()
    server.register(Shop, Order)

    @server.pipeline.auth.middleware(models=[Order])
    async def of_own_shops(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("shop.tenant", ctx.header("x-tenant"))
        await next()

    async with client(server, database=database_url) as http:
        yield http


async def made(http: httpx.AsyncClient) -> str:
    shop = (await http.post("/api/shops", json={"tenant": "red"})).json()["data"]
    answer = await http.post("/api/orders", json={"shop_id": shop["id"], "note": "old"}, headers=RED)
    assert answer.status_code == 201, answer.text
    return f"/api/orders/{answer.json()['data']['id']}"


async def test_what_is_filtered_out_cannot_be_written(
    http: httpx.AsyncClient,
) -> None:
    path = await made(http)

    assert (await http.patch(path, json={"note": "new"}, headers=BLUE)).status_code == 404
    assert (await http.delete(path, headers=BLUE)).status_code == 404
    assert (await http.get(path, headers=RED)).json()["data"]["note"] == "old"

    assert (await http.patch(path, json={"note": "new"}, headers=RED)).json()["data"]["note"] == "new"
    assert (await http.delete(path, headers=RED)).status_code == 204
    assert (await http.post(f"{path}/restore", headers=BLUE)).status_code == 404
    assert (await http.post(f"{path}/restore", headers=RED)).status_code == 200
