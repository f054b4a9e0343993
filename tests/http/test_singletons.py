"""Models with one row and no id."""

from __future__ import annotations

import asyncio

import pytest

import maniflex
from maniflex import DeclarationError, Model, Server, field
from maniflex.testing import client
from tests.kit.http import data_of, error_of, offenders, serving


class Settings(Model, singleton=True, optimistic_lock=True, table="settings"):
    title: str = field(default="untitled", max_length=10)
    dark: bool = False
    motto: str | None = None


async def test_the_row_is_made_from_its_defaults_on_first_use(database_url: str) -> None:
    server = Server()
    server.register(Settings)
    async with client(server, database=database_url) as http:
        assert await server.db(Settings).count() == 0
        found = data_of(await http.get("/api/settings"))
        assert (found["id"], found["title"], found["dark"], found["motto"]) == (
            "singleton",
            "untitled",
            False,
            None,
        )
        assert data_of(await http.get("/api/settings")) == found
        assert await server.db(Settings).count() == 1


async def test_it_can_be_changed_before_it_was_ever_read(database_url: str) -> None:
    async with serving(database_url, Settings) as http:
        changed = data_of(await http.patch("/api/settings", json={"dark": True, "id": "other"}))
        assert (changed["id"], changed["dark"], changed["title"]) == ("singleton", True, "untitled")
        assert data_of(await http.get("/api/settings")) == changed


async def test_code_finds_it_by_the_id_that_the_package_names(sqlite_url: str) -> None:
    server = Server()
    server.register(Settings)
    async with client(server, database=sqlite_url) as http:
        found = data_of(await http.get("/api/settings"))
        assert found["id"] == maniflex.SINGLETON_ID
        assert (await server.db(Settings).read(maniflex.SINGLETON_ID)).title == "untitled"


async def test_its_rules_hold(database_url: str) -> None:
    async with serving(database_url, Settings) as http:
        assert offenders(await http.patch("/api/settings", json={"title": "x" * 11, "dark": None})) == {
            "title": "max_length",
            "dark": "not_null",
        }


async def test_many_first_requests_at_once_make_one_row(database_url: str) -> None:
    server = Server()
    server.register(Settings)
    async with client(server, database=database_url) as http:
        reads = [http.get("/api/settings") for _ in range(15)]
        writes = [http.patch("/api/settings", json={"motto": str(n)}) for n in range(15)]
        answers = await asyncio.gather(*reads, *writes)
        assert [answer.status_code for answer in answers] == [200] * 30
        assert len({answer.json()["data"]["created_at"] for answer in answers}) == 1
        assert await server.db(Settings).count() == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_there_is_nothing_to_create_or_delete(sqlite_url: str, method: str) -> None:
    async with serving(sqlite_url, Settings) as http:
        refused = await http.request(method, "/api/settings", json={})
        error_of(refused, 405, "METHOD_NOT_ALLOWED")
        assert refused.headers["allow"] == "GET, HEAD, OPTIONS, PATCH"
        error_of(await http.request(method, "/api/settings/singleton", json={}), 404, "NOT_FOUND")
        error_of(await http.get("/api/settings/singleton"), 404, "NOT_FOUND")


async def test_head_options_and_etags_work_as_on_any_record(database_url: str) -> None:
    async with serving(database_url, Settings) as http:
        head = await http.head("/api/settings")
        assert (head.status_code, head.content) == (200, b"")
        allow = (await http.options("/api/settings")).headers["allow"]
        assert allow == "GET, HEAD, OPTIONS, PATCH"
        seen = {"If-Match": head.headers["etag"]}
        assert (await http.patch("/api/settings", json={"dark": True}, headers=seen)).status_code == 200
        stale = await http.patch("/api/settings", json={"dark": False}, headers=seen)
        error_of(stale, 412, "PRECONDITION_FAILED")


def test_a_required_field_stops_the_start_because_no_default_could_fill_it() -> None:
    class Profile(Model, singleton=True):
        name: str

    server = Server()
    server.register(Profile)
    with pytest.raises(DeclarationError, match="name"):
        server.seal()
