"""ETags and If-Match: of two writers who read the same version, one wins."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from maniflex import Model, Server, WithDeletedAt, field
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, serving, total


class Invoice(Model, optimistic_lock=True):
    amount: int
    note: str | None = None
    secret: str = field(default="", writeonly=True)


class Draft(Model, WithDeletedAt, optimistic_lock=True):
    text: str


async def new(http: httpx.AsyncClient) -> tuple[str, str]:
    response = await http.post("/api/invoices", json={"amount": 1})
    return f"/api/invoices/{data_of(response, 201)['id']}", response.headers["etag"]


async def test_create_read_and_update_carry_the_tag_of_the_stored_version(database_url: str) -> None:
    async with serving(database_url, Invoice) as http:
        path, tag = await new(http)
        assert tag.startswith('"')
        assert tag.endswith('"')
        assert (await http.get(path)).headers["etag"] == tag
        assert (await http.head(path)).headers["etag"] == tag
        changed = await http.patch(path, json={"amount": 2})
        assert changed.headers["etag"] != tag
        assert (await http.get(path)).headers["etag"] == changed.headers["etag"]
        back = await http.patch(path, json={"amount": 1})
        assert back.headers["etag"] not in (tag, changed.headers["etag"])
        assert (await http.patch(path, json={})).headers["etag"] == back.headers["etag"]


async def test_a_secret_written_changes_the_tag_as_well(database_url: str) -> None:
    async with serving(database_url, Invoice) as http:
        path, tag = await new(http)
        assert (await http.patch(path, json={"secret": "x"})).headers["etag"] != tag


async def test_computed_fields_leave_the_tag_alone(database_url: str) -> None:
    plain, rich = Server(), Server()
    calls = iter(range(100))
    for server in (plain, rich):
        server.register(Invoice)
    rich.computed(Invoice, "number")(lambda invoice: next(calls))
    async with client(plain, database=database_url) as http:
        path, tag = await new(http)
    async with client(rich, database=database_url) as http:
        first, second = await http.get(path), await http.get(path)
        assert data_of(first)["number"] != data_of(second)["number"]
        assert first.headers["etag"] == second.headers["etag"] == tag
        changed = await http.patch(path, json={"amount": 2}, headers={"If-Match": tag})
        assert data_of(changed)["amount"] == 2


async def test_other_models_have_no_tags_and_ignore_if_match(sqlite_url: str) -> None:
    class Plain(Model):
        text: str

    async with serving(sqlite_url, Plain) as http:
        response = await http.post("/api/plains", json={"text": "a"})
        assert "etag" not in response.headers
        path = f"/api/plains/{data_of(response, 201)['id']}"
        changed = await http.patch(path, json={"text": "b"}, headers={"If-Match": '"x"'})
        assert data_of(changed)["text"] == "b"


MATCHING = ["{tag}", '"other", {tag}', '{tag},"other"', "*", " {tag} ", " * "]
NOT_MATCHING = ['"other"', "W/{tag}", "other", '"a", "b"', "", '""', '"*"']


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_write_happens_only_if_the_tag_is_current(database_url: str, method: str) -> None:
    async with serving(database_url, Invoice) as http:
        for header in MATCHING:
            path, tag = await new(http)
            sent = await http.request(
                method, path, json={"amount": 5}, headers={"If-Match": header.format(tag=tag)}
            )
            assert sent.status_code == (200 if method == "PATCH" else 204), header
        for header in NOT_MATCHING:
            path, tag = await new(http)
            sent = await http.request(
                method, path, json={"amount": 5}, headers={"If-Match": header.format(tag=tag)}
            )
            error_of(sent, 412, "PRECONDITION_FAILED")
            assert data_of(await http.get(path))["amount"] == 1


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_stale_tag_is_412_and_changes_nothing(database_url: str, method: str) -> None:
    async with serving(database_url, Invoice) as http:
        path, tag = await new(http)
        await http.patch(path, json={"amount": 2})
        sent = await http.request(method, path, json={"amount": 3}, headers={"If-Match": tag})
        error_of(sent, 412, "PRECONDITION_FAILED")
        assert data_of(await http.get(path))["amount"] == 2


@pytest.mark.parametrize("header", ["*", '"any"'])
async def test_a_record_that_is_not_there_is_404_whatever_the_tag(database_url: str, header: str) -> None:
    async with serving(database_url, Invoice, Draft) as http:
        draft = await created(http, "/api/drafts", text="a")
        await http.delete(f"/api/drafts/{draft['id']}")
        for path in ("/api/invoices/none", f"/api/drafts/{draft['id']}"):
            for method in ("PATCH", "DELETE"):
                sent = await http.request(
                    method, path, json={"amount": 3, "text": "b"}, headers={"If-Match": header}
                )
                error_of(sent, 404, "NOT_FOUND")


async def test_a_current_tag_deletes_softly_too(database_url: str) -> None:
    async with serving(database_url, Draft) as http:
        response = await http.post("/api/drafts", json={"text": "a"})
        path = f"/api/drafts/{data_of(response, 201)['id']}"
        tag = {"If-Match": response.headers["etag"]}
        assert (await http.delete(path, headers=tag)).status_code == 204
        assert await total(http, "/api/drafts") == 0


async def test_without_if_match_there_is_no_check(sqlite_url: str) -> None:
    async with serving(sqlite_url, Invoice) as http:
        path, _ = await new(http)
        assert data_of(await http.patch(path, json={"amount": 2}))["amount"] == 2
        assert data_of(await http.patch(path, json={"amount": 3}))["amount"] == 3


async def test_of_many_writers_with_one_tag_exactly_one_wins(database_url: str) -> None:
    async with serving(database_url, Invoice) as http:
        for _ in range(5):
            path, tag = await new(http)
            match = {"If-Match": tag}
            writers = [http.patch(path, json={"amount": n}, headers=match) for n in range(10, 14)]
            answers = await asyncio.gather(*writers, http.delete(path, headers=match))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses[0] in (200, 204)
            # Whoever comes after a delete finds nothing; after an update, another version.
            assert set(statuses[1:]) == ({404} if statuses[0] == 204 else {412})
