"""Every surface on which a redacted field could show (R14, K10, C55), on both databases."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import httpx
import pytest

from maniflex import Context, Next, Operation
from maniflex.middleware import response
from maniflex.testing import client, websocket
from tests.catalogue.redaction.app import PHONE, STAFF, Person, a_server
from tests.kit.http import created, data_of

READS = {
    "read": "/api/people/{id}",
    "selected read": "/api/people/{id}?select=id,name",
    "read with include": "/api/people/{id}?include=team",
    "list": "/api/people",
    "list in German": "/api/people?locale=de",
    "narrowed list": "/api/people?filter=name:eq:ada&sort=name&limit=5",
    "searched list": "/api/people?q=ada",
    "include": "/api/teams?include=people",
    "include of one": "/api/teams/{team}?include=people",
    "deep include": "/api/people?include=team.people",
    "include through a junction": "/api/clubs?include=people",
    "csv": "/api/people/export",
    "global search": "/api/search?q=ada",
    "tree": "/api/tree/{id}",
}


NOT_IN_BATCHES = ("csv", "global search", "tree", "list in German")


async def _fill(http: httpx.AsyncClient) -> dict[str, str]:
    team = await created(http, "/api/teams", name="red")
    club = await created(http, "/api/clubs", name="chess")
    hint = {"de": f"Telefon {PHONE}", "en": ""}
    person = await created(http, "/api/people", name="ada", phoneNumber=PHONE, hint=hint, team_id=team["id"])
    await created(http, "/api/memberships", club_id=club["id"], person_id=person["id"])
    return {"id": person["id"], "team": team["id"]}


@pytest.mark.parametrize("when", ["plain", "async"])
async def test_no_read_shows_it_to_a_stranger_and_all_show_it_to_staff(database_url: str, when: str) -> None:
    async def later(ctx: Any) -> bool:
        return not ctx.has_role("staff")

    server = a_server(later) if when == "async" else a_server()
    async with client(server, database=database_url) as http:
        ids = await _fill(http)
        for name, path in READS.items():
            stranger = await http.get(path.format(**ids))
            staff = await http.get(path.format(**ids), headers=STAFF)
            assert (stranger.status_code, staff.status_code) == (200, 200), (name, stranger.text)
            assert "ada" in stranger.text, name
            assert PHONE not in stranger.text, name
            assert "phoneNumber" not in stranger.text, name
            assert "hint" not in stranger.text, name
            if name not in ("selected read", "global search"):
                assert PHONE in staff.text, name
            if name not in ("csv", "tree"):  # a stream has no length, an action no HEAD
                stranger_head = await http.head(path.format(**ids))
                assert stranger_head.headers["content-length"] == str(len(stranger.content)), name


async def test_no_write_answers_with_it(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        made = await created(http, "/api/people", name="ada", phoneNumber=PHONE)
        path = f"/api/people/{made['id']}"
        changed = data_of(await http.patch(path, json={"phoneNumber": "5550200"}))
        assert (await http.delete(path)).status_code == 204
        restored = data_of(await http.post(f"{path}/restore"))
        seen = data_of(await http.get(path, headers=STAFF))

    assert all("phoneNumber" not in answer for answer in (made, changed, restored))
    assert [answer["name"] for answer in (made, changed, restored)] == ["ada"] * 3
    assert seen["phoneNumber"] == "5550200"  # hidden from its writer, and stored


async def test_no_operation_of_a_batch_answers_with_it(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        ids = await _fill(http)
        reads = [path.removeprefix("/api") for name, path in READS.items() if name not in NOT_IN_BATCHES]
        operations: list[dict[str, Any]] = [{"method": "GET", "path": path.format(**ids)} for path in reads]
        person = {"name": "ada", "phoneNumber": PHONE}
        operations.append({"method": "POST", "path": "/people", "body": person})
        body = {"operations": operations}
        for atomic in (True, False):
            stranger = await http.post("/api/batch", json={**body, "atomic": atomic})
            staff = await http.post("/api/batch", json={**body, "atomic": atomic}, headers=STAFF)
            assert (stranger.status_code, staff.status_code) == ((200, 200) if atomic else (207, 207))
            assert "ada" in stranger.text
            assert PHONE not in stranger.text
            assert "phoneNumber" not in stranger.text
            assert PHONE in staff.text


async def test_a_batch_that_is_answered_again_hides_what_is_hidden_since(database_url: str) -> None:
    hidden = [False]
    async with client(a_server(lambda ctx: hidden[0]), database=database_url) as http:
        ids = await _fill(http)
        body = {"operations": [{"method": "GET", "path": f"/teams/{ids['team']}?include=people"}]}
        key = {"idempotency-key": "k"}
        assert PHONE in (await http.post("/api/batch", json=body, headers=key)).text
        hidden[0] = True
        again = await http.post("/api/batch", json=body, headers=key)
        assert again.headers["idempotent-replayed"] == "true"
        assert "ada" in again.text
        assert PHONE not in again.text, again.text


async def test_nested_records_are_answered_without_it(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        body = {"name": "red", "people": [{"name": "ada", "phoneNumber": PHONE}]}
        made = await http.post("/api/teams", json=body)
        team = data_of(made, 201)
        change = {"people": {"update": [{"id": team["people"][0]["id"], "phoneNumber": "5550200"}]}}
        changed = await http.patch(f"/api/teams/{team['id']}", json=change)
        seen = data_of(await http.get(f"/api/teams/{team['id']}?include=people", headers=STAFF))
    for answer in (made, changed):
        assert "ada" in answer.text
        assert "phoneNumber" not in answer.text
    assert seen["people"][0]["phoneNumber"] == "5550200"


async def test_exports_have_neither_the_column_nor_its_header(database_url: str) -> None:
    def cells(answer: httpx.Response) -> str:
        with zipfile.ZipFile(io.BytesIO(answer.content)) as book:
            return " ".join(book.read(name).decode() for name in book.namelist() if "xml" in name)

    async with client(a_server(), database=database_url) as http:
        await _fill(http)
        for path in ("/api/people/export?format=xlsx", "/api/people/export?format=xlsx&sort=name"):
            stranger = cells(await http.get(path))
            staff = cells(await http.get(path, headers=STAFF))
            assert "ada" in stranger
            assert "phoneNumber" not in stranger
            assert PHONE not in stranger
            assert "phoneNumber" in staff
            assert PHONE in staff


async def test_several_rules_hide_it_if_one_does(database_url: str) -> None:
    """R16."""
    server = a_server(lambda ctx: False)
    server.pipeline.response.register(
        response.redact_field("phoneNumber", lambda ctx: ctx.header("x-other") is not None), models=[Person]
    )
    async with client(server, database=database_url) as http:
        ids = await _fill(http)
        path = f"/api/people/{ids['id']}"
        seen, hidden = await http.get(path), await http.get(path, headers={"X-Other": "1"})

    assert "phoneNumber" in seen.json()["data"]
    assert "phoneNumber" not in hidden.json()["data"]


async def test_tags_are_of_what_the_caller_sees_and_still_guard_writes(database_url: str) -> None:
    async with client(a_server(), database=database_url) as http:
        ids = await _fill(http)
        path = f"/api/people/{ids['id']}"
        stranger, staff = await http.get(path), await http.get(path, headers=STAFF)
        tag = {"If-Match": stranger.headers["etag"]}
        renamed = await http.patch(path, json={"name": "eve"}, headers=tag)
        again = await http.patch(path, json={"name": "bob"}, headers=tag)
        new_tag = {"If-Match": renamed.headers["etag"]}
        deleted = await http.delete(path, headers=new_tag)
        restored = await http.post(f"{path}/restore", headers=new_tag)

    assert stranger.headers["etag"] != staff.headers["etag"]
    assert [renamed.status_code, again.status_code, deleted.status_code] == [200, 412, 204]
    assert restored.status_code in (200, 412), restored.text  # a restore is a write of its own


@pytest.mark.parametrize("shape", [list, tuple, lambda people: {"people": people}, iter])
async def test_records_that_middleware_answers_with_do_not_show_it_either(
    database_url: str, shape: Any
) -> None:
    server = a_server()

    @server.pipeline.db.middleware(models=[Person], operations=Operation.READS, at="after")
    async def replace(ctx: Context, next: Next) -> None:
        ctx.result = shape(await ctx.db(Person).list())
        await next()

    async with client(server, database=database_url) as http:
        await _fill(http)
        stranger, staff = await http.get("/api/people"), await http.get("/api/people", headers=STAFF)

    assert "ada" in stranger.text
    assert PHONE not in stranger.text
    assert PHONE in staff.text
    assert json.loads(stranger.text)["data"]


async def test_a_stream_shows_it_to_staff_alone(database_url: str) -> None:
    server = a_server()
    server.events.emit(Person)
    server.realtime.enable()
    async with (
        client(server, database=database_url) as http,
        websocket(server) as stranger,
        websocket(server, headers=STAFF) as staff,
    ):
        for ws in (stranger, staff):
            assert (await ws.subscribe("person.*"))["op"] == "ack"
        ids = await _fill(http)
        await http.patch(f"/api/people/{ids['id']}", json={"phoneNumber": PHONE + "1", "name": "Ada"})
        for ws, is_shown in ((stranger, False), (staff, True)):
            for _ in range(2):
                while (message := await ws.receive())["op"] != "event":
                    pass
                assert (PHONE in json.dumps(message)) is is_shown
            assert ("phoneNumber" in message["data"]["changed"]) is is_shown
